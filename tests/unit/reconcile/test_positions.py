"""Accounted positions: messages with receipts, waiting retries, and holes between them."""

from pathlib import Path

from streaming.reconcile.partition_entries import missing_of, split_at
from streaming.reconcile.positions import accounted
from tests.unit.reconcile.rows import SOURCE, write_rows


def test_receipts_and_waiting_retries_account_for_a_message_and_holes_in_a_batch_do_not(tmp_path: Path) -> None:
    write_rows(tmp_path, "receipts", [(5, 0, -1), (5, 0, -1), (5, 1, 0), (5, 1, 1), (5, 2, 1), (6, 3, -1)])
    write_rows(tmp_path, "receipts", [(5, 4, -1)], source="another")
    write_rows(tmp_path, "waiting", [(5, 3, -1), (6, 3, -1)])

    done = accounted(str(tmp_path), {SOURCE: [5, 6]})[SOURCE]

    assert done.entries() == {5: {0, 1, 3}, 6: {3}}
    assert (5, 2, 1) in done.messages([5])
    assert (5, 2, 0) not in done.messages([5])
    assert done.messages([6]) == {(6, 3, -1)}


def test_only_ledgers_that_are_compared_are_read_and_one_without_a_hole_is_a_range(tmp_path: Path) -> None:
    write_rows(tmp_path, "receipts", [(ledger, entry, -1) for ledger in (4, 5, 6, 8, 9) for entry in range(3)])
    write_rows(tmp_path, "receipts", [(8, 5, -1)])

    done = accounted(str(tmp_path), {SOURCE: {5, 8}})[SOURCE]

    assert done.entries() == {5: range(3), 8: {0, 1, 2, 5}}
    assert done.messages([4, 5]) == {(5, entry, -1) for entry in range(3)}
    assert missing_of(split_at((8, 5), [(5, 4), (8, 6)]), done.entries()) == [(5, 3), (8, 3), (8, 4)]


def test_nothing_is_accounted_for_where_nothing_was_done(tmp_path: Path) -> None:
    assert accounted(str(tmp_path), {SOURCE: [5]})[SOURCE].entries() == {}
    assert accounted(str(tmp_path), {SOURCE: []})[SOURCE].entries() == {}


def test_many_partitions_are_read_at_once_and_kept_apart(tmp_path: Path) -> None:
    other, third = SOURCE.replace("-0", "-1"), SOURCE.replace("-0", "-2")
    write_rows(tmp_path, "receipts", [(5, 0, -1), (5, 1, -1)])
    write_rows(tmp_path, "receipts", [(6, 0, -1), (7, 0, -1)], source=other)
    write_rows(tmp_path, "waiting", [(5, 2, -1)])

    done = accounted(str(tmp_path), {SOURCE: [5], other: [7], third: [9]})

    assert done[SOURCE].entries() == {5: range(3)}
    assert done[other].entries() == {7: range(1)}
    assert done[third].entries() == {}
