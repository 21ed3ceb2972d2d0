"""The rules of accounts, by position: read entries, missing entries and lost ledgers."""

import pytest

from streaming.reconcile.partition_entries import PartitionEntries, lost_ledgers, missing_of, split_at
from udfs.entry_ranges import EntrySpan


@pytest.mark.parametrize(
    ("committed", "read", "unread"),
    [
        pytest.param((-1, -1), {5: 0, 6: 0}, {5: 3, 6: 2}, id="nothing read yet"),
        pytest.param((5, 1), {5: 2, 6: 0}, {5: 3, 6: 2}, id="within the first ledger"),
        pytest.param((5, 2), {5: 3, 6: 0}, {6: 2}, id="at its end"),
        pytest.param((6, -1), {5: 3, 6: 0}, {6: 2}, id="before the second"),
        pytest.param((6, 1), {5: 3, 6: 2}, {}, id="everything"),
        pytest.param((7, 0), {5: 3, 6: 2}, {}, id="after everything"),
    ],
)
def test_entries_up_to_the_committed_position_are_read(
    committed: tuple[int, int], read: dict[int, int], unread: dict[int, int]
) -> None:
    split = split_at(committed, [(5, 3), (6, 2)])
    assert (split.read, split.unread) == (read, unread)


def test_an_entry_without_receipt_is_missing_wherever_it_is() -> None:
    split = split_at((6, 0), [(5, 3), (6, 2)])
    assert missing_of(split, {5: {0, 1, 2}, 6: {0}}) == []
    assert missing_of(split, {5: {0, 2}, 6: {0}}) == [(5, 1)]
    assert missing_of(split, {5: {0, 1, 2}, 6: {1}}) == [(6, 0)]
    assert missing_of(split, {}) == [(5, 0), (5, 1), (5, 2), (6, 0)]


@pytest.mark.parametrize(
    ("entries", "accounted", "expected"),
    [
        pytest.param(PartitionEntries(stored={5: 3}), {}, [], id="still stored"),
        pytest.param(PartitionEntries(stored={6: 1}), {5: {0, 1, 2}}, [], id="read before it was trimmed"),
        pytest.param(PartitionEntries(stored={6: 1}), {5: {0, 1}}, [5], id="trimmed with one message unread"),
        pytest.param(PartitionEntries(), {}, [5], id="the topic is empty"),
    ],
)
def test_a_ledger_that_went_with_unread_messages_is_noticed(
    entries: PartitionEntries, accounted: dict[int, set[int]], expected: list[int]
) -> None:
    assert lost_ledgers({5: 3}, entries, accounted) == expected


@pytest.mark.parametrize(
    ("worked_off", "expected"),
    [
        pytest.param([EntrySpan(5, 2, 2)], [], id="the one without receipt"),
        pytest.param([EntrySpan(5, 0, 1), EntrySpan(5, 2, 2)], [], id="all of them, in two batches"),
        pytest.param([EntrySpan(5, 0, 1)], [5], id="others of the ledger"),
        pytest.param([EntrySpan(6, 0, 9)], [5], id="another ledger's"),
    ],
)
def test_a_marker_that_the_fallback_read_went_with_its_ledger_and_nothing_was_lost(
    worked_off: list[EntrySpan], expected: list[int]
) -> None:
    assert lost_ledgers({5: 3}, PartitionEntries(), {5: {0, 1}}, worked_off) == expected
