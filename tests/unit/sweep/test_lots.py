"""A sweep works off many requests at once, but not many megabytes."""

import pyarrow as pa
import pytest

from streaming.sweep.lots import LOT_BYTES, LOT_ROWS, lots


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
        pytest.param([0] * 3, 1, [3], id="small ones together"),
        pytest.param([0] * 6, LOT_ROWS // 5, [LOT_ROWS, LOT_ROWS // 5], id="as many as share round trips"),
        pytest.param([LOT_BYTES // 2] * 3, 1, [1, 1, 1], id="with what stands around them, two are too large"),
        pytest.param([LOT_BYTES // 3] * 3, 2, [4, 2], id="as many as fit"),
        pytest.param([LOT_BYTES * 2, 0], 1, [1, 1], id="one that is too large, alone"),
    ],
)
def test_record_batches_are_put_together_up_to_a_number_of_rows_and_of_bytes(
    sizes: list[int], rows: int, expected: list[int]
) -> None:
    found = list(lots(_batches(sizes, rows)))
    assert [len(lot) for lot in found] == expected
    assert [(row["number"], row["row"]) for lot in found for row in lot] == [
        (number, row) for number in range(len(sizes)) for row in range(rows)
    ]
