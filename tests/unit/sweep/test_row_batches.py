"""A sweep processes many requests at once, but not many megabytes."""

import pyarrow as pa
import pytest

from streaming.sweep.task import BATCH_BYTES, BATCH_ROWS, row_batches


def _batches(sizes: list[int], rows: int) -> list[pa.RecordBatch]:
    """A record batch for each size in bytes."""
    return [
        pa.RecordBatch.from_pylist(
            [{"number": number, "row": row, "payload": b"x" * (size // rows)} for row in range(rows)],
            pa.schema([("number", pa.int64()), ("row", pa.int64()), ("payload", pa.binary())]),
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [
        pytest.param([], 1, [], id="nothing"),
        pytest.param([0] * 3, 1, [3], id="small batches are combined"),
        pytest.param([0] * 6, BATCH_ROWS // 5, [BATCH_ROWS, BATCH_ROWS // 5], id="at most BATCH_ROWS"),
        pytest.param([BATCH_BYTES // 2] * 3, 1, [1, 1, 1], id="two halves and their overhead are too large"),
        pytest.param([BATCH_BYTES // 3] * 3, 2, [4, 2], id="as many as fit"),
        pytest.param([BATCH_BYTES * 2, 0], 1, [1, 1], id="a batch that is too large stays alone"),
    ],
)
def test_record_batches_are_combined_up_to_a_number_of_rows_and_of_bytes(
    sizes: list[int], rows: int, expected: list[int]
) -> None:
    combined = list(row_batches(_batches(sizes, rows)))
    assert [len(batch) for batch in combined] == expected
    assert [(row["number"], row["row"]) for batch in combined for row in batch] == [
        (number, row) for number in range(len(sizes)) for row in range(rows)
    ]
