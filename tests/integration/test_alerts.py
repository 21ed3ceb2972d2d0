"""Alerts fire by their real causes, and end with the command of docs/runbook.md: on a real service and real scrapes.

promtool evaluates the rules on what the service serves. A scrape counts as what Prometheus gets for as long as an alert
waits (`for:`), so that no test waits for hours.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.clients import admin_for, reader_for
from streaming.clock import SystemClock
from streaming.ports import Pulsar
from streaming.reconcile.accounting import reconcile
from streaming.reconcile.markers import Markers
from streaming.sandbox import cluster_faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import consume_and_trim
from streaming.sandbox.parts import part_clients
from tests.contract.zookeeper_server import free_port
from tests.integration.conftest import (
    Deployment,
    config_text,
    create_tenant,
    kill,
    leak,
    new_topic,
    payload,
    running_cluster,
    stop,
)
from tests.integration.missing_world import World, filled
from tests.scrapes import GONE, Scrape, firing, scrape_of
from udfs.formats.store_migration import MIGRATION_PATH

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

PATIENCE_S = 600
LIMIT = 60  # deletes within an hour
DAY = 24 * 60


@dataclass(frozen=True)
class Scene(World):
    """A world whose service runs, on a fixed port."""

    log: Path
    runs: list[Popen[bytes]] = field(default_factory=list)

    @property
    def running(self) -> Popen[bytes]:
        """The process of the service."""
        return self.runs[-1]

    def scrape(self) -> Scrape:
        """Return what the service serves."""
        with urlopen(f"http://127.0.0.1:{self.service.settings.metrics.port}/metrics") as answer:
            return scrape_of(answer.read().decode())

    def until(self, holds: Callable[[Scrape], object], seconds: float = PATIENCE_S) -> Scrape:
        """Wait until a scrape is so, and return it."""
        deadline = time.monotonic() + seconds
        while True:
            assert self.running.poll() is None, self.log.read_text()[-4000:]
            try:
                found = self.scrape()
            except (HTTPError, URLError):  # it starts
                found = Scrape("", 0)
            if holds(found):
                return found
            assert time.monotonic() < deadline, found.text + self.log.read_text()[-2000:]
            time.sleep(0.3)

    def start(self) -> Scrape:
        """Start the service, wait until it is ready, and return its first scrape."""
        self.runs.append(self.service.start("run", log=self.log))
        first = self.until(lambda scrape: scrape.value("ledger_reaper_ready") is not None)
        self.until(lambda scrape: scrape.value("ledger_reaper_ready") == 1)
        return first

    @property
    def requests(self) -> str:
        """The request topic."""
        return self.service.settings.topics.requests[0]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home, here = tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("service")
    with running_cluster(home, gc_wait_seconds=3600) as cluster, pytest.MonkeyPatch.context() as environment:
        environment.setenv("LEDGER_REAPER__SAFETY__MAX_SHRINK", "0.5")
        environment.setenv("LEDGER_REAPER__SAFETY__SHRINK_APPLIES_ABOVE_LEDGERS", "5")
        service = _configured(cluster, here)
        state = Path(service.settings.state_dir)
        state.mkdir()
        created = Scene(cluster, service, state, here / "log")
        service.request([b"no request"])
        created.start()
        try:
            yield created
        finally:
            kill(created.running)


def _configured(cluster: Cluster, here: Path) -> Deployment:
    texts = {"name": "alerts", "chunk_rows": 1000, "home": cluster.home.root, "here": here, "classes": ""}
    text = config_text(cluster, limits=f"max_deletes_per_hour = {LIMIT}", **texts)
    config = here / "local.toml"
    config.write_text(text.replace("[metrics]\nport = 0", f"[metrics]\nport = {free_port()}\n[watch]\nenabled = true"))
    return Deployment(config)


def _alerts(*names: str) -> set[str]:
    return {f"LedgerReaper{name}" for name in names}


def test_nothing_fires_while_all_is_well(scene: Scene) -> None:
    topic = new_topic("calm")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.request([payload(topic, *leak(scene.cluster, topic, 1))])
    scene.until(lambda scrape: scrape.value("ledger_deletion_ledgers_deleted_total"))
    scene.service.run("audit")
    scene.service.run("snapshots", "audit")
    calm = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_audit_complete") == 1
            and scrape.value("ledger_reaper_snapshot_audit_complete") == 1
            and scrape.value("ledger_reaper_accounts_checked_timestamp_seconds")
            and scrape.value("ledger_reaper_watcher_last_scan_timestamp_seconds")
        )
    )
    assert firing((calm, 50)) == set()
    # nobody audits for 8 days, and the service reads no facts
    late = firing((calm, 8 * 24 + 3), step_minutes=60)
    assert late == _alerts("AuditTooOld", "FactsOld", "AccountsUnchecked", "WatcherLate")


def test_data_missing_until_undo_restores_it(scene: Scene) -> None:
    topic = filled(scene, "missing")
    lost = scene.listed(topic)[1]
    scene.delete_journaled(topic, lost)
    scene.service.run("audit", code=4)
    missing = scene.until(lambda scrape: scrape.value("ledger_reaper_audit_findings", 'class="MISSING"'))
    assert firing((missing, 1)) == _alerts("DataMissing")

    assert str(lost) in scene.service.run("audit", "--last", code=4)
    assert f"undo --ledger {lost}" in scene.service.run("explain", "--topic", topic, code=4)
    scene.service.run("undo", "--ledger", str(lost))
    scene.service.run("audit")
    assert (
        firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_audit_findings", 'class="MISSING"')), 1))
        == set()
    )


def test_a_topic_is_parked_until_the_fallback_has_read_it(scene: Scene) -> None:
    with part_clients.pulsar_client(scene.cluster.addresses.pulsar) as client:
        producer = client.create_producer(scene.requests)
        producer.send(payload(new_topic("odd"), 10**15), event_timestamp=1 << 62)  # the connector fails there
        producer.close()
    parked = scene.until(lambda scrape: scrape.value("ledger_reaper_query_parked"))
    assert firing((parked, 12)) == _alerts("TopicParked")
    check = scene.service.run("check", code=(0, 3))  # 0: the fallback was faster
    assert "ArithmeticException: long overflow" in check or "no topic is parked" in check
    assert firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_query_parked")), 12)) == set()


def test_topics_that_shrink_until_their_lists_are_accepted(scene: Scene) -> None:
    topic = new_topic("shrinks")
    topics.fill(scene.cluster, topic, 12, ["s"])
    first, held = leak(scene.cluster, topic, 2)
    scene.service.request([payload(topic, first)])
    _until_deleted(scene, first)
    consume_and_trim(scene.cluster, topic, "s", 9 * topics.ENTRIES_PER_LEDGER)
    scene.service.request([payload(topic, held)])

    def times(scrape: Scrape) -> float:
        # a series that appears is no increase
        return scrape.value("ledger_reaper_requests_total", 'reason="SOURCE_SHRANK"', 'query="retry"') or 0

    before = scene.until(times)
    after = scene.until(lambda scrape: times(scrape) > times(before))
    assert firing((before, 5), (after, 20)) == _alerts("TopicShrank")
    assert topic.removeprefix("persistent://") in scene.service.run(
        "receipts", "--reason", "SOURCE_SHRANK", "--since", "2h"
    )
    scene.service.run("accept", "--topic", topic)
    _until_deleted(scene, held)
    assert "LedgerReaperTopicShrank" not in firing((after, 20), (scene.scrape(), 65))


def _until_deleted(scene: Scene, ledger_id: int) -> None:
    scene.until(
        lambda _scrape: any(
            row["ledger_id"] == ledger_id and row["outcome"] == "DELETED" for row in scene.service.receipts()
        )
    )


def test_a_migration_until_its_znode_is_gone(scene: Scene) -> None:
    with closing(ZooKeeperStore(ZooKeeperClientSettings(hosts=scene.cluster.addresses.zookeeper))) as store:
        store.create(MIGRATION_PATH, b'{"phase":"FAILED","targetUrl":"oxia://oxia1:6648/default"}', parents=True)
        try:
            leaving = scene.until(lambda scrape: scrape.value("ledger_reaper_metadata_migration"))
            assert firing((leaving, 20)) == _alerts("MetadataMigration")
            assert "has phase FAILED" in " ".join(scene.service.run("status", code=(0, 3, 4)).split())
        finally:
            store.delete(MIGRATION_PATH)
    assert firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_metadata_migration")), 20)) == set()


def test_an_outage_until_the_broker_answers_again(scene: Scene) -> None:
    topic = new_topic("outage")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.run("pause", "--why", "so that a chunk waits")
    scene.service.request([payload(topic, topics.data_ledgers(scene.cluster, topic)[0])])
    time.sleep(10)  # until a batch with it waits for the end of the pause
    cluster_faults.kill(scene.cluster, Part.BROKER)
    try:
        scene.service.run("resume")
        # the ledger is in use, and the retry topic does not take its request
        outage = scene.until(lambda scrape: scrape.value("ledger_reaper_outages"))
        assert "LedgerReaperOutage" in firing((outage, 20))
        scene.service.run("check", code=3)
    finally:
        cluster_faults.restart(scene.cluster, Part.BROKER)
    over = scene.until(
        lambda scrape: not (scrape.value("ledger_reaper_outages") or scrape.value("ledger_reaper_metadata_migration"))
    )
    assert firing((over, 20)) & _alerts("Outage", "MetadataMigration") == set()


def test_dead_letters_until_they_are_written_off(scene: Scene) -> None:
    waiting = scene.until(lambda scrape: scrape.value("ledger_reaper_dead_letters_waiting"))
    assert firing((waiting, 20)) == _alerts("DeadLetters")
    assert "NOT_JSON" in scene.service.run("dlq", "list")
    scene.service.run("dlq", "write-off", "--reason", "NOT_JSON", "--why", "nobody knows the sender", "--yes")
    assert firing((scene.until(lambda scrape: not scrape.value("ledger_reaper_dead_letters_waiting")), 20)) == set()


def test_a_tenant_is_held_and_a_pause_is_forgotten_until_both_are_resumed(scene: Scene) -> None:
    create_tenant(scene.cluster, "shop", "prod")
    names = [f"persistent://shop/prod/t{number}" for number in range(8)]
    for name in names:
        topics.fill(scene.cluster, name, 1, ["s"])
    known = [payload(name, *leak(scene.cluster, name, 1)) for name in names]
    before = scene.scrape().value("ledger_deletion_ledgers_deleted_total") or 0
    scene.service.request(known)
    scene.until(lambda scrape: (scrape.value("ledger_deletion_ledgers_deleted_total") or 0) >= before + len(names))
    later = [payload(name, *leak(scene.cluster, name, 1)) for name in names]
    for name in names:
        assert topics.delete_topic(scene.cluster, name)
    scene.service.request(later)
    held = scene.until(lambda scrape: scrape.value("ledger_reaper_tenant_held", 'tenant="shop"'))
    assert "LedgerReaperTenantHeld" in firing((held, 20))

    scene.service.run("pause", "--why", "an upgrade of the bookies")
    topic = new_topic("waiting")
    scene.service.request(payload(topic, 10**15 + number) for number in range(5))
    paused = scene.until(
        lambda scrape: (
            scrape.value("ledger_reaper_paused") == 1 and scrape.value("ledger_reaper_backlog_oldest_timestamp_seconds")
        )
    )
    if os.environ.get("RECORD_SCRAPE"):
        paused.record()
    assert firing((paused, 4 * 60 + 2)) >= _alerts("PausedTooLong", "TenantHeld")
    assert "an upgrade of the bookies" in scene.service.run("status")
    scene.service.run("resume")
    resumed = scene.until(lambda scrape: scrape.value("ledger_reaper_paused") == 0)
    assert firing((resumed, 4 * 60 + 2)) & _alerts("PausedTooLong", "TenantHeld") == _alerts("TenantHeld")
    scene.service.run("resume", "--tenant", "shop")
    assert "LedgerReaperTenantHeld" not in firing(
        (scene.until(lambda scrape: scrape.value("ledger_reaper_tenants_held") == 0), 20)
    )


def test_a_limit_until_it_is_resumed(scene: Scene) -> None:
    topic = new_topic("many")
    topics.fill(scene.cluster, topic, 2, ["s"])
    scene.service.request(payload(topic, ledger_id) for ledger_id in leak(scene.cluster, topic, LIMIT + 1))
    reached = scene.until(lambda scrape: scrape.value("ledger_reaper_limit_reached"))
    assert "LedgerReaperLimitReached" in firing((reached, 20))
    scene.service.run("resume", "--limit")
    released = scene.until(lambda scrape: not scrape.value("ledger_reaper_limit_reached"))
    assert "LedgerReaperLimitReached" not in firing((released, 20))


def test_a_service_that_ended_until_it_is_started_and_its_lost_messages_until_they_are_accepted(scene: Scene) -> None:
    partition = f"{scene.requests}-partition-1"
    scene.service.run("pause", "--why", "nothing is read")
    topics.publish(scene.cluster, partition, 30)
    last = scene.scrape()
    stop(scene.running)
    assert firing((last, 5), (GONE, 20)) == _alerts("Down")
    assert firing((last, 5), (GONE, 90)) == _alerts("Down", "WatcherLate")
    _lose_unread(scene, partition)
    scene.service.run("resume")
    starting = scene.start()
    assert firing((last, 5), (starting, 20)) >= _alerts("NotReady")
    unaccounted = scene.until(lambda scrape: scrape.value("ledger_reaper_unaccounted", 'what="ledgers"'))
    assert "LedgerReaperUnaccounted" in firing((last, 5), (GONE, 20), (unaccounted, 5))
    assert "LedgerReaperDown" not in firing((last, 5), (GONE, 20), (unaccounted, 5))
    scene.service.run("check", code=4)
    assert f"{partition}: ledgers" in scene.service.run("accept", "--gaps")
    stop(scene.running)  # the service checks at its start, and then every five minutes
    scene.start()
    accepted = scene.until(lambda scrape: scrape.value("ledger_reaper_unaccounted", 'what="ledgers"') == 0)
    assert "LedgerReaperUnaccounted" not in firing((accepted, 5))


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
