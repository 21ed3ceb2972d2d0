"""A simulated ZooKeeper of any size that computes each answer, so that it needs no memory and no network.

Every topic has LEDGERS ledgers, including its cursor's and a leaked ledger that the topic's list does not name; the
list of every 1000th topic names a ledger that does not exist. SITE, as sitecustomize.py in a folder of PYTHONPATH,
installs it in all Python processes that start, including Spark's workers.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from streaming import clients
from streaming.ports import Unreadable, Znode
from udfs.formats.ledger_metadata import serialize_v3
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.records import LedgerMetadata, LedgerState

SITE = "from bench import simulated_zookeeper\n\nsimulated_zookeeper.install()\n"
TOPICS = "LEDGER_REAPER_BENCH_TOPICS"  # environment variable with the number of topics, which the workers inherit
LEDGERS = 100
NAMESPACES = 50
LOST_EVERY = 1_000
BORN_MS = 1_700_000_000_000
_LEAKED, _CURSOR = (
    2,
    LEDGERS - 2,
)  # the list names newer ledgers than the leaked ledger, which would otherwise count as too young
_FIXED = {
    "/ledgers/LAYOUT": b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
    "/ledgers/INSTANCEID": b"made-up",
}


class SimulatedStore:
    """The part of MetadataStore that audits and `space` use."""

    cpu_seconds = 0.0  # for the answers of all stores of this process

    @cached_property
    def topics(self) -> int:
        return int(os.environ[TOPICS])

    def read_many(self, paths: Sequence[str]) -> list[Znode | Unreadable | None]:
        with self._counted():
            return [
                None
                if (data := self._data(path)) is None
                else Znode(data=data, version=1, ctime_ms=BORN_MS, mtime_ms=BORN_MS)
                for path in paths
            ]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        with self._counted():
            return [self._children(path) for path in paths]

    def close(self) -> None:
        """There is nothing to close."""

    @contextmanager
    def _counted(self) -> Iterator[None]:
        started_s = time.thread_time()
        yield
        SimulatedStore.cpu_seconds += time.thread_time() - started_s

    def _data(self, path: str) -> bytes | None:
        if path in _FIXED or not path.startswith(("/ledgers/", "/managed-ledgers/")):
            return _FIXED.get(path)
        if path.startswith("/ledgers/"):
            digits = path.removeprefix("/ledgers/").replace("/", "").replace("L", "")
            return self._ledger(int(digits)) if digits.isdecimal() else None
        topic, _, cursor = path.rpartition("/t")[2].partition("/")
        return self._cursor(int(topic)) if cursor else self._list(int(topic))

    def _children(self, path: str) -> list[str] | None:
        parts = path.strip("/").split("/")
        if parts[0] == "ledgers":
            return list(self._folders(parts[1:]))
        if parts[0] != "managed-ledgers":
            return None
        below: list[list[str]] = [["public"], [f"ns{n}" for n in range(NAMESPACES)], ["persistent"]]
        if len(parts) <= len(below):
            return below[len(parts) - 1]
        if len(parts) == len(below) + 1:
            return [f"t{topic}" for topic in range(int(parts[2][2:]), self.topics, NAMESPACES)]
        return ["reader"] if len(parts) == len(below) + 2 else []

    def _folders(self, parts: Sequence[str]) -> Iterator[str]:
        """Return the children in the tree of ledgers, whose levels have 2, 4 and 4 digits of the id."""
        if parts and parts[0] == "available":
            return
        digits, wide = "".join(parts), 4 if parts else 2
        unit = 10 ** (10 - len(digits) - wide)
        first = int(digits or 0) * 10**wide * unit
        for number in range(10**wide):
            if first + number * unit >= self.topics * LEDGERS:
                return
            yield f"{'L' if unit == 1 else ''}{number:0{wide}d}"

    def _list(self, topic: int) -> bytes:
        places = (place for place in range(LEDGERS) if place not in (_LEAKED, _CURSOR))
        ledgers = [
            LedgerInfo(ledger_id=topic + place * self.topics, entries=1_000, size_bytes=1 << 20, timestamp_ms=BORN_MS)
            for place in places
        ]
        if topic % LOST_EVERY == 0:
            ledgers.append(
                LedgerInfo(
                    ledger_id=topic + LEDGERS * self.topics, entries=1_000, size_bytes=1 << 20, timestamp_ms=BORN_MS
                )
            )
        return serialize_managed_ledger(ManagedLedgerInfo(tuple(ledgers)))

    def _cursor(self, topic: int) -> bytes:
        return serialize_cursor(ManagedCursorInfo(cursors_ledger_id=topic + _CURSOR * self.topics))

    def _ledger(self, ledger_id: int) -> bytes | None:
        topic, place = ledger_id % self.topics, ledger_id // self.topics
        if place >= LEDGERS:
            return None
        custom = {
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": f"public/ns{topic % NAMESPACES}/persistent/t{topic}".encode(),
        }
        return serialize_v3(
            LedgerMetadata(
                state=LedgerState.CLOSED,
                length_bytes=1 << 20,
                last_entry_id=999,
                ctime_ms=BORN_MS,
                custom_metadata=custom,
            )
        )


def install() -> None:
    """Use the simulated ZooKeeper for every client of this process, and of the processes that fork from it."""
    store = SimulatedStore()
    clients.store_for = lambda _settings: store  # type: ignore[attr-defined, assignment, return-value]
    clients.open_store = lambda _settings: store  # type: ignore[assignment, return-value]
