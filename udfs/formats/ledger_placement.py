"""Where BookKeeper keeps the entries of a ledger: the ensembles and quorums of a ledger znode, of any version."""

from dataclasses import dataclass
from itertools import pairwise

from udfs.formats.errors import FormatError
from udfs.formats.ledger_metadata import MOST_BOOKIES, read_placed
from udfs.records import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Segment:
    """An ensemble, and the first entry that it stores. It stores all entries up to the next segment's first."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A ledger's metadata with its ensembles. Entry i is on bookies (i + k) mod E of its ensemble, k < write quorum."""

    metadata: LedgerMetadata
    segments: tuple[Segment, ...]  # at least one; the first starts at entry 0, and all ensembles have the same size
    write_quorum: int
    ack_quorum: int


def placement_of(data: bytes) -> Placement:
    """Parse a ledger znode of any version. Raises FormatError also for ensembles that BookKeeper does not write."""
    placed = read_placed(data)
    segments = [Segment(first, bookies) for first, bookies in placed.segments]
    return _checked(placed.metadata, segments, placed.write_quorum, placed.ack_quorum)


def bookies_of_entry(placement: Placement, entry_id: int) -> tuple[str, ...]:
    """Return the bookies that store an entry."""
    segment = next(each for each in reversed(placement.segments) if each.first_entry_id <= entry_id)
    size = len(segment.bookies)
    return tuple(segment.bookies[(entry_id + copy) % size] for copy in range(placement.write_quorum))


def entries_at(first: int, end: int, size: int, residue: int) -> int:
    """Return how many entries from `first` up to `end`, exclusive, are `residue` modulo `size`."""
    return (end - residue + size - 1) // size - (first - residue + size - 1) // size


def _checked(metadata: LedgerMetadata, segments: list[Segment], write_quorum: int, ack_quorum: int) -> Placement:
    sizes = {len(segment.bookies) for segment in segments}
    if len(sizes) != 1:
        raise FormatError("ledger metadata has no ensemble, or ensembles of several sizes")
    size = sizes.pop()
    if size > MOST_BOOKIES:
        raise FormatError(f"ledger metadata has an ensemble of {size} bookies")
    if not 1 <= ack_quorum <= write_quorum <= size:
        raise FormatError(f"ledger metadata has quorums {write_quorum} and {ack_quorum} of {size} bookies")
    if not all(isinstance(bookie, str) for segment in segments for bookie in segment.bookies):
        raise FormatError("a bookie's id is not UTF-8")
    if segments[0].first_entry_id != 0 or any(a.first_entry_id >= b.first_entry_id for a, b in pairwise(segments)):
        raise FormatError("the ensembles of the ledger metadata are not in order")
    return Placement(metadata=metadata, segments=tuple(segments), write_quorum=write_quorum, ack_quorum=ack_quorum)
