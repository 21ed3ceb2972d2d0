"""The functions over record batches: the boundaries between batches make no difference."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from streaming import schemas
from tests.unit.udfs.test_entry_ranges import delivered
from udfs import columns as c
from udfs.entry_ranges import MessageAddress, runs_of
from udfs.formats.message_id import MessagePosition, serialize_message_id
from udfs.spark import RAW, annotate, entry_runs

POSITIONS = pa.schema([schemas.MESSAGE.field(name) for name in (*c.POSITION, c.ROW)])


def _batches(rows: list[MessageAddress], cuts: list[int]) -> Iterator[pa.RecordBatch]:
    named = [dict(zip(POSITIONS.names, (*row, number), strict=True)) for number, row in enumerate(rows)]
    whole = pa.Table.from_pylist(named, schema=POSITIONS)
    whole = whole.combine_chunks()
    ends = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    for begin, end in pairwise(ends):
        part = whole.slice(begin, end - begin).to_batches()
        yield part[0] if part else pa.RecordBatch.from_pylist([], schema=POSITIONS)


@given(delivered(), st.lists(st.integers(0, 200), max_size=6))
def test_runs_of_entries_continue_over_the_ends_of_record_batches(rows: list[MessageAddress], cuts: list[int]) -> None:
    runs = [row for batch in entry_runs(_batches(rows, cuts), schemas.RUN) for row in batch.to_pylist()]
    assert [tuple(row.values())[:-1] for row in runs] == [
        (source, run.ledger, run.first, run.last, ok) for source, run, ok in runs_of(rows)
    ]
    greatest = {source: max(row[c.ROW] for row in runs if row[c.SOURCE] == source) for source, *_ in rows}
    assert all(number <= greatest[source] < len(rows) for number, (source, *_) in enumerate(rows))


def test_very_many_runs_become_record_batches_of_a_bounded_size() -> None:
    rows = [("a", 7, 2 * n, -1) for n in range(2_500)]
    batches = list(entry_runs(_batches(rows, []), schemas.RUN))
    assert [batch.num_rows for batch in batches] == [1000, 1000, 500]
    assert [*batches[2].to_pylist()[-1].values()] == ["a", 7, 4998, 4998, True, 2499]


def _raw(places: list[MessageAddress]) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = [
        (source, serialize_message_id(MessagePosition(ledger, entry, 0, index)), 1, b"k", b"{}", [])
        for source, ledger, entry, index in places
    ]
    types = [pa.string(), pa.binary(), pa.int64(), pa.binary(), pa.binary(), pa.map_(pa.string(), pa.string())]
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(types)]
    return pa.RecordBatch.from_arrays(columns, names=list(RAW))


def test_a_repeated_message_has_no_second_row_and_takes_no_number() -> None:
    once = [("a", 5, n, -1) for n in range(60)] + [("a", 5, 60, 0), ("a", 5, 60, 1)]
    again = [("a", 5, n, -1) for n in range(40, 60)] + [("a", 5, 60, n) for n in range(3)] + [("a", 6, 0, -1)]
    other = [("b", 5, 0, -1), ("b", 5, 1, -1), ("b", 5, 0, -1), ("a", 5, 0, -1)]
    batches = [_raw(once), _raw([*again, *other])]
    rows = [row for batch in annotate(iter(batches), schemas.MESSAGE, 100) for row in batch.to_pylist()]
    places = [tuple(row[name] for name in c.POSITION) for row in rows]
    assert places == [*once, ("a", 5, 60, 2), ("a", 6, 0, -1), ("b", 5, 0, -1), ("b", 5, 1, -1), ("a", 5, 0, -1)]
    assert [row[c.ROW] for row in rows] == [*range(64), 0, 1, 0]
