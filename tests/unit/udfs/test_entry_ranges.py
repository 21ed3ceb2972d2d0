"""Ranges of positions: the entries that a batch must have read, and those that are missing."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.entry_ranges import (
    EntrySpan,
    MessageAddress,
    Range,
    bytes_of,
    count_of,
    runs_of,
    spans_of,
    split,
    whole_of,
    without,
)
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats

LEDGERS = [(3, 2), (5, 0), (8, 3)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(Range(BEFORE_ALL, (8, 2)), [EntrySpan(3, 0, 1), EntrySpan(8, 0, 2)], id="everything"),
        pytest.param(Range((3, 0), (8, 1)), [EntrySpan(3, 1, 1), EntrySpan(8, 0, 1)], id="from within to within"),
        pytest.param(Range((3, 1), (8, 0)), [EntrySpan(8, 0, 0)], id="after a ledger's last"),
        pytest.param(Range((8, 1), (8, 2)), [EntrySpan(8, 2, 2)], id="within a ledger"),
        pytest.param(Range((8, 2), (8, 2)), [], id="nothing"),
        pytest.param(Range((2, 9), (3, 0)), [EntrySpan(3, 0, 0)], id="from a ledger that was trimmed"),
        pytest.param(Range(BEFORE_ALL, (8, -1)), [EntrySpan(3, 0, 1)], id="to before a ledger's first"),
        pytest.param(
            Range(BEFORE_ALL, (9, 5)), [EntrySpan(3, 0, 1), EntrySpan(8, 0, 2)], id="to a ledger that is not listed"
        ),
        pytest.param(Range(BEFORE_ALL, BEFORE_ALL), [], id="to before everything"),
    ],
)
def test_a_range_contains_the_stored_entries_after_its_start_up_to_its_end(
    limits: Range, expected: list[EntrySpan]
) -> None:
    assert list(spans_of(LEDGERS, limits)) == expected


@pytest.mark.parametrize(
    ("after", "upto", "is_empty"),
    [((3, 1), (3, 1), True), ((3, 1), (3, 0), True), ((3, 1), (3, 2), False), (BEFORE_ALL, BEFORE_ALL, True)],
)
def test_a_range_is_empty_unless_its_end_is_after_its_start(
    after: tuple[int, int], upto: tuple[int, int], is_empty: bool
) -> None:
    assert Range(after, upto).is_empty is is_empty


SPANS = st.lists(
    st.builds(lambda ledger, at, more: EntrySpan(ledger, at, at + more), *(st.integers(0, most) for most in (1, 30, 9)))
)


def entries_of(spans: Iterable[EntrySpan]) -> list[tuple[int, int]]:
    return [(span.ledger, entry) for span in spans for entry in range(span.first, span.last + 1)]


@given(SPANS, SPANS)
def test_missing_and_read_entries_together_are_the_spans(spans: list[EntrySpan], read: list[EntrySpan]) -> None:
    parts = list(without(spans, read))
    missing = entries_of(parts)
    assert missing == sorted(set(entries_of(spans)) - set(entries_of(read)))
    assert count_of(parts) == len(missing)
    assert all(part.first <= part.last for part in parts)


def test_spans_are_split_into_batches_of_a_size_without_loss() -> None:
    spans = [EntrySpan(5, 0, 4), EntrySpan(6, 2, 2), EntrySpan(7, 0, 9)]
    groups = list(split(spans, 4))
    assert groups == [
        [EntrySpan(5, 0, 3)],
        [EntrySpan(5, 4, 4), EntrySpan(6, 2, 2), EntrySpan(7, 0, 1)],
        [EntrySpan(7, 2, 5)],
        [EntrySpan(7, 6, 9)],
    ]
    assert list(split([], 4)) == []
    assert list(split(spans, 100)) == [spans]


@st.composite
def delivered(draw: st.DrawFn) -> list[MessageAddress]:
    """Messages in the order of their positions: entries and indices may be missing, and earlier ones repeated."""
    rows: list[MessageAddress] = []
    for partition in draw(st.lists(st.sampled_from("ab"), unique=True)):
        for ledger in sorted(draw(st.sets(st.integers(1, 3)))):
            for entry in sorted(draw(st.sets(st.integers(0, 6)))):
                size = draw(st.integers(0, 4))
                kept = draw(st.sets(st.integers(0, size - 1), min_size=1)) if size else {-1}
                rows += [(partition, ledger, entry, index) for index in sorted(kept)]
    for _ in range(draw(st.integers(0, 4)) if rows else 0):
        at = draw(st.integers(1, len(rows)))
        again = draw(st.integers(0, at - 1))
        if rows[again][:2] == rows[at - 1][:2]:  # a reader that connects again starts at an entry that it had
            again = next(n for n, row in enumerate(rows) if row[:3] == rows[again][:3])
            rows[at:at] = rows[again:at]
    return rows


def is_whole(rows: Iterable[MessageAddress]) -> set[tuple[str, int, int]]:
    """The model: the entries without a missing index up to the newest."""
    indices: dict[tuple[str, int, int], set[int]] = {}
    for row in rows:
        indices.setdefault(row[:3], set()).add(row[3])
    return {entry for entry, some in indices.items() if some >= set(range(max(some) + 1))}


def found_whole(rows: Iterable[MessageAddress]) -> set[tuple[str, int, int]]:
    runs = list(runs_of(rows))
    return {
        (partition, *entry)
        for partition in {partition for partition, *_ in runs}
        for entry in entries_of(whole_of((span, ok) for source, span, ok in runs if source == partition))
    }


@given(delivered())
def test_runs_name_the_entries_that_were_delivered_whole_also_after_repetitions(rows: list[MessageAddress]) -> None:
    assert found_whole(rows) == is_whole(rows)


@given(delivered(), st.randoms(use_true_random=False))
def test_no_incomplete_entry_counts_as_whole_in_any_order_of_messages(rows: list[MessageAddress], order: Any) -> None:
    order.shuffle(rows)
    assert found_whole(rows) <= is_whole(rows)


def test_an_entry_that_was_interrupted_and_repeated_with_a_gap_is_not_whole() -> None:
    assert found_whole([("a", 7, 3, 0), ("a", 7, 2, -1), ("a", 7, 3, 0), ("a", 7, 3, 2)]) == {("a", 7, 2)}


@given(st.dictionaries(st.integers(1, 9), st.sets(st.integers(0, 39), max_size=5), max_size=4))
def test_the_number_of_runs_grows_with_ledgers_and_gaps_not_with_messages(lacking: dict[int, set[int]]) -> None:
    places = [
        ("a", ledger, entry, index)
        for ledger, some in sorted(lacking.items())
        for entry in range(40)
        for index in range(3)
        if index != 1 or entry not in some
    ]
    assert len(list(runs_of(places))) <= sum(1 + 2 * len(some) for some in lacking.values())


def test_a_ledger_that_is_read_in_part_counts_its_share_of_the_bytes() -> None:
    stats = InternalStats(ledgers=((5, 10), (6, 4)), cursors={}, pending_adds=0, sizes={5: 1000, 6: 80})
    assert bytes_of([EntrySpan(5, 8, 9), EntrySpan(6, 0, 3)], stats) == 280
    assert bytes_of([EntrySpan(5, 8, 9)], InternalStats(ledgers=((5, 10),), cursors={}, pending_adds=0)) == 0
