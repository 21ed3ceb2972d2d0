"""How far a guard may move: up to the first segment that a broker could still want to read at its place.

What stands before that place may be trimmed. So whatever is not known to be unneeded holds the guard:
1. a place that the index of a topic names, unless the topic is gone;
2. a segment behind the last one that its topic's index names, or of a topic without an index: a broker writes a segment
   first and its index later, however late, as while a transaction stays open;
3. everything, while the index of a topic that exists can't be read;
4. what belongs to a topic that is gone, for HOLD_GONE_MS: somebody may bring its metadata back.
A segment that no index names, and whose key has a tombstone by now, is needed by nobody: brokers tombstone what they
have given up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from udfs.formats.internal_stats import Position
from udfs.snapshots.codec import Index
from udfs.snapshots.keys import is_keeper
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import ReadValue
from udfs.units import DAY_MS

HOLD_GONE_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHold:
    """What the latest index of a topic holds. lowest None: it names no segment that is still there. last: its number.

    lost: how many segments it names in ledgers that the segments topic does not have any more.
    """

    lowest: Position | None
    last: int = -1
    lost: int = 0
    publish_ms: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """Up to where a guard may move; held_by: what lies there, in words."""

    position: Position
    held_by: str


@dataclass(slots=True)
class Holds:
    """Indexes of one namespace, by topic, as they are read: the latest message of a key replaces those before it."""

    ledgers: frozenset[int]
    by_topic: dict[str, IndexHold] = field(default_factory=dict)

    def take(self, read: ReadValue) -> None:
        """Take the next message of the indexes topic."""
        if not read.topic:
            return  # a key that no topic has: no broker ever reads it
        if read.is_null:
            self.by_topic.pop(read.topic, None)
        elif isinstance(read.value, Index):
            self.by_topic[read.topic] = self._hold(read, read.value)
        else:
            self.by_topic[read.topic] = IndexHold(lowest=None, publish_ms=read.publish_ms, fault=str(read.fault))

    def _hold(self, read: ReadValue, index: Index) -> IndexHold:
        rows = list(places_of(index))
        there = [place for _sequence, place, _marker in rows if place[0] in self.ledgers]
        last = max((sequence for sequence, _place, _marker in rows), default=-1)
        return IndexHold(
            lowest=min(there, default=None), last=last, lost=len(rows) - len(there), publish_ms=read.publish_ms
        )


def lowest_of(holds: Mapping[str, IndexHold]) -> Position | None:
    """Return the first place that an index names and that is still there; None where no index names any.

    A guard keeps all of them if it stands before it.
    """
    return min((hold.lowest for hold in holds.values() if hold.lowest is not None), default=None)


def index_bound(holds: Mapping[str, IndexHold], gone: frozenset[str], end: Position, now_ms: int) -> Bound:
    """Return the lowest place that an index names. end: the topic's last entry before any index was read.

    gone: topics that exist neither in ZooKeeper nor at a broker.
    """
    bound = Bound(end, "the last entry that there was")
    for topic, hold in holds.items():
        if topic in gone and now_ms - hold.publish_ms >= HOLD_GONE_MS:
            continue
        if hold.fault:
            return Bound((-1, -1), f"the index of {topic}, which can't be read ({hold.fault})")
        if hold.lowest is not None and hold.lowest < bound.position:
            bound = Bound(hold.lowest, f"a segment of {topic}, which its index names")
    return bound


def is_perhaps_needed(segment: ReadValue, holds: Mapping[str, IndexHold], gone: frozenset[str], now_ms: int) -> bool:
    """Whether a segment before every named place may be named yet, as far as its own message says.

    What is no value of a broker's is never named. Whether it was tombstoned meanwhile, the caller looks.
    """
    if segment.value is None or is_keeper(segment.topic):
        return False
    hold = holds.get(segment.topic)
    if segment.topic in gone and now_ms - segment.publish_ms >= HOLD_GONE_MS:
        return False
    return hold is None or segment.sequence > hold.last


def segment_bound(bound: Bound, candidates: Iterable[ReadValue], latest: Mapping[str, Position | None]) -> Bound:
    """Return the bound with the first candidate before it whose key's latest message lies there.

    latest: key -> place of its latest message; None: that is a tombstone. A key that is not there was compacted away.
    """
    for read in candidates:
        if latest.get(read.key) == read.position and read.position < bound.position:
            bound = Bound(read.position, f"segment {read.sequence} of {read.topic}, which an index may still name")
    return bound
