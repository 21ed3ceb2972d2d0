"""OPEN ledgers on real brokers: a broker is frozen before it names its new ledger, and cursors' ledgers leak."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streaming.clock import ManualClock, SystemClock
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.sandbox.home import Instance, Part
from streaming.sandbox.parts import part_clients
from streaming.sweep.jobs import Job
from tests.builders import HOUR_MS, cursor_request, data_request
from tests.contract.cutting_proxy import CuttingProxy, cutting_proxy
from tests.integration.conftest import (
    Deployment,
    deployment,
    killed_at_the_end,
    new_topic,
    stop,
    wait_until,
)
from tests.integration.test_faults import sweeper_of
from tests.integration.test_watch import PATIENCE_SECONDS, owner_of, retrying
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import parse_cursor, parse_managed_ledger
from udfs.paths import cursor_path, managed_ledger_name, managed_ledger_path
from udfs.records import LedgerState, Outcome, PendingDelete, Reason

pytestmark = [pytest.mark.cluster, pytest.mark.long]

OPEN = LedgerState.OPEN
QUIET_SECONDS = 60


@dataclass(frozen=True)
class Frozen:
    """Freezes a broker when it writes a znode, and drops the write."""

    cluster: Cluster
    proxy: CuttingProxy

    def at(self, topic: str, path: str, ids_in: Callable[[bytes], set[int]], act: Callable[[], object]) -> "Pending":
        """Let the topic's broker act until it writes the id of a new ledger into the znode."""
        part, hit, created = self._owner_of(topic), threading.Event(), set[int]()

        def cut(frame: bytes) -> bool:
            written = set[int]() if hit.is_set() else _ids_written(frame, path, ids_in)
            ids = written and written - ids_in(part_clients.read_znodes(self.cluster.addresses.zookeeper, [path])[path])
            if not ids:
                return False
            cluster_faults.pause(self.cluster, part)
            created.update(ids)
            hit.set()
            return True

        def acting() -> None:
            with suppress(Exception):  # the broker is frozen during the action
                act()

        self.proxy.cut_request = cut
        threading.Thread(target=acting, daemon=True).start()
        assert hit.wait(120), "the broker created no ledger"
        (ledger_id,) = created
        return Pending(self.cluster, part, path, ledger_id)

    def _owner_of(self, topic: str) -> Instance:
        owner = owner_of(self.cluster, topic)
        spec = self.cluster.spec
        return next(part for part in spec.all_of(Part.BROKER) if owner.endswith(f":{spec.port(part, 'broker')}"))


@dataclass(frozen=True)
class Pending:
    """A ledger that a frozen broker created but has not named in the owner's znode."""

    cluster: Cluster
    part: Instance
    path: str
    ledger_id: int

    @property
    def exists(self) -> bool:
        return self.ledger_id in ledger_list.every_ledger(self.cluster)

    def thaw(self, log: Path) -> None:
        """Let the broker continue, and return when it has noticed the end of its session."""
        read = len(log.read_text(errors="replace"))
        cluster_faults.resume(self.cluster, self.part)
        texts = ("SessionReestablished", "version conflict", "BadVersion")
        topics.wait_for(
            lambda: any(text in log.read_text(errors="replace")[read:] for text in texts), "the broker to wake up"
        )
        self.cluster.wait_ready(self.part)


def _ids_written(frame: bytes, path: str, ids_in: Callable[[bytes], set[int]]) -> set[int]:
    """Return the ledgers that a request to ZooKeeper, single or in a batch, would write into the znode."""
    encoded_path = len(path.encode()).to_bytes(4, "big") + path.encode()
    position = frame.find(encoded_path)
    if position < 0:
        return set()
    start = position + len(encoded_path) + 4
    size = int.from_bytes(frame[start - 4 : start], "big")
    if not 0 < size <= len(frame) - start:
        return set()  # a read
    try:
        return ids_in(frame[start : start + size]) - {-1}
    except FormatError:
        return set()


def _cursors_ledger(data: bytes) -> set[int]:
    return {parse_cursor(data).cursors_ledger_id}


def _listed(data: bytes) -> set[int]:
    return {ledger.ledger_id for ledger in parse_managed_ledger(data).ledgers}


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """Two brokers that reach ZooKeeper through a proxy."""
    home = tmp_path_factory.mktemp("frozen")
    cluster = up(home, counts={Part.BROKER: 2})
    try:
        with cutting_proxy(int(cluster.addresses.zookeeper.rpartition(":")[2])) as proxy:
            for part in cluster.spec.all_of(Part.BROKER):
                cluster.stop(part)
            store = f"zk:{proxy.hosts}"
            stores = {"metadataStoreUrl": store, "configurationMetadataStoreUrl": store}
            up(home, broker_settings={**stores, "managedLedgerCursorMaxEntriesPerLedger": "3"})
            yield Frozen(cluster, proxy)
            down(home)
    finally:
        down(home)


@pytest.fixture(autouse=True)
def thawed(frozen: Frozen) -> Iterator[None]:
    """Resume the brokers after a failed test."""
    yield
    frozen.proxy.cut_request = lambda _frame: False
    for part in frozen.cluster.spec.all_of(Part.BROKER):
        cluster_faults.resume(frozen.cluster, part)
        frozen.cluster.wait_ready(part)


def judged(service: Deployment, request: PendingDelete, *, hours: int) -> tuple[Outcome, Reason]:
    """Sweep a request as an executor does, with a clock that is ahead."""
    clock = ManualClock(SystemClock().now_ms() + hours * HOUR_MS)
    (swept,) = sweeper_of(service.settings, clock)[0].sweep([Job(request)], {})
    return swept.verdict.outcome, swept.verdict.reason


def test_a_broker_that_wakes_up_can_not_name_a_cursor_ledger_older_than_the_current_one(
    frozen: Frozen, tmp_path: Path
) -> None:
    cluster, topic = frozen.cluster, new_topic("frozen")
    service = deployment(cluster, tmp_path)
    topics.fill(cluster, topic, 12, ["s"])
    topics.consume(cluster, topic, "s", 1)
    path = cursor_path(managed_ledger_name(topic), "s")
    url = cluster.serving.pulsar

    def acknowledge() -> None:
        for _ in range(20):
            part_clients.consume(url, topic, "s", 1)

    pending = frozen.at(topic, path, _cursors_ledger, acknowledge)
    request = cursor_request(pending.ledger_id, managed_ledger_name(topic), "s")
    assert ledger_list.every_ledger(cluster)[pending.ledger_id].state is OPEN
    assert judged(service, request, hours=7)[0] is Outcome.RETRY, "no newer ledger was named yet"

    retrying(lambda: topics.consume(cluster, topic, "s", 5))

    def is_newer_named() -> bool:
        return topics.cursor_ledgers(cluster, topic)["s"] > pending.ledger_id

    topics.wait_for(
        is_newer_named, "the cursor to name a newer ledger"
    )  # the broker names the ledger after it got the acknowledgement
    named = topics.cursor_ledgers(cluster, topic)["s"]
    assert judged(service, request, hours=5) == (Outcome.RETRY, Reason.NOT_CLOSED)
    assert judged(service, request, hours=7) == (Outcome.DELETED, Reason.UNREFERENCED)
    pending.thaw(cluster.home.log(pending.part))

    retrying(lambda: topics.consume(cluster, topic, "s", 5))
    (now,) = _cursors_ledger(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    assert now >= named
    assert now in ledger_list.every_ledger(cluster)
    assert not pending.exists


def test_a_broker_that_wakes_up_can_not_list_a_data_ledger_older_than_the_last_listed_one(
    frozen: Frozen, tmp_path: Path
) -> None:
    cluster, topic = frozen.cluster, new_topic("frozen")
    service = deployment(cluster, tmp_path)
    topics.fill(cluster, topic, 2, ["s"])
    path, url = managed_ledger_path(managed_ledger_name(topic)), cluster.serving.pulsar
    pending = frozen.at(topic, path, _listed, lambda: part_clients.publish(url, topic, topics.payloads(30, 64)))
    request = data_request(pending.ledger_id, managed_ledger_name(topic))
    assert ledger_list.every_ledger(cluster)[pending.ledger_id].state is OPEN

    retrying(lambda: topics.publish(cluster, topic, topics.ENTRIES_PER_LEDGER))
    stored = topics.read_all(cluster, topic)
    assert max(topics.data_ledgers(cluster, topic)) > pending.ledger_id
    assert judged(service, request, hours=5) == (Outcome.RETRY, Reason.NOT_CLOSED)
    assert judged(service, request, hours=7) == (Outcome.DELETED, Reason.UNREFERENCED)
    pending.thaw(cluster.home.log(pending.part))

    retrying(lambda: topics.publish(cluster, topic, 1))
    listed = _listed(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    assert listed <= ledger_list.every_ledger(cluster).keys()
    assert not pending.exists
    assert topics.read_all(cluster, topic)[: len(stored)] == stored


def test_a_ledger_that_a_frozen_broker_created_for_a_cursor_without_a_ledger_stays(
    frozen: Frozen, tmp_path: Path
) -> None:
    cluster, topic = frozen.cluster, new_topic("frozen")
    service = deployment(cluster, tmp_path)
    topics.fill(cluster, topic, 2, ["s"])
    path, url = cursor_path(managed_ledger_name(topic), "s"), cluster.serving.pulsar
    pending = frozen.at(topic, path, _cursors_ledger, lambda: part_clients.consume(url, topic, "s", 1))
    request = cursor_request(pending.ledger_id, managed_ledger_name(topic), "s")
    retrying(lambda: topics.internal_stats(cluster, topic))  # the other broker has taken over the topic
    assert judged(service, request, hours=30 * 24) == (Outcome.RETRY, Reason.NOT_CLOSED)
    pending.thaw(cluster.home.log(pending.part))

    retrying(lambda: topics.consume(cluster, topic, "s", 5))
    (now,) = _cursors_ledger(part_clients.read_znodes(cluster.addresses.zookeeper, [path])[path])
    assert now in ledger_list.every_ledger(cluster)


def test_leaked_cursor_ledgers_are_orphans_after_a_quiet_period_and_wait_without_using_up_tries(
    frozen: Frozen, tmp_path: Path
) -> None:
    """The ledgers change again after the audit: its requests wait until the ledgers are quiet."""
    cluster, topic = frozen.cluster, new_topic("leaky")
    service = deployment(cluster, tmp_path)
    leaked = _leak_cursor_ledgers(cluster, topic)
    scope, log = ("--recheck-seconds", "1", "--namespace", "public/default"), tmp_path / "run.log"
    # the default period is 6 h
    assert leaked <= _ids(service.console.json("audit", *scope, code=(0, 4)), "OPEN")
    text = service.config.read_text()
    service.config.write_text(text.replace("[safety]", f'[safety]\nopen_quiet_period = "{QUIET_SECONDS}s"'))

    def are_orphans() -> bool:
        return leaked <= _ids(service.console.json("audit", *scope, code=(0, 4)), "ORPHAN")

    topics.wait_for(are_orphans, "the audit to list them as orphans", seconds=PATIENCE_SECONDS)
    service.console.run("audit", *scope, "--publish", "--yes", code=(0, 4))

    service.call("pause")
    with killed_at_the_end(service.start("run", log=log)) as running:
        wait_until(lambda: "reading persistent" in log.read_text(), running, log, seconds=PATIENCE_SECONDS)
        _write_again(cluster, leaked)
        service.call("resume")
        wait_until(lambda: leaked <= _by_ledger(service, "RETRY").keys(), running, log, seconds=PATIENCE_SECONDS)
        assert leaked <= ledger_list.every_ledger(cluster).keys()
        wait_until(lambda: leaked <= _by_ledger(service, "DELETED").keys(), running, log, seconds=PATIENCE_SECONDS)
        stop(running)

    waited, deleted = _by_ledger(service, "RETRY"), _by_ledger(service, "DELETED")
    for ledger_id in leaked:
        assert {(row["reason"], row["attempt"]) for row in waited[ledger_id]} == {("NOT_CLOSED", 0)}
        # one receipt for the wait, and a second if clocks differ
        assert len(waited[ledger_id]) <= 2, "too many receipts for one wait"
        assert [row["attempt"] for row in deleted[ledger_id]] == [0]
        assert deleted[ledger_id][0]["at_ms"] - waited[ledger_id][0]["at_ms"] >= QUIET_SECONDS * 1000 // 2
    assert not leaked & ledger_list.every_ledger(cluster).keys()
    assert set(topics.cursor_ledgers(cluster, topic).values()) <= ledger_list.every_ledger(cluster).keys()
    output = service.call("undo", "--topic", topic, "--dry-run", "--json").splitlines()
    planned = [json.loads(line) for line in output if line.startswith("{")]
    assert leaked <= {line.get("ledger_id") for line in planned}
    assert set(topics.data_ledgers(cluster, topic)) <= ledger_list.every_ledger(cluster).keys(), (
        "a listed ledger was deleted"
    )
    topics.consume(cluster, topic, "s", 5)


def _leak_cursor_ledgers(cluster: Cluster, topic: str) -> set[int]:
    """Kill a broker that replaced a cursor's ledgers without the right to delete; return the leaked OPEN ledgers."""
    topics.fill(cluster, topic, 12, ["s"])
    topics.consume(cluster, topic, "s", 1)
    named: set[int] = set()
    with cluster_faults.crash_with_metadata_fault(cluster):

        def is_leaking() -> bool:
            topics.consume(cluster, topic, "s", 1)
            named.update(topics.cursor_ledgers(cluster, topic).values())
            return len(named) > 3

        topics.wait_for(is_leaking, "the cursor to replace its ledgers", seconds=PATIENCE_SECONDS)
    retrying(lambda: topics.consume(cluster, topic, "s", 1))
    states = ledger_list.every_ledger(cluster)
    leaked = {ledger_id for ledger_id in ledger_list.orphans(cluster, topic).cursors if states[ledger_id].state is OPEN}
    assert len(leaked & named) >= 2, (named, leaked)
    return leaked


def _write_again(cluster: Cluster, ids: set[int]) -> None:
    """Write the ledgers' metadata without a change, which renews their time of modification."""
    with part_clients.zookeeper(cluster.addresses.zookeeper) as client:
        for ledger_id in ids:
            path = ledger_list.path_of(ledger_id)
            client.set(path, client.get(path)[0])


def _ids(findings: list[dict[str, Any]], finding_class: str) -> set[int]:
    return {row["ledger_id"] for row in findings if row.get("class") == finding_class}


def _by_ledger(service: Deployment, outcome: str) -> dict[int, list[dict[str, Any]]]:
    """Return the receipts with that outcome by ledger."""
    receipts: dict[int, list[dict[str, Any]]] = {}
    for row in service.receipts():
        if row["outcome"] == outcome:
            receipts.setdefault(row["ledger_id"], []).append(row)
    return receipts
