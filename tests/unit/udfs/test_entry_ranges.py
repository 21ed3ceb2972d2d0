"""Positions as ranges: what a batch must have read, and what of it is missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.entry_ranges import Range, Span, count_of, spans_of, split, without
from udfs.formats.internal_stats import BEFORE_ALL

LEDGERS = [(3, 2), (5, 0), (8, 3)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(Range(BEFORE_ALL, (8, 2)), [Span(3, 0, 1), Span(8, 0, 2)], id="everything"),
        pytest.param(Range((3, 0), (8, 1)), [Span(3, 1, 1), Span(8, 0, 1)], id="from within to within"),
        pytest.param(Range((3, 1), (8, 0)), [Span(8, 0, 0)], id="behind a ledger's last"),
        pytest.param(Range((8, 1), (8, 2)), [Span(8, 2, 2)], id="within a ledger"),
        pytest.param(Range((8, 2), (8, 2)), [], id="nothing"),
        pytest.param(Range((2, 9), (3, 0)), [Span(3, 0, 0)], id="from a ledger that was trimmed"),
        pytest.param(Range(BEFORE_ALL, (8, -1)), [Span(3, 0, 1)], id="to before a ledger's first"),
        pytest.param(Range(BEFORE_ALL, (9, 5)), [Span(3, 0, 1), Span(8, 0, 2)], id="to a ledger that is not listed"),
        pytest.param(Range(BEFORE_ALL, BEFORE_ALL), [], id="to before everything"),
    ],
)
def test_a_range_holds_what_is_stored_behind_its_begin_and_up_to_its_end(wanted: Range, expected: list[Span]) -> None:
    assert list(spans_of(LEDGERS, wanted)) == expected


@pytest.mark.parametrize(
    ("after", "upto", "is_empty"),
    [((3, 1), (3, 1), True), ((3, 1), (3, 0), True), ((3, 1), (3, 2), False), (BEFORE_ALL, BEFORE_ALL, True)],
)
def test_a_range_is_empty_where_its_end_is_not_behind_its_begin(
    after: tuple[int, int], upto: tuple[int, int], is_empty: bool
) -> None:
    assert Range(after, upto).is_empty is is_empty


@given(st.integers(0, 20), st.integers(0, 20), st.sets(st.integers(-2, 25)))
def test_what_is_missing_and_what_was_read_are_the_span(first: int, length: int, read: set[int]) -> None:
    span = Span(7, first, first + length)
    parts = list(without(span, read))
    missing = [entry for part in parts for entry in range(part.first, part.last + 1)]
    assert missing == [entry for entry in range(span.first, span.last + 1) if entry not in read]
    assert count_of(parts) == len(missing)
    assert all(part.ledger == 7 and part.first <= part.last for part in parts)


def test_spans_are_split_into_groups_of_a_size_and_nothing_is_left_out() -> None:
    spans = [Span(5, 0, 4), Span(6, 2, 2), Span(7, 0, 9)]
    groups = list(split(spans, 4))
    assert groups == [
        [Span(5, 0, 3)],
        [Span(5, 4, 4), Span(6, 2, 2), Span(7, 0, 1)],
        [Span(7, 2, 5)],
        [Span(7, 6, 9)],
    ]
    assert list(split([], 4)) == []
    assert list(split(spans, 100)) == [spans]
