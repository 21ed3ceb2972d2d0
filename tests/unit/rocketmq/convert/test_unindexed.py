import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.rocketmq.convert.unindexed import merged

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda each: (each[0], sum(each))))


@given(RANGES)
def test_joined_ranges_cover_the_same_bytes_and_neither_overlap_nor_touch(ranges: Sequence[tuple[int, int]]) -> None:
    starts, ends = merged(*(np.array([each[side] for each in ranges], dtype=np.int64) for side in (0, 1)))
    joined = list(zip(starts.tolist(), ends.tolist(), strict=True))
    assert {byte for start, end in joined for byte in range(start, end)} == {
        byte for start, end in ranges for byte in range(start, end)
    }
    assert all(after[0] > before[1] for before, after in itertools.pairwise(joined))


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(0, 5), (5, 9)], [(0, 9)]),
        ([(6, 9), (0, 5)], [(0, 5), (6, 9)]),
        ([(0, 9), (2, 3), (10, 11)], [(0, 9), (10, 11)]),
    ],
    ids=["touching", "apart", "one within another"],
)
def test_ranges_are_joined_where_they_touch(ranges: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    pairs = np.array(ranges, dtype=np.int64)
    starts, ends = merged(pairs[:, 0], pairs[:, 1])
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected
