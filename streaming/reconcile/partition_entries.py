"""Determines, by position, which entries of a partition were read, which are missing, and which ledgers were lost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streaming.reconcile.positions import AccountedEntries
from udfs.entry_ranges import EntrySpan, without
from udfs.formats.internal_stats import Position


@dataclass(slots=True)
class PartitionEntries:
    """A partition's ledgers, split at the committed position: ledger -> number of entries."""

    stored: dict[int, int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)  # up to the committed position
    unread: dict[int, int] = field(default_factory=dict)  # all entries of each ledger with an unread entry


def split_at(committed: Position, ledgers: Iterable[tuple[int, int]]) -> PartitionEntries:
    """Split a partition's ledgers (id, entries) at the committed position."""
    split = PartitionEntries()
    for ledger, entries in ledgers:
        read = entries if ledger < committed[0] else min(entries, committed[1] + 1) if ledger == committed[0] else 0
        split.stored[ledger], split.read[ledger] = entries, read
        if entries > read:
            split.unread[ledger] = entries
    return split


def missing_of(entries: PartitionEntries, accounted: AccountedEntries) -> list[Position]:
    """Return the entries that were read and are not accounted for, in order."""
    return [
        (ledger, entry)
        for ledger, read in sorted(entries.read.items())
        for entry in _missing(accounted.get(ledger, range(0)), read)
    ]


def _missing(accounted: range | set[int], read: int) -> Iterable[int]:
    if isinstance(accounted, range):
        return range(len(accounted), read)
    return (entry for entry in range(read) if entry not in accounted)


def lost_ledgers(
    remembered: Mapping[int, int],
    entries: PartitionEntries,
    accounted: AccountedEntries,
    worked_off: Iterable[EntrySpan] = (),
) -> list[int]:
    """Return the ledgers that are gone although an entry in them is not accounted for.

    Args:
        remembered: ledger -> number of entries, for ledgers with unread entries or gaps at the last check.
        entries: the partition now.
        accounted: the entries with receipts or waiting retries.
        worked_off: entries that the fallback (a read without the connector) processed completely.
    """
    gone = (EntrySpan(ledger, 0, count - 1) for ledger, count in remembered.items() if ledger not in entries.stored)
    lost = {
        span.ledger
        # an entry that the fallback processed and that has no receipt contains no message
        for span in without(gone, worked_off)
        if any(entry not in accounted.get(span.ledger, ()) for entry in range(span.first, span.last + 1))
    }
    return sorted(lost)


def to_remember(gaps: Iterable[Position], entries: PartitionEntries) -> dict[int, int]:
    """Return ledger -> number of entries, for ledgers with unread entries or gaps, so that their loss is noticed."""
    return {ledger: entries.read[ledger] for ledger, _entry in gaps} | entries.unread
