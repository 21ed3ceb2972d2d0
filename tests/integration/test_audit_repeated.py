"""Repeated audits as processes: they request each leaked ledger once, despite pauses and stops."""

import re
import signal
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from streaming.adapters.pulsar.readers.read import read
from streaming.audit.output import output_of
from streaming.audit.publication.publication_plan import plans
from streaming.clients import admin_for
from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.orphans import WORKER, orphan_by_crash
from tests.integration.conftest import Deploy, Deployment, kill, stop, wait_until
from udfs.formats.internal_stats import Position
from udfs.records import LedgerState, PendingDelete
from udfs.requests.request_format import decode

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(2400)]

LEAKED = 10
SECONDS = 900.0
MANY, FIRST_ID = 16_000, 1_500_000_000


def _leak(cluster: Cluster) -> tuple[str, set[int], set[int]]:
    """Create a namespace with a leaky and a live topic; return it, the closed orphans, and the ledgers in use."""
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


def _request_counts(service: Deployment) -> Counter[int]:
    """Count the requests for each ledger in the request topic."""
    settings = service.settings
    with admin_for(settings) as admin:
        if not admin.partitions(settings.topics.requests[0]):
            return Counter()
        last = admin.last_positions(settings.topics.requests[0])
    requests = [decode(message.payload) for message in read(settings.pulsar, last)]
    return Counter(request.ledger_id for request in requests if isinstance(request, PendingDelete))


def _ends(service: Deployment) -> dict[str, Position]:
    """Return the last position of each partition of the request topic; none if the topic does not exist."""
    topic = service.settings.topics.requests[0]
    with admin_for(service.settings) as admin:
        return admin.last_positions(topic) if admin.partitions(topic) else {}


def _has_grown(before: dict[str, Position], service: Deployment) -> bool:
    """Whether the request topic has more than at these ends."""
    ends = _ends(service)
    return any(position[1] >= 0 and position != before.get(partition) for partition, position in ends.items())


def _count(log: Path, line: str) -> int:
    return len(re.findall(line, log.read_text()))


def test_the_service_requests_each_finding_once_and_deletes_it(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    _namespace, leaked, in_use = _leak(cluster)
    service = deploy(extra="\n[audit]\nevery_seconds = 3\npublish = true\n")
    log = tmp_path / "service.log"
    completed = r"audit \d{8}T\d{9}Z: complete"
    service.run("pause")
    running = service.start("run", log=log)
    try:
        # while the service pauses, requests wait, and later audits do not repeat them
        wait_until(lambda: _count(log, completed) >= 3, running, log, seconds=SECONDS)
        while_paused = _request_counts(service)
        service.run("resume")
        wait_until(lambda: not leaked & ledger_list.every_ledger(cluster).keys(), running, log, seconds=SECONDS)
        before = _count(log, completed)
        wait_until(lambda: _count(log, completed) >= before + 2, running, log, seconds=SECONDS)
        stop(running)
    finally:
        service.run("resume")
        kill(running)
    counts = _request_counts(service)

    assert leaked <= while_paused.keys()
    assert set(counts.values()) == {1}
    assert in_use <= ledger_list.every_ledger(cluster).keys()
    assert not in_use & counts.keys()
    final = Counter(
        (row["ledger_id"], row["outcome"]) for rows in service.final().values() for row in rows if not row.get("uuid")
    )
    assert {ledger_id: final[ledger_id, "DELETED"] for ledger_id in leaked} == dict.fromkeys(leaked, 1)
    assert "Traceback" not in log.read_text()
    assert " ERROR " not in log.read_text()


def test_a_watch_that_is_stopped_while_it_publishes_resumes_its_publication(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    namespace, leaked, in_use = _leak(cluster)
    service = deploy()
    slowly = ("--publish-per-second", "2")
    log = tmp_path / "watch.log"
    watch = ("audit", "--watch", "2s", "--publish", "--yes", "--recheck-seconds", "1", "--namespace", namespace)

    running = service.start(*watch, *slowly, log=log)
    try:
        wait_until(lambda: len(_request_counts(service)) >= 2, running, log, seconds=SECONDS)
        stop(running)
    finally:
        kill(running)
    before = _request_counts(service)
    running = service.start(*watch, log=log)
    try:
        wait_until(lambda: _count(log, "Report: ") >= 4, running, log, seconds=SECONDS)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0, log.read_text()[-4000:]
    finally:
        kill(running)
    after = _request_counts(service)

    assert 0 < len(before) < len(leaked)
    assert leaked <= after.keys()
    assert set(after.values()) == {1}
    assert not in_use & after.keys()
    assert "Traceback" not in log.read_text()
    assert not list((tmp_path / "service" / "state" / "audit").glob(".work-*"))


def test_a_publication_that_is_killed_again_and_again_ends_with_each_request_once(
    cluster: Cluster, deploy: Deploy, tmp_path: Path
) -> None:
    namespace, log = f"public/killed-{uuid.uuid4().hex[:6]}", tmp_path / "publish.log"
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    leaked: list[int] = []
    for number in range(8):  # owners, whose requests go to several partitions
        topic = f"persistent://{namespace}/t{number}"
        topics.fill(cluster, topic, 2, [WORKER])
        leaked += ledger_list.make_synthetic(cluster, topic, count=MANY // 8, first_id=FIRST_ID + number * MANY)
    service = deploy()
    publish = ("audit", "--last", "--publish", "--yes", "--namespace", namespace, "--publish-per-second")
    try:
        service.run("audit", "--recheck-seconds", "1", "--namespace", namespace)
        seen = []
        for _ in range(3):
            before = _ends(service)
            running = service.start(*publish, str(MANY // 8), log=log)
            try:
                wait_until(partial(_has_grown, before, service), running, log, seconds=SECONDS)
            finally:
                kill(running)
            counts = _request_counts(service)
            (plan,) = plans(output_of(service.settings, None))
            assert not plan.is_done
            assert set(counts.values()) <= {1}
            assert counts.keys() < set(leaked)
            seen.append(counts.total())
        assert 0 < seen[0] <= seen[1] <= seen[2]
        output = service.run(*publish, "0")
        again = service.run(*publish, "0")
    finally:
        ledger_list.remove_synthetic(cluster, leaked)

    assert f"received {MANY:,} requests" in output
    assert f"already held {MANY:,} requests" in again
    assert _request_counts(service) == Counter(leaked)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_single_audit_that_is_interrupted_reports_it_and_leaves_no_files(
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
    output = log.read_text()
    assert f"stopped by {number.name}: nothing was changed" in output
    assert "Traceback" not in output
    assert "\tat " not in output, "a stack trace of Java"
    assert not list((tmp_path / "service" / "state" / "audit").glob(".work-*"))
