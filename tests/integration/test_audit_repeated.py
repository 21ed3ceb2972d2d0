"""Audits that repeat themselves, as processes: what leaked is asked for once, whatever pauses and stops there are."""

import re
import signal
import uuid
from collections import Counter
from pathlib import Path

import pytest

from streaming.adapters.pulsar.read import read
from streaming.clients import admin_for
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.orphans import WORKER, orphan_by_crash
from tests.integration.conftest import Deploy, Deployment, kill, stop, wait_until
from udfs.records import LedgerState, PendingDelete
from udfs.wire import decode

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(2400)]

LEAKED = 10
SECONDS = 900.0


def _leak(cluster: Cluster) -> tuple[str, set[int], set[int]]:
    """A namespace with a topic that leaked and one that is well; the closed orphans, and what is in use."""
    namespace = f"public/repeated-{uuid.uuid4().hex[:6]}"
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    leaky, live = (f"persistent://{namespace}/{name}" for name in ("leaky", "live"))
    for topic in (leaky, live):
        topics.fill(cluster, topic, LEAKED + 2, [WORKER])
    orphans = orphan_by_crash(cluster, leaky, WORKER, LEAKED * topics.ENTRIES_PER_LEDGER)
    states = ledger_list.every_ledger(cluster)
    closed = {ledger_id for ledger_id in orphans.every if states[ledger_id].state is LedgerState.CLOSED}
    in_use = {ledger_id for topic in (leaky, live) for ledger_id in topics.data_ledgers(cluster, topic)}
    assert len(closed) >= LEAKED
    return namespace, closed, in_use


def _asked_for(service: Deployment) -> Counter[int]:
    """Ledger ids in the request topic, each so often as it was asked for."""
    settings = service.settings
    with admin_for(settings) as admin:
        if not admin.partitions(settings.topics.requests[0]):
            return Counter()
        last = admin.last_positions(settings.topics.requests[0])
    asked = [decode(message.payload) for message in read(settings.pulsar, last)]
    return Counter(each.ledger_id for each in asked if isinstance(each, PendingDelete))


def _turns(log: Path, line: str) -> int:
    return len(re.findall(line, log.read_text()))


def test_the_service_asks_once_for_what_it_finds_and_sweeps_it(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    _namespace, leaked, in_use = _leak(cluster)
    service = deploy(extra="\n[audit]\nevery_seconds = 3\npublish = true\n")
    log = tmp_path / "service.log"
    turn = r"audit \d{8}T\d{9}Z: complete"
    service.run("pause")
    running = service.start("run", log=log)
    try:
        # requests wait while the service pauses: what is found again is not asked for again
        wait_until(lambda: _turns(log, turn) >= 3, running, log, seconds=SECONDS)
        while_paused = _asked_for(service)
        service.run("resume")
        wait_until(lambda: not leaked & ledger_list.every_ledger(cluster).keys(), running, log, seconds=SECONDS)
        turns = _turns(log, turn)
        wait_until(lambda: _turns(log, turn) >= turns + 2, running, log, seconds=SECONDS)
        stop(running)
    finally:
        service.run("resume")
        kill(running)
    asked_for = _asked_for(service)

    assert leaked <= while_paused.keys()
    assert set(asked_for.values()) == {1}
    assert in_use <= ledger_list.every_ledger(cluster).keys()
    assert not in_use & asked_for.keys()
    final = Counter(
        (row["ledger_id"], row["outcome"]) for rows in service.final().values() for row in rows if not row.get("uuid")
    )
    assert {ledger_id: final[ledger_id, "DELETED"] for ledger_id in leaked} == dict.fromkeys(leaked, 1)
    assert "Traceback" not in log.read_text()
    assert " ERROR " not in log.read_text()


def test_a_watch_that_is_stopped_while_it_publishes_goes_on_where_it_was(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    namespace, leaked, in_use = _leak(cluster)
    service = deploy()
    slowly = ("--publish-per-second", "2")
    log = tmp_path / "watch.log"
    watch = ("audit", "--watch", "2s", "--publish", "--yes", "--recheck-seconds", "1", "--namespace", namespace)

    running = service.start(*watch, *slowly, log=log)
    try:
        wait_until(lambda: len(_asked_for(service)) >= 2, running, log, seconds=SECONDS)
        stop(running)
    finally:
        kill(running)
    before = _asked_for(service)
    running = service.start(*watch, log=log)
    try:
        wait_until(lambda: _turns(log, "Report: ") >= 4, running, log, seconds=SECONDS)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0, log.read_text()[-4000:]
    finally:
        kill(running)
    after = _asked_for(service)

    assert 0 < len(before) < len(leaked)
    assert leaked <= after.keys()
    assert set(after.values()) == {1}
    assert not in_use & after.keys()
    assert "Traceback" not in log.read_text()
    assert not list((tmp_path / "service" / "state" / "audit").glob(".work-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_single_audit_that_is_interrupted_says_so_and_leaves_nothing_behind(
    deploy: Deploy, tmp_path: Path, number: signal.Signals
) -> None:
    service, log = deploy(), tmp_path / "audit.log"
    running = service.start("audit", "--recheck-seconds", "600", log=log)
    try:
        wait_until(lambda: "First check" in log.read_text(), running, log, seconds=SECONDS)
        running.send_signal(number)
        code = running.wait(60)
    finally:
        kill(running)

    assert code == 128 + number
    said = log.read_text()
    assert f"stopped by {number.name}: nothing was changed" in said
    assert "Traceback" not in said
    assert "\tat " not in said, "a stack of Java's"
    assert not list((tmp_path / "service" / "state" / "audit").glob(".work-*"))
