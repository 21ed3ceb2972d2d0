import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.rocketmq import queue_units as u

GOLDEN = bytes.fromhex("0000000000001234000000fffffffffffffffffe")
LONGS = st.integers(0, 2**63 - 1)
UNIT = st.tuples(LONGS, st.integers(1, 2**31 - 1), st.integers(-(2**63), 2**63 - 1))


def made(*rows: tuple[int, int, int]) -> u.Units:
    return u.decode(b"".join(struct.pack(">qiq", *row) for row in rows))


def test_a_unit_is_read_and_written_as_a_broker_writes_it() -> None:
    read = u.decode(GOLDEN)
    assert (int(read.phy[0]), int(read.size[0]), int(read.tags[0])) == (0x1234, 255, -2)
    assert u.encode(read) == GOLDEN


@given(st.lists(UNIT, max_size=20))
def test_any_units_come_back_in_native_order_and_leave_in_that_of_the_disk(drawn: list[tuple[int, int, int]]) -> None:
    raw = b"".join(struct.pack(">qiq", *row) for row in drawn)
    read = u.decode(raw)
    joined = u.Units(*(np.concatenate((column, column)) for column in read))  # type: ignore[arg-type]
    assert all(column.dtype.isnative for column in joined)
    assert u.encode(joined) == raw * 2


def test_bytes_after_the_last_complete_unit_are_skipped() -> None:
    assert u.decode(GOLDEN + b"\0" * 19).rows == 1


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        pytest.param([(0, 100, 0), (100, 50, 0)], 2, id="all written"),
        pytest.param([(0, 100, 0), (0, 0, 0), (200, 50, 0)], 1, id="a unit without a size ends it"),
        pytest.param([(-1, 100, 0)], 0, id="a negative place ends it"),
    ],
)
def test_written_units_end_at_the_first_that_is_not(rows: list[tuple[int, int, int]], count: int) -> None:
    written = u.is_written(made(*rows)).tolist()
    assert [*written, False].index(False) == count


def test_a_unit_is_live_if_the_log_has_its_message_and_it_fills_no_gap() -> None:
    rows = made((0, u.BLANK_SIZE, 0), (0, 100, 0), (999, 100, 0), (1000, 100, 0))
    assert u.is_live(rows, 0).tolist() == [False, True, True, True]
    assert u.is_live(rows, 1000).tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("rows", "bad"),
    [
        pytest.param([(100, 50, 0), (150, 50, 0)], None, id="all well"),
        pytest.param([(100, 50, 0), (150, 0, 0)], (1, "was not written"), id="a hole"),
        pytest.param([(99, 50, 0)], (0, "points before the commitlog"), id="one byte before the log"),
        pytest.param([(951, 50, 0)], (0, "points after the end"), id="one byte behind its end"),
        pytest.param([(950, 50, 0)], None, id="to its last byte"),
        pytest.param([(200, 500, 0), (950, 50, 0)], None, id="to its last byte, behind a longer one"),
        pytest.param([(2**63 - 1, 50, 0)], (0, "points after the end"), id="where numbers end"),
        pytest.param([(200, 50, 0), (200, 50, 0)], (1, "points before the unit"), id="twice the same message"),
        pytest.param([(200, 50, u.EXT_ADDRESS_MAX)], (0, "has its tags in a ConsumeQueueExt"), id="an address"),
        pytest.param([(200, 50, u.EXT_ADDRESS_MAX + 1)], None, id="the smallest hash"),
    ],
)
def test_the_first_bad_unit_is_named(rows: list[tuple[int, int, int]], bad: tuple[int, str] | None) -> None:
    found = u.first_bad(made(*rows), 100, 1000)
    assert (found is None) == (bad is None)
    if found is not None and bad is not None:
        assert found[0] == bad[0]
        assert found[1].startswith(bad[1])


NEAR = st.tuples(st.integers(95, 130), st.integers(-1, 12), st.integers(u.EXT_ADDRESS_MAX, u.EXT_ADDRESS_MAX + 3))


@given(st.lists(NEAR, max_size=6), st.booleans())
def test_the_fast_check_and_the_slow_check_agree_about_bad_units(
    drawn: list[tuple[int, int, int]], are_sorted: bool
) -> None:
    rows = sorted(drawn) if are_sorted else drawn
    before, bad = -1, None
    for place, (phy, size, tags) in enumerate(rows):
        is_well = size > 0 and 100 <= phy <= 130 - size and phy > before and tags > u.EXT_ADDRESS_MAX
        if not is_well:
            bad = place
            break
        before = phy
    found = u.first_bad(made(*rows), 100, 130)
    assert (None if found is None else found[0]) == bad
