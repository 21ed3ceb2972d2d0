"""The end of a read survives its way through a row."""

import pyarrow as pa
import pytest

from streaming import schemas
from streaming.queries.delivery.read_end import ReadEnd, end_in, end_row
from streaming.state.notes.lost_entries import Loss
from udfs import columns as c
from udfs.entry_ranges import EntrySpan

ENDS = [
    pytest.param(ReadEnd(None, "not read in time"), id="nothing was read"),
    pytest.param(
        ReadEnd((8, 2), "", 41, (EntrySpan(7, 0, 3), EntrySpan(8, 1, 1)), 7, (Loss((5, 4), True, "über :,"),)),
        id="everything",
    ),
]


@pytest.mark.parametrize("end", ENDS)
def test_a_row_contains_the_end_of_a_read(end: ReadEnd) -> None:
    batch = pa.RecordBatch.from_pylist([end_row("p", end)], schema=schemas.MESSAGE)
    (row,) = batch.to_pylist()
    assert (row[c.SOURCE], row[c.POSITION_BATCH]) == ("p", None)
    assert end_in(row) == end
