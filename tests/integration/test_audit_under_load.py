"""Five minutes of brokers that create, roll, trim, offload, compact, delete and crash while audits run and publish.

LEDGER_REAPER_LOAD_SECONDS makes it longer. Nothing that an owner refers to may ever be listed as an orphan, and
nothing that was never consumed may be lost, though the service works off all that the audits publish.
"""

import contextlib
import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streaming.adapters import sandbox_clients as clients
from streaming.errors import ReaperError
from streaming.sandbox import faults, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.home import Part
from tests.integration.conftest import Deployment
from tests.integration.console import Console, console
from udfs.formats.managed_ledger import in_use_ids
from udfs.paths import managed_ledger_name, managed_ledger_path

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(2400)]

SECONDS = float(os.environ.get("LEDGER_REAPER_LOAD_SECONDS", "300"))
NAMESPACE = f"public/load-{uuid.uuid4().hex[:6]}"
KEPT = f"persistent://{NAMESPACE}/kept"
BUSY = [f"persistent://{NAMESPACE}/busy-{n}" for n in range(4)]
BATCH = 3 * topics.ENTRIES_PER_LEDGER


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
        name, act = self._random.choice(
            [
                ("offload", lambda: topics.offload(self.cluster, topic)),
                ("unload", lambda: topics.unload(self.cluster, topic)),
                ("delete", lambda: topics.delete_topic(self.cluster, topic)),
                ("schema", lambda: topics.post_schema_versions(self.cluster, topic, 2)),
                ("unsubscribe", lambda: topics.delete_subscription(self.cluster, topic, "s")),
                ("compact", lambda: topics.compact(self.cluster, topic)),
            ]
        )
        act()
        self._count(name)

    def _count(self, name: str) -> None:
        self.done[name] = self.done.get(name, 0) + 1


def _referred_to(cluster: Cluster) -> set[int]:
    """Every BookKeeper ledger that a list of the namespace's topics names now, in ZooKeeper or in a broker."""
    hosts = cluster.addresses.zookeeper
    paths = [managed_ledger_path(managed_ledger_name(topic)) for topic in (KEPT, *BUSY)]
    found = {ledger_id for data in clients.read_znodes(hosts, paths).values() for ledger_id in in_use_ids(data).ids}
    for topic in (KEPT, *BUSY):
        with contextlib.suppress(ReaperError):
            stats = topics.internal_stats(cluster, topic)
            found |= {cursor["cursorLedger"] for cursor in stats["cursors"].values()} - {-1}
            found |= {ledger["ledgerId"] for ledger in stats.get("schemaLedgers", [])}
            found |= {(stats.get("compactedLedger") or {}).get("ledgerId", -1)} - {-1}
    return found


def _audit(commands: Console, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *findings, last = commands.json("audit", "--recheck-seconds", "2", "--namespace", NAMESPACE, *options)
    return findings, last


def _missing(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses are told whatever the filters: those of other tests' topics are none of ours."""
    return [row for row in findings if row["class"] == "MISSING" and f"/{NAMESPACE}/" in (row["topic"] or "")]


def test_nothing_in_use_is_listed_or_lost_while_brokers_go_on(
    cluster: Cluster, deploy: Callable[..., Deployment]
) -> None:
    topics.admin(cluster, "PUT", f"namespaces/{NAMESPACE}")
    topics.fill(cluster, KEPT, 1, ["never"])
    service = deploy()
    ever: set[int] = set()
    audits = 0
    ends = time.monotonic() + SECONDS
    with console(str(service.config)) as commands:
        with _Load(cluster).running() as load:
            while time.monotonic() < ends or audits < 2:
                findings, _last = _audit(commands, "--publish") if audits % 2 else _audit(commands)
                orphans = {r["ledger_id"] for r in findings if (r["class"], r["ledger_type"]) == ("ORPHAN", "LEDGER")}
                ever |= orphans
                assert not _missing(findings)
                assert not ever & _referred_to(cluster)
                audits += 1
                if audits == 2:
                    faults.kill(cluster, Part.BROKER)
                    faults.restart(cluster, Part.BROKER)
        service.run("run", "--until-idle", seconds=900)
        findings, _last = _audit(commands)

    sys.stderr.write(f"{audits} audits in {SECONDS:.0f} s called {len(ever)} ledgers orphans; load: {load.done}\n")
    assert not ever & _referred_to(cluster)
    assert len(topics.read_all(cluster, KEPT)) >= load.kept + topics.ENTRIES_PER_LEDGER
    assert load.done.get("used", 0) > 5, load.done
    assert ever
    assert not _missing(findings)
