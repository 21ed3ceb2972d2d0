"""Iterators in threads: all values in the order of each iterator, errors, and no thread without a consumer."""

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.queries.delivery import side_by_side as module
from streaming.queries.delivery.side_by_side import side_by_side


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=5))
def test_all_that_each_yields_comes_in_its_order(lengths: list[int]) -> None:
    found = list(
        side_by_side([zip([number] * length, range(length), strict=True) for number, length in enumerate(lengths)])
    )
    assert len(found) == sum(lengths)
    for number, length in enumerate(lengths):
        assert [item for whose, item in found if whose == number] == list(range(length))


def test_they_wait_side_by_side() -> None:
    together = threading.Barrier(3)

    def waits() -> Iterator[int]:
        yield together.wait(10)

    assert sorted(side_by_side([waits() for _ in range(3)])) == [0, 1, 2]


@pytest.mark.parametrize("beside", [0, 1])
def test_an_error_of_one_is_raised(beside: int) -> None:
    def fails() -> Iterator[int]:
        yield 1
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        list(side_by_side([fails(), *(iter([2]) for _ in range(beside))]))


def test_a_consumer_that_stops_leaves_no_running_thread() -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(1)
            yield 1

    found = side_by_side([endless(), endless()])
    assert next(found) == 1
    time.sleep(0.2)
    assert len(taken) <= module._IN_MEMORY + 5, "no more in memory than that"
    found.close()  # type: ignore[attr-defined]
    deadline_s = time.monotonic() + 5
    while any(thread.name == "side-by-side" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
