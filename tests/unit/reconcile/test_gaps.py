"""Every kind of gap has a message, and so do the counts."""

from streaming.reconcile.gaps import PartitionGaps, Reconciliation
from tests.unit.reconcile.rows import SOURCE


def test_every_kind_of_gap_has_a_message() -> None:
    whole = PartitionGaps(partition=SOURCE, read=10, unread=2)
    accounts = Reconciliation(
        partitions=(whole, PartitionGaps(partition=SOURCE, read=3, unread=0, missing=((5, 1),), trimmed=(4,))),
        delayed=7,
        lost=("1:2:3",),
    )
    assert len(accounts.gaps) == 3
    assert "5:1" in accounts.gaps[0]
    assert Reconciliation(partitions=(whole,), delayed=7).gaps == []
    assert "10 entries read" in Reconciliation(partitions=(whole,), delayed=7).text
