"""Five minutes of brokers that roll, trim, offload, compact, delete, leak and crash while audits run and publish.

LEDGER_REAPER_LOAD_SECONDS makes it longer. Every round leaks anew, and its audit finds all that has leaked so far;
every third audit runs while a broker is being killed. Nothing that an owner refers to may ever be listed as an
orphan, and nothing that was never consumed may be lost, though the service works off all that the audits publish.
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
from streaming.sandbox import cluster_faults, ledger_list, part_clients, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.offloaded_ledgers import attempts, give_up_bookkeeper_copies
from streaming.sandbox.orphans import WORKER, consume_and_trim
from tests.integration.conftest import Deploy
from tests.integration.console import Console, console
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
    """Leaks by its own topics, in the windows W1 and W3, W6, W7, W8 and W9 of docs/findings.md, each at a crash."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topics: list[str] = []
        self.known: dict[str, set[int]] = {
            kind: set() for kind in ("data", "cursors", "schemas", "compacted", "copies")
        }
        self._made = 0
        self._next = self._make()

    @property
    def every(self) -> set[int]:
        """Ids of what has leaked so far and no one wrote to any more."""
        return set().union(*self.known.values())

    def leak(self) -> None:
        """Have a broker drop what it can't delete, and die. Half a minute."""
        # made before the last crash: the broker that lives now has recovered its cursor's ledger
        leaky, self._next = self._next, self._make()
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
        self._learn(leaky, ("data", "cursors", "schemas"))
        self._learn(compacted, ("compacted",))
        self._add("copies", {attempt.ledger_id for attempt in attempts(self.cluster, copied)})

    def load_compacted(self) -> None:
        """Have brokers load the topics that were compacted.

        Of one that a crash has unloaded, no znode names the compacted ledger in use, so its ledgers are UNKNOWN.
        """
        for topic in self.topics:
            if topic.endswith(_COMPACTED):
                topics.internal_stats(self.cluster, topic)

    def _make(self) -> str:
        self._made += 1
        topic = f"persistent://{NAMESPACE}/leaky-{self._made}"
        self.topics.append(topic)
        topics.post_schema_versions(self.cluster, topic, 2)
        topics.fill(self.cluster, topic, 4, [WORKER])
        topics.consume(self.cluster, topic, WORKER, 1)
        return topic

    def _compact(self, topic: str) -> None:
        topics.publish_keyed(self.cluster, topic, 20, keys=4)
        topics.compact(self.cluster, topic)

    def _learn(self, topic: str, kinds: tuple[str, ...]) -> None:
        lost = ledger_list.orphans(self.cluster, topic)
        for kind in kinds:
            self._add(kind, set(getattr(lost, kind)))

    def _add(self, kind: str, ids: set[int]) -> None:
        states = ledger_list.every_ledger(self.cluster)
        self.known[kind] |= {each for each in ids if each in states and states[each].state is LedgerState.CLOSED}


class _Load:
    """Threads that use the cluster as applications and operators do; what a crash breaks is tried again."""

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
            except Exception:  # the broker crashed under it, or was slow: applications try again
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
    """Every BookKeeper ledger that a list of the topics names now, in ZooKeeper or in a broker."""
    hosts = cluster.addresses.zookeeper
    paths = [managed_ledger_path(managed_ledger_name(topic)) for topic in names]
    found = {
        ledger_id for data in part_clients.read_znodes(hosts, paths).values() for ledger_id in in_use_ids(data).ids
    }
    for topic in names:
        with contextlib.suppress(ReaperError):
            stats = topics.internal_stats(cluster, topic)
            found |= {cursor["cursorLedger"] for cursor in stats["cursors"].values()} - {-1}
            found |= {ledger["ledgerId"] for ledger in stats.get("schemaLedgers", [])}
            found |= {(stats.get("compactedLedger") or {}).get("ledgerId", -1)} - {-1}
    return found


def _audit(
    commands: Console, *options: str, may_be_incomplete: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """may_be_incomplete: a broker dies meanwhile, and what it owns can't be judged; a publication then ends with 4."""
    arguments = ("audit", "--recheck-seconds", "2", "--namespace", NAMESPACE, *options)
    codes = (0, 4) if may_be_incomplete else (0,)
    *findings, last = commands.json(*arguments, code=codes)
    return findings, last


def _missing(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in findings if row["class"] == "MISSING"]


def _ids(findings: list[dict[str, Any]], finding_class: str) -> set[int]:
    wanted = (finding_class, "LEDGER")
    return {row["ledger_id"] for row in findings if (row["class"], row["ledger_type"]) == wanted}


def test_nothing_in_use_is_listed_or_lost_while_brokers_go_on_and_leak(cluster: Cluster, deploy: Deploy) -> None:
    topics.admin(cluster, "PUT", f"namespaces/{NAMESPACE}")
    topics.fill(cluster, KEPT, 1, ["never"])
    service, leaker = deploy(), _Leaker(cluster)
    ever: set[int] = set()
    found: list[int] = []  # true orphans, audit by audit
    ends = time.monotonic() + SECONDS
    with console(str(service.config)) as commands, ThreadPoolExecutor(1) as aside:
        with _Load(cluster).running() as load:
            while time.monotonic() < ends or len(found) < 3:
                is_hit = len(found) % 3 == 2
                before = leaker.every
                leaking = aside.submit(leaker.leak)
                if not is_hit:
                    leaking.result(LEAK_SECONDS)
                    assert leaker.every > before
                    before = leaker.every
                    leaker.load_compacted()
                findings, _last = _audit(
                    commands, *(["--publish", "--yes"] * (len(found) % 2)), may_be_incomplete=is_hit
                )
                orphans = _ids(findings, "ORPHAN")
                leaking.result(LEAK_SECONDS)
                ever |= orphans
                missed = before - orphans - (_ids(findings, "UNKNOWN") if is_hit else set())
                assert not missed, [row for row in findings if row.get("ledger_id") in missed] or missed
                assert not _missing(findings)
                assert not ever & _referred_to(cluster, (KEPT, *BUSY, *leaker.topics))
                found.append(len(orphans & leaker.every))
        _audit(commands, "--publish", "--yes")
        service.run("run", "--until-idle", seconds=900)
        findings, _last = _audit(commands)

    kinds = {kind: len(ids) for kind, ids in leaker.known.items()}
    sys.stderr.write(
        f"true orphans {kinds}, found by {len(found)} audits: {found}; called orphans in all: {len(ever)}; "
    )
    sys.stderr.write(f"load: {load.done}\n")
    assert not ever & _referred_to(cluster, (KEPT, *BUSY, *leaker.topics))
    assert not leaker.every & ledger_list.every_ledger(cluster).keys()
    assert len(topics.read_all(cluster, KEPT)) >= load.kept + topics.ENTRIES_PER_LEDGER
    assert load.done.get("used", 0) > 5, load.done
    assert all(kinds.values()), kinds
    assert not _missing(findings)
