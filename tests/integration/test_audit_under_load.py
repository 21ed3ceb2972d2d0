"""Five minutes of brokers that roll, trim, offload, compact, delete, leak and crash while audits run and publish.

LEDGER_REAPER_LOAD_SECONDS sets another duration. Every round leaks more ledgers, and its audit finds all leaks so far;
every third audit runs while a broker is killed. No audit may ever list a ledger that an owner refers to as an orphan,
and no unconsumed message may be lost, although the service processes all requests of the audits.
"""

import contextlib
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streaming.errors import ReaperError
from streaming.sandbox import cluster_faults, ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.offloaded_ledgers import attempts, give_up_bookkeeper_copies
from streaming.sandbox.orphans import WORKER, consume_and_trim
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deploy
from tests.integration.console import Console
from udfs.formats.managed_ledger import in_use_ids
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import LedgerState

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(2400)]

SECONDS = float(os.environ.get("LEDGER_REAPER_LOAD_SECONDS", "300"))
NAMESPACE = f"public/load-{uuid.uuid4().hex[:6]}"
KEPT = f"persistent://{NAMESPACE}/kept"
BUSY = [f"persistent://{NAMESPACE}/busy-{n}" for n in range(4)]
BATCH = 3 * topics.ENTRIES_PER_LEDGER
LEAK_SECONDS = 240
_COMPACTED = "-compacted"


class _Leaker:
    """Leaks ledgers of its own topics at crashes, in the windows W1 and W3, W6, W7, W8 and W9 of docs/findings.md."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topics: list[str] = []
        self.leaked: dict[str, set[int]] = {
            kind: set() for kind in ("data", "cursors", "schemas", "compacted", "copies")
        }
        self._count = 0
        self._next = self._create()

    @property
    def every(self) -> set[int]:
        """The ids of all closed ledgers that leaked so far."""
        return set().union(*self.leaked.values())

    def leak(self) -> None:
        """Kill a broker that dropped ledgers which it can't delete; takes half a minute."""
        # created before the last crash: the current broker has recovered its cursor's ledger
        leaky, self._next = self._next, self._create()
        compacted, copied = f"{leaky}{_COMPACTED}", f"{leaky}-copied"
        self.topics += [compacted, copied]
        for topic in (copied, compacted):
            topics.fill(self.cluster, topic, 4, [WORKER])
        self._compact(compacted)
        with cluster_faults.crash_with_metadata_fault(self.cluster):
            consume_and_trim(self.cluster, leaky, WORKER, 2 * topics.ENTRIES_PER_LEDGER - 1)
            topics.delete_schema(self.cluster, leaky)
            self._compact(compacted)
            topics.offload(self.cluster, copied)
            give_up_bookkeeper_copies(self.cluster, copied)
        self._record(leaky, ("data", "cursors", "schemas"))
        self._record(compacted, ("compacted",))
        self._add("copies", {attempt.ledger_id for attempt in attempts(self.cluster, copied)})

    def load_compacted(self) -> None:
        """Load the topics that were compacted.

        For a topic that a crash unloaded, no znode names the compacted ledger in use, so that its ledgers are UNKNOWN.
        """
        for topic in self.topics:
            if topic.endswith(_COMPACTED):
                topics.internal_stats(self.cluster, topic)

    def _create(self) -> str:
        self._count += 1
        topic = f"persistent://{NAMESPACE}/leaky-{self._count}"
        self.topics.append(topic)
        topics.post_schema_versions(self.cluster, topic, 2)
        topics.fill(self.cluster, topic, 4, [WORKER])
        topics.consume(self.cluster, topic, WORKER, 1)
        return topic

    def _compact(self, topic: str) -> None:
        topics.publish_keyed(self.cluster, topic, 20, keys=4)
        topics.compact(self.cluster, topic)

    def _record(self, topic: str, kinds: tuple[str, ...]) -> None:
        orphans = ledger_list.orphans(self.cluster, topic)
        for kind in kinds:
            self._add(kind, set(getattr(orphans, kind)))

    def _add(self, kind: str, ids: set[int]) -> None:
        states = ledger_list.every_ledger(self.cluster)
        self.leaked[kind] |= {
            ledger for ledger in ids if ledger in states and states[ledger].state is LedgerState.CLOSED
        }


class _Load:
    """Threads that use the cluster like applications and operators; they repeat actions that a crash interrupts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stop = threading.Event()
        self.kept = 0
        self.done: dict[str, int] = {}
        self._random = random.Random(7)
        self._threads = [threading.Thread(target=self._repeat, args=(act,), daemon=True) for act in self._acts()]

    @contextlib.contextmanager
    def running(self) -> Iterator["_Load"]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            for thread in self._threads:
                thread.join(timeout=120)

    def _acts(self) -> list[Callable[[], None]]:
        return [self._keep, self._use, self._use, self._operate]

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self.stop.is_set():
            try:
                act()
            except Exception:  # the broker crashed or was slow: applications try again
                self.done["failed"] = self.done.get("failed", 0) + 1
            self.stop.wait(0.5)

    def _keep(self) -> None:
        self.kept += topics.publish(self.cluster, KEPT, BATCH)

    def _use(self) -> None:
        topic = self._random.choice(BUSY)
        topics.fill(self.cluster, topic, 3, ["s"])
        topics.consume(self.cluster, topic, "s", BATCH - topics.ENTRIES_PER_LEDGER)
        topics.trim(self.cluster, topic)
        self._count("used")

    def _operate(self) -> None:
        topic = self._random.choice(BUSY)
        acts: dict[str, Callable[[], object]] = {
            "offload": lambda: topics.offload(self.cluster, topic),
            "unload": lambda: topics.unload(self.cluster, topic),
            "delete": lambda: topics.delete_topic(self.cluster, topic),
            "schema": lambda: topics.post_schema_versions(self.cluster, topic, 2),
            "unsubscribe": lambda: topics.delete_subscription(self.cluster, topic, "s"),
            "compact": lambda: topics.compact(self.cluster, topic),
        }
        name = self._random.choice(list(acts))
        acts[name]()
        self._count(name)

    def _count(self, name: str) -> None:
        self.done[name] = self.done.get(name, 0) + 1


def _referred_to(cluster: Cluster, names: Iterable[str]) -> set[int]:
    """Return every BookKeeper ledger that the topics' lists name, in ZooKeeper or in a broker."""
    hosts = cluster.addresses.zookeeper
    paths = [managed_ledger_path(managed_ledger_name(topic)) for topic in names]
    referred = {
        ledger_id for data in part_clients.read_znodes(hosts, paths).values() for ledger_id in in_use_ids(data).ids
    }
    for topic in names:
        with contextlib.suppress(ReaperError):
            stats = topics.internal_stats(cluster, topic)
            referred |= {cursor["cursorLedger"] for cursor in stats["cursors"].values()} - {-1}
            referred |= {ledger["ledgerId"] for ledger in stats.get("schemaLedgers", [])}
            referred |= {(stats.get("compactedLedger") or {}).get("ledgerId", -1)} - {-1}
    return referred


def _audit(
    commands: Console, *options: str, may_be_incomplete: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run an audit; return its findings and its last line.

    Args:
        may_be_incomplete: a broker dies during the audit, so that its topics can't be judged and the exit code may
            be 4.
    """
    arguments = ("audit", "--recheck-seconds", "2", "--namespace", NAMESPACE, *options)
    codes = (0, 4) if may_be_incomplete else (0,)
    *findings, last = commands.json(*arguments, code=codes)
    return findings, last


def _missing(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in findings if row["class"] == "MISSING"]


def _ids(findings: list[dict[str, Any]], finding_class: str) -> set[int]:
    kind = (finding_class, "LEDGER")
    return {row["ledger_id"] for row in findings if (row["class"], row["ledger_type"]) == kind}


def test_no_ledger_in_use_is_listed_or_lost_while_brokers_work_and_leak(cluster: Cluster, deploy: Deploy) -> None:
    topics.admin(cluster, "PUT", f"namespaces/{NAMESPACE}")
    topics.fill(cluster, KEPT, 1, ["never"])
    service, leaker = deploy(), _Leaker(cluster)
    listed: set[int] = set()
    counts: list[int] = []  # true orphans of each audit
    deadline = time.monotonic() + SECONDS
    commands = service.console
    with ThreadPoolExecutor(1) as pool:
        with _Load(cluster).running() as load:
            while time.monotonic() < deadline or len(counts) < 3:
                is_hit = len(counts) % 3 == 2
                before = leaker.every
                leaking = pool.submit(leaker.leak)
                if not is_hit:
                    leaking.result(LEAK_SECONDS)
                    assert leaker.every > before
                    before = leaker.every
                    leaker.load_compacted()
                findings, _last = _audit(
                    commands, *(["--publish", "--yes"] * (len(counts) % 2)), may_be_incomplete=is_hit
                )
                orphans = _ids(findings, "ORPHAN")
                leaking.result(LEAK_SECONDS)
                listed |= orphans
                missed = before - orphans - (_ids(findings, "UNKNOWN") if is_hit else set())
                assert not missed, [row for row in findings if row.get("ledger_id") in missed] or missed
                assert not _missing(findings)
                assert not listed & _referred_to(cluster, (KEPT, *BUSY, *leaker.topics))
                counts.append(len(orphans & leaker.every))
        _audit(commands, "--publish", "--yes")
        service.run("run", "--until-idle", seconds=900)
        findings, _last = _audit(commands)

    kinds = {kind: len(ids) for kind, ids in leaker.leaked.items()}
    sys.stderr.write(
        f"true orphans {kinds}, found by {len(counts)} audits: {counts}; ever listed as orphans: {len(listed)}; "
    )
    sys.stderr.write(f"load: {load.done}\n")
    assert not listed & _referred_to(cluster, (KEPT, *BUSY, *leaker.topics))
    assert not leaker.every & ledger_list.every_ledger(cluster).keys()
    assert len(topics.read_all(cluster, KEPT)) >= load.kept + topics.ENTRIES_PER_LEDGER
    assert load.done.get("used", 0) > 5, load.done
    assert all(kinds.values()), kinds
    assert not _missing(findings)
