"""The watcher against the real cluster: what brokers drop from their lists is asked for, and leaks are deleted."""

import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from streaming.adapters.pulsar.read import read
from streaming.clients import admin_for
from streaming.phase_one.watcher.publication import WATCH_ID
from streaming.sandbox import faults, ledgers, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from streaming.sandbox.orphans import WORKER, consume_and_trim
from tests.integration.conftest import Deploy, Deployment, kill, killed_at_the_end, new_topic, stop, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1500)]

WATCH = "\n[watch]\nenabled = true\npoll_seconds = 15\nunlisted_after_seconds = 20\n"


def requested(service: Deployment) -> list[tuple[str, int]]:
    """Number and ledger of each request that a watcher sent."""
    settings = service.settings
    with admin_for(settings) as admin:
        if not admin.partitions(settings.topics.requests[0]):
            return []
        last = admin.last_positions(settings.topics.requests[0])
    messages = [each for each in read(settings.pulsar, last) if WATCH_ID in each.properties]
    return [(each.properties[WATCH_ID], json.loads(each.payload)["ledgerId"]) for each in messages]


def asked_for(service: Deployment) -> set[int]:
    sent = requested(service)
    twice = [number for number, n in Counter(number for number, _ledger in sent).items() if n > 1]
    assert not twice, f"requests that were sent twice: {twice}"
    return {ledger for _number, ledger in sent}


def is_watching(log: Path) -> bool:
    return "watching what topics" in log.read_text()


@pytest.fixture
def leaky(cluster: Cluster) -> str:
    """A topic with nine full ledgers, which a subscription has still to read."""
    topic = new_topic("watched")
    topics.fill(cluster, topic, 9, [WORKER])
    topics.consume(cluster, topic, WORKER, 1)
    return topic


def test_what_a_broker_leaks_is_asked_for_and_deleted_beside_the_service(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    before = topics.data_ledgers(cluster, leaky)
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: is_watching(log) and "reading persistent" in log.read_text(), running, log)
        state = service.config.parent / "state" / "watcher.json"
        wait_until(state.exists, running, log)
        with faults.crash_with_metadata_fault(cluster):
            consume_and_trim(cluster, leaky, WORKER, 5 * topics.ENTRIES_PER_LEDGER - 1)
        leaked = set(ledgers.orphans(cluster, leaky).data)
        assert leaked >= set(before[:5])
        wait_until(lambda: leaked <= asked_for(service), running, log)
        wait_until(lambda: not set(before[:5]) & ledgers.every_ledger(cluster).keys(), running, log)
        listed = topics.data_ledgers(cluster, leaky)
        assert set(listed) <= ledgers.every_ledger(cluster).keys(), "what is listed stays"
        assert len(topics.read_all(cluster, leaky)) >= 4 * topics.ENTRIES_PER_LEDGER
        stop(running)


@pytest.mark.parametrize("harm", ["killed", "away", "its session expired"])
def test_a_watcher_that_missed_it_asks_all_the_same(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str, harm: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    running = service.start("watch", log=log)
    state = service.config.parent / "state" / "watcher.json"
    try:
        wait_until(state.exists, running, log)
        before = topics.data_ledgers(cluster, leaky)
        if harm == "its session expired":
            running.send_signal(signal.SIGSTOP)
        else:
            kill(running)
        consume_and_trim(cluster, leaky, WORKER, 5 * topics.ENTRIES_PER_LEDGER - 1)
        if harm == "its session expired":
            time.sleep(15)  # the session's timeout is six seconds
            running.send_signal(signal.SIGCONT)
        else:
            time.sleep(20 if harm == "away" else 0)
            running = service.start("watch", log=log)
        wait_until(lambda: set(before[:5]) <= asked_for(service), running, log)
        assert not set(topics.data_ledgers(cluster, leaky)) & asked_for(service)
        stop(running)
    finally:
        if running.poll() is None:
            kill(running)


def test_killed_again_and_again_it_asks_for_each_once(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    chance = random.Random(7)
    running = service.start("watch", log=log)
    try:
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        known = set(topics.data_ledgers(cluster, leaky)[:5])
        for _round in range(5):
            consume_and_trim(cluster, leaky, WORKER, topics.ENTRIES_PER_LEDGER)
            time.sleep(chance.uniform(0, 6))
            kill(running)
            running = service.start("watch", log=log)
            time.sleep(chance.uniform(2, 6))
            kill(running)
            running = service.start("watch", log=log)
        wait_until(lambda: known - set(topics.data_ledgers(cluster, leaky)) <= asked_for(service), running, log)
        assert len(asked_for(service) & known) >= 4
        stop(running)
    finally:
        if running.poll() is None:
            kill(running)


def test_while_the_broker_is_away_it_waits_and_then_goes_on(
    cluster: Cluster, deploy: Deploy, tmp_path: Path, leaky: str
) -> None:
    service, log = deploy(extra=WATCH), tmp_path / "log"
    with killed_at_the_end(service.start("watch", log=log)) as running:
        wait_until((service.config.parent / "state" / "watcher.json").exists, running, log)
        before = topics.data_ledgers(cluster, leaky)
        consume_and_trim(cluster, leaky, WORKER, 5 * topics.ENTRIES_PER_LEDGER - 1)
        faults.kill(cluster, Part.BROKER)
        time.sleep(10)
        faults.restart(cluster, Part.BROKER)
        wait_until(lambda: set(before[:5]) <= asked_for(service), running, log)
        stop(running)
