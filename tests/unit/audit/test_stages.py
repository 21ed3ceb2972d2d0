"""A task runs once, however often its results are used, and unreadable paths are recorded."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, cast

import pyarrow as pa

from streaming.adapters.memory.store import MemoryStore
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import AuditOptions
from streaming.audit.certificate import Completeness
from streaming.audit.phase_progress import PhaseResult, Phases
from streaming.audit.stages import Engine, PhaseTools
from streaming.audit.tables import Tables
from streaming.audit.workers import Workers
from streaming.config.settings import Settings
from udfs import columns as c
from udfs.paths import Layout


def _tools(tables: Tables, workers: Workers) -> PhaseTools:
    return PhaseTools(
        settings=cast(Settings, None),
        options=AuditOptions(recheck_seconds=0),
        store=MemoryStore(),
        layout=Layout.HIERARCHICAL,
        phases=cast(Phases, None),
        engine=Engine(tables=tables, workers=workers, stop=workers.stop),
        completeness=Completeness(),
    )


def test_a_task_reads_once_before_the_next_phase_and_not_again_when_its_results_are_used(tables: Tables) -> None:
    sizes: list[int] = []

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sizes.append(batch.num_rows)
            yield pa.RecordBatch.from_pylist([{c.LEDGER_ID: len(sizes)}], schema=a.LISTED)

    with closing(Workers(stop=threading.Event(), most=1)) as workers:
        tools = _tools(tables, workers)
        locations = tools.locations([(f"/{number}", None) for number in range(7)])
        read_ids = tools.run(PhaseResult(), read, locations, a.LISTED, at_once=3)

    assert sizes == [3, 3, 1]
    assert (read_ids.count(), read_ids.count(c.LEDGER_ID), read_ids.count(a.PATH)) == (3, 3, 0)
    assert [row[c.LEDGER_ID] for row in read_ids.where(f"{c.LEDGER_ID} > 1").fetched()] == [2, 3]
    assert sizes == [3, 3, 1]


def test_paths_that_a_phase_could_not_read_are_recorded_and_make_the_audit_incomplete(tables: Tables) -> None:
    unread: dict[str, Any] = {a.PATH: "/ledgers/00/0001", c.DETAIL: "no right"}
    with closing(Workers(stop=threading.Event(), most=1)) as workers:
        tools = _tools(tables, workers)
        completeness = tools.completeness

        tools.note([("/ledgers/01", "away")], tables.of([{c.LEDGER_ID: 7}, unread, unread], a.LISTED))

    assert sorted(completeness.problems) == [("/ledgers/00/0001", "no right"), ("/ledgers/01", "away")]
    assert completeness.blocked_paths == ("/ledgers/00/0001", "/ledgers/01")
    assert not completeness.certificate(1, 2).is_complete
