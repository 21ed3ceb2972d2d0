"""The table does not depend on which process reads which ledgers, and in which order."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import simulated_zookeeper
from streaming.audit.workers import Workers
from streaming.config.load import load
from streaming.space.reading.ledger_reading import LedgerReading, PartReader, ReadPart, in_processes
from streaming.space.reading.unread import Unread
from streaming.sweep.pace import Pace
from tests.builders import put
from tests.unit.space.cluster import Cluster, path_of
from udfs.paths import Layout
from udfs.space.ledger_table import LedgerTable


def columns(table: LedgerTable) -> list[object]:
    values = [getattr(table, name) for name in LedgerTable.__slots__]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def test_parts_in_any_order_become_the_same_table() -> None:
    cluster = Cluster()
    cluster.topic(1, 40_000, name="public/default/persistent/one")
    cluster.topic(2, 30_001, name="public/default/persistent/two")
    cluster.ledger(7, custom={})
    cluster.ledger(20_000, bookies=("bookie-1:3181", "bookie-9:3181"))
    for ledger_id in (3, 30_002):
        put(cluster.tree, path_of(ledger_id), b"damaged")

    def read(read_parts: PartReader | None = None) -> tuple[list[object], Unread]:
        reading = LedgerReading(cluster.store, "/ledgers", Layout.HIERARCHICAL, Pace(0), read_parts)
        unread, counts = Unread(), list[int]()
        table = reading.table(unread, counts.append)
        assert counts[-1] == 8
        return columns(table), unread

    def backwards(ids: Iterable[Sequence[int]]) -> Iterator[ReadPart]:
        reading = LedgerReading(cluster.store, "/ledgers", Layout.HIERARCHICAL, Pace(0))
        yield from reversed([*reading.parts([each] for of_part in ids for each in of_part)])

    assert read(backwards) == read()
    assert read()[1].ledgers == {3, 30_002}


def test_several_processes_read_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(simulated_zookeeper.SITE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(simulated_zookeeper.TOPICS, "410")
    store: Any = simulated_zookeeper.SimulatedStore()
    with closing(Workers(stop=threading.Event(), most=2, alone_seconds=0)) as workers:
        in_others = in_processes(workers, load(None), Layout.HIERARCHICAL, reads_per_second=0)  # no ZooKeeper runs here
        readings = [LedgerReading(store, "/ledgers", Layout.HIERARCHICAL, Pace(0), each) for each in (None, in_others)]
        here, there = [columns(each.table(Unread(), lambda _count: None)) for each in readings]
    assert here == there
