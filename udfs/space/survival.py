"""Decides from a ledger's metadata how much of the ledger survives the removal of a bookie.

A bookie that does not run counts as having no copies. Over-replicated copies, which no ensemble names, do not count.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from udfs.formats.ledger_placement import Placement, entries_at
from udfs.records import LedgerState


class Effect(StrEnum):
    """The consequence of a removal for a ledger: the worst consequence for any of its entries."""

    LOST = "LOST"  # some entries have no copy on any other running bookie
    # It is open, and so few bookies of its last ensemble run then that a broker could not close it after a failure.
    UNRECOVERABLE = "UNRECOVERABLE"
    BELOW_ACK_QUORUM = "BELOW_ACK_QUORUM"  # fewer copies than BookKeeper requires to acknowledge an entry
    UNDER_REPLICATED = "UNDER_REPLICATED"  # fewer copies than its write quorum


UNSAFE = frozenset({Effect.LOST, Effect.UNRECOVERABLE})


@dataclass(frozen=True, slots=True)
class Survival:
    """The consequence of a removal for one ledger."""

    effect: Effect
    size_bytes: int | None  # of one copy of the entries with this effect, rounded up; None: it is not closed
    is_written: bool = False  # it is open, and the bookie is in the ensemble that clients write to now
    missing_bookies: int = 0  # how many writable bookies must be added before autorecovery can copy the ledger


def removal_of(
    placement: Placement, bookie: str, remaining: AbstractSet[str], writable: AbstractSet[str]
) -> Survival | None:
    """Return the consequence for a ledger; None: the bookie has no entry of it.

    Args:
        placement: of the ledger.
        bookie: the id of the bookie that is removed.
        remaining: the ids of the bookies that run afterwards.
        writable: those of them that are not read-only.
    """
    is_closed = placement.metadata.state is LedgerState.CLOSED
    is_last_affected = bookie in placement.segments[-1].bookies
    entries: dict[Effect, int] = {}
    missing_bookies = 0
    for first, end, bookies in _ranges(placement):
        if bookie in bookies:
            for effect, residue in _effects(placement, bookies, bookie, remaining):
                stored = max(0, entries_at(first, end, len(bookies), residue))
                if stored:
                    entries[effect] = entries.get(effect, 0) + stored
                    missing_bookies = max(missing_bookies, _missing_bookies(bookies, remaining, writable))
    if not is_closed and is_last_affected and Effect.LOST not in entries and not _can_recover(placement, remaining):
        entries[Effect.UNRECOVERABLE] = 1
        missing_bookies = max(missing_bookies, _missing_bookies(placement.segments[-1].bookies, remaining, writable))
    if not entries:
        return None
    worst = min(entries, key=list(Effect).index)
    total = placement.metadata.last_entry_id + 1
    # the sizes of single entries are in no metadata, so they count alike
    size = -(-placement.metadata.length_bytes * entries[worst] // total) if is_closed else None
    is_written = not is_closed and is_last_affected
    return Survival(worst, size, is_written=is_written, missing_bookies=missing_bookies)


def _ranges(placement: Placement) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield (first entry, end, bookies) of each segment. The end of a ledger that is not closed is not known."""
    segments = placement.segments
    closed = placement.metadata.state is LedgerState.CLOSED
    for index, segment in enumerate(segments):
        following = segments[index + 1].first_entry_id if index + 1 < len(segments) else None
        if closed:
            end = placement.metadata.last_entry_id + 1
            end = end if following is None else min(end, following)
        else:
            # each bookie of the last ensemble may have an entry
            end = segment.first_entry_id + len(segment.bookies) if following is None else following
        yield segment.first_entry_id, end, segment.bookies


def _effects(
    placement: Placement, bookies: tuple[str, ...], bookie: str, remaining: AbstractSet[str]
) -> Iterator[tuple[Effect, int]]:
    """Yield (effect, residue) for each residue of entry ids, modulo the ensemble's size, that the bookie stores."""
    size = len(bookies)
    for residue in range(size):
        holders = {bookies[(residue + k) % size] for k in range(placement.write_quorum)}
        if bookie not in holders:
            continue
        copies = len((holders - {bookie}) & remaining)
        if not copies:
            yield Effect.LOST, residue
        elif copies < placement.ack_quorum:
            yield Effect.BELOW_ACK_QUORUM, residue
        else:
            yield Effect.UNDER_REPLICATED, residue


def _missing_bookies(bookies: tuple[str, ...], remaining: AbstractSet[str], writable: AbstractSet[str]) -> int:
    # BookKeeper replaces all absent members of an ensemble at once, by different bookies from outside the ensemble
    # (LedgerFragmentReplicator), or none
    absent = sum(bookie not in remaining for bookie in bookies)
    return max(0, absent - len(writable - {*bookies}))


def _can_recover(placement: Placement, remaining: AbstractSet[str]) -> bool:
    """Whether a client can close the ledger: RoundRobinDistributionSchedule.RRQuorumCoverageSet of BookKeeper."""
    bookies = placement.segments[-1].bookies
    absent = [bookie not in remaining for bookie in bookies]
    size = len(bookies)
    return all(
        sum(absent[(start + k) % size] for k in range(placement.write_quorum)) < placement.ack_quorum
        for start in range(size)
    )
