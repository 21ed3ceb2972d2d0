"""How far a guard may move: up to the first segment that a broker could still read at its position.

The guard is a subscription on a namespace's segments topic; the broker may trim the segments before it. So the guard
stops at the first of these:
1. a position that the index of a topic names;
2. a segment whose number is higher than all numbers in its topic's index, or whose topic has no index: a broker writes
   a segment first and its index later, without a time limit (for example while a transaction stays open);
3. any segment, while the index of a topic can't be read.
These apply to topics that are gone, too, because an operator may restore their metadata: the guard may pass their
messages once a broker or `snapshots audit --publish` has published tombstones for them.
A segment that no index names is unneeded once it is no longer the latest message of its key: brokers publish
tombstones for segments that they have given up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from udfs.formats.internal_stats import Position
from udfs.snapshots.codec import Index
from udfs.snapshots.keys import is_keeper
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.values import ReadValue


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHold:
    """The segments that the latest index of a topic holds."""

    lowest: Position | None  # the first named position that still exists; None: there is none
    last: int = -1  # the highest number of a segment that it names
    lost: int = 0  # how many segments it names in ledgers that the segments topic no longer has
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """The position up to which a guard may move."""

    position: Position
    held_by: str  # description of the message there


@dataclass(slots=True)
class Holds:
    """The indexes of one namespace by topic; the latest message of a key replaces the earlier messages."""

    ledgers: frozenset[int]
    by_topic: dict[str, IndexHold] = field(default_factory=dict)

    def take(self, read: ReadValue) -> None:
        """Add the next message of the indexes topic."""
        if not read.topic:
            return  # no topic has this key, so no broker ever reads the message
        if read.is_null:
            self.by_topic.pop(read.topic, None)
        elif isinstance(read.value, Index):
            self.by_topic[read.topic] = self._hold(read.value)
        else:
            self.by_topic[read.topic] = IndexHold(lowest=None, fault=str(read.fault))

    def _hold(self, index: Index) -> IndexHold:
        rows = list(named_segments(index))
        there = [position for _sequence, position, _marker in rows if position[0] in self.ledgers]
        last = max((sequence for sequence, _place, _marker in rows), default=-1)
        return IndexHold(lowest=min(there, default=None), last=last, lost=len(rows) - len(there))


def lowest_of(holds: Mapping[str, IndexHold]) -> Position | None:
    """Return the first position that an index names and that still exists; None if there is none.

    A guard before that position keeps all named segments.
    """
    return min((hold.lowest for hold in holds.values() if hold.lowest is not None), default=None)


def index_bound(holds: Mapping[str, IndexHold], end: Position) -> Bound:
    """Return the lowest position that an index names, or `end`.

    Args:
        holds: the index of each topic.
        end: the last entry of the segments topic before any index was read.
    """
    bound = Bound(end, "the last entry of the segments topic")
    for topic, hold in holds.items():
        if hold.fault:
            return Bound((-1, -1), f"the index of {topic}, which can't be read ({hold.fault})")
        if hold.lowest is not None and hold.lowest < bound.position:
            bound = Bound(hold.lowest, f"a segment of {topic}, which its index names")
    return bound


def is_perhaps_needed(segment: ReadValue, holds: Mapping[str, IndexHold]) -> bool:
    """Whether an index may still come to name a segment that is before every named position.

    This function sees only the segment's own message: the caller checks for a later message of its key. No index ever
    names a message that no broker wrote.
    """
    if segment.value is None or is_keeper(segment.topic):
        return False
    hold = holds.get(segment.topic)
    return hold is None or segment.sequence > hold.last


def segment_bound(bound: Bound, candidates: Iterable[ReadValue], latest: Mapping[str, Position | None]) -> Bound:
    """Return the first of the candidates before the bound that is still the latest message of its key, or the bound.

    latest: key -> position of its latest message; None: that is a tombstone. A missing key was compacted away.
    """
    for read in candidates:
        if latest.get(read.key) == read.position and read.position < bound.position:
            bound = Bound(read.position, f"segment {read.sequence} of {read.topic}, which an index may still name")
    return bound
