import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udfs.formats.errors import FormatError
from udfs.snapshots.varints import decode, encode, row_bytes

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)


def _columns(rows: list[tuple[int, int]]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return [table[:, 0].copy(), table[:, 1].copy()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(LONGS, LONGS), max_size=20))
def test_rows_come_back_as_they_were(rows: list[tuple[int, int]]) -> None:
    data = encode(_columns(rows))
    columns, end = decode(b"x" + data + b"rest", 1, len(rows), 2)
    assert list(zip(columns[0].tolist(), columns[1].tolist(), strict=True)) == rows
    assert end == 1 + len(data)
    assert int(row_bytes(_columns(rows)).sum()) == len(data)


def test_rows_of_several_blocks_come_back() -> None:
    numbers = np.arange(-70_000, 70_000, dtype=np.int64) * 12_345
    data = encode([numbers, -numbers])
    columns, end = decode(data, 0, len(numbers), 2)
    assert (columns[0] == numbers).all()
    assert (columns[1] == -numbers).all()
    assert end == len(data)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        pytest.param(b"\x02\x02", 3, id="more rows than bytes"),
        pytest.param(b"\x02\x80", 2, id="a number that does not end"),
        pytest.param(b"\x80" * 10 + b"\x01", 1, id="a number of eleven bytes"),
        pytest.param(b"\x02", 1 << 62, id="rows that no memory holds"),
        pytest.param(b"\x02", -1, id="fewer rows than none"),
    ],
)
def test_what_is_no_row_is_refused(data: bytes, rows: int) -> None:
    with pytest.raises(FormatError):
        decode(data, 0, rows, 1)
