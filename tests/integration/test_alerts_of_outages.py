"""Alerts about services that end or do not answer, and what they leave: see test_alerts.py."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from streaming.clients import admin_for, reader_for
from streaming.clock import SystemClock
from streaming.ports import Pulsar
from streaming.reconcile.accounting import reconcile
from streaming.reconcile.markers import Markers
from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.home import Part
from streaming.state.notes import hold
from tests.contract.zookeeper_server import free_port
from tests.integration.alert_scenes import Scene, alerts, record, until, watching_scene
from tests.integration.conftest import Deployment, kill, killed_at_the_end, new_topic, payload, stop
from tests.scrapes import GONE, Scrape, firing

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with watching_scene(tmp_path_factory) as created:
        yield created


def test_an_outage_until_the_broker_answers_again(scene: Scene) -> None:
    topic = new_topic("outage")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.run("pause", "--why", "so that a chunk waits")
    listed = topics.data_ledgers(scene.cluster, topic)[0]
    scene.service.request([payload(topic, listed)])
    scene.until(lambda _scrape: hold.noted(str(scene.state))[0])  # a chunk waits for the end of the pause
    cluster_faults.kill(scene.cluster, Part.BROKER)
    try:
        scene.service.run("resume")
        # the ledger is in use, and the retry topic does not take its request
        outage = scene.until(lambda scrape: scrape.value("ledger_reaper_outages"))
        record("outage", outage)
        scene.until_logged("metrics: the backlog could not be read")
        unread = "ledger_reaper_backlog_read_timestamp_seconds"
        history = (outage.working(unread), 70)
        assert firing(history) >= alerts("Outage", "FactsOld")
        scene.service.run("check", code=3)
    finally:
        cluster_faults.restart(scene.cluster, Part.BROKER)
    over = scene.until(
        lambda scrape: (
            (scrape.value(unread) or 0) > (outage.value(unread) or 0)
            and not any(
                scrape.value(f"ledger_reaper_{name}") for name in ("outages", "metadata_migration", "query_parked")
            )
        )
    )
    assert firing(history, (over.working(), 20)) - alerts("DeadLetters") == set()
    scene.until_receipt(listed, "DEAD_LETTER")


def test_dead_letters_until_they_are_written_off(scene: Scene) -> None:
    topic = new_topic("in-use")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.request([b"no request", payload(topic, topics.data_ledgers(scene.cluster, topic)[0])])
    reasons = ("NOT_JSON", "IN_USE")  # IN_USE: after its last retry
    waiting = scene.until(lambda scrape: all(_letters(scrape, reason) for reason in reasons))
    record("letters", waiting)
    assert firing((waiting, 20)) == alerts("DeadLetters")
    listed = scene.service.run("dlq", "list")
    for reason in reasons:
        assert reason in listed
        scene.service.run("dlq", "write-off", "--reason", reason, "--why", "nobody knows the sender", "--yes")
    settled = scene.until(lambda scrape: not any(_letters(scrape, reason) for reason in reasons))
    assert firing((waiting, 20), (settled, 20)) == set()


def _letters(scrape: Scrape, reason: str) -> float:
    return scrape.value("ledger_reaper_dead_letters_waiting", f'reason="{reason}"') or 0


def test_a_service_that_ended_until_it_is_started_and_its_lost_messages_until_they_are_accepted(scene: Scene) -> None:
    partition = f"{scene.requests}-partition-1"
    scene.service.run("pause", "--why", "nothing is read")
    topics.publish(scene.cluster, partition, 30)
    last = scene.scrape()
    stop(scene.running)
    assert firing((last, 5), (GONE, 20)) == alerts("Down")
    ended = (last, 5), (GONE, 90)
    assert firing(*ended) == alerts("Down", "WatcherLate")
    _lose_unread(scene, partition)
    scene.service.run("resume")
    scene.start()
    unaccounted = scene.until(
        lambda scrape: scrape.value("ledger_reaper_unaccounted", 'what="ledgers"') and _scanned(scrape) > _scanned(last)
    )
    assert firing(*ended, (unaccounted.working(), 20)) == alerts("Unaccounted")
    scene.service.run("check", code=4)
    assert f"{partition}: ledgers" in scene.service.run("accept", "--gaps")
    stop(scene.running)  # the service checks at its start, and then every five minutes
    scene.start()
    accepted = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_unaccounted", 'what="ledgers"') == 0 and _scanned(scrape) > _scanned(last)
        )
    )
    assert firing(*ended, (unaccounted.working(), 20), (accepted.working(), 20)) == set()


def _lose_unread(scene: Scene, partition: str) -> None:
    """Let the broker delete ledgers with unread messages, as a tenant's administrator may."""
    settings = scene.service.settings
    with admin_for(settings) as admin:
        now_ms = SystemClock().now_ms()
        Path(settings.state.dir, "accounts.json").unlink(missing_ok=True)
        reconcile(settings, Pulsar(admin, reader_for(settings)), now_ms, service=Markers())
        admin.set_retention(scene.requests, minutes=0, megabytes=0)
        subscription = settings.topics.subscription
        topics.admin(scene.cluster, "POST", f"{topics.resource(partition)}/subscription/{subscription}/skip_all")
        admin.trim(scene.requests)
        topics.wait_for(lambda: len(admin.internal_stats(partition).ledgers) == 1, "the trim", seconds=60)


def _scanned(scrape: Scrape) -> float:
    return scrape.value("ledger_reaper_watcher_last_scan_timestamp_seconds") or 0


def test_a_service_starts_again_and_again_until_it_runs_for_an_hour(scene: Scene) -> None:
    starts = [(scene.scrape(), 5)]
    for number in range(4):
        # the kernel kills it for its memory, or its machine stands still and its session ends
        (_stand_still if number % 2 else kill)(scene.running)
        starts.append((scene.start(), 5))
    assert firing(*starts) == alerts("Restarts")
    assert "the ZooKeeper session that holds the lock has ended" in scene.log.read_text()
    scene.service.run("check", code=(0, 4))
    runs = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_retries_due") == 0
            and scrape.value("ledger_reaper_accounts_checked_timestamp_seconds")
        )
    )
    assert firing(*starts, (runs.working(), 61)) == set()


def _stand_still(running: Popen[bytes]) -> None:
    """Freeze the service's process until its session has ended, and wait for its end."""
    os.kill(running.pid, signal.SIGSTOP)
    time.sleep(15)  # the session's timeout is 6 s
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait(120) == 3


def test_a_watcher_is_not_ready_and_late_until_zookeeper_answers(scene: Scene, tmp_path: Path) -> None:
    text = scene.service.config.read_text().replace('name = "alerts"', 'name = "watcher"')
    port = free_port()
    config = tmp_path / "watcher.toml"
    config.write_text(
        text.replace(str(scene.state.parent), str(tmp_path)).replace(
            f"port = {scene.service.settings.metrics.port}", f"port = {port}"
        )
    )
    log = tmp_path / "log"
    with killed_at_the_end(Deployment(config).start("watch", log=log)) as watcher:
        before = until(port, lambda scrape: scrape.value("ledger_reaper_ready") == 1 and _scanned(scrape), watcher, log)
        stop(scene.running)
        cluster_faults.kill(scene.cluster, Part.ZOOKEEPER)
        try:
            away = until(port, lambda scrape: scrape.value("ledger_reaper_ready") == 0, watcher, log)
            # only the service has the metric whose absence means that none runs
            assert firing((before, 5), (away, 80)) - alerts("Down") == alerts("NotReady", "WatcherLate")
        finally:
            cluster_faults.restart(scene.cluster, Part.ZOOKEEPER)
        again = until(
            port,
            lambda scrape: scrape.value("ledger_reaper_ready") == 1 and _scanned(scrape) > _scanned(away),
            watcher,
            log,
        )
        assert firing((before, 5), (away, 80), (again.working(), 20)) - alerts("Down") == set()
