"""Rules of a repair: whether a topic's index may be replaced, and by what.

A broker that loads an index without segments and without a maxReadPosition replays all that the topic still contains,
finds every abort marker again, and seals new segments (seen on Pulsar 4.0.8). That costs one read of the topic and
loses nothing: if a marker is gone, the aborted messages before it are gone as well. The topic must not be loaded, as
its broker would write its own index over the repair's. If the topic is too large to be read again, and the compacted
ledger still has the values of its lost segments, the segments can be published again instead.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.snapshots.aborts import TxnIds, ids_of
from udfs.snapshots.codec import Index, encode_index, entries_of
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.topic_findings import READY, NamedSegment, TopicFacts, is_half_replayed, is_replaying

_REPLAYING = (
    "its broker is replaying it: wait until it is loaded, and try again. If the load never completes, "
    "disconnect its clients, unload it, and run this again"
)
_WORKS = "the topic is loaded and its transaction buffer is ready: it works, so there is nothing to repair"
_WORKS_YET = (
    "the topic is loaded and works, but it will not load again: disconnect its clients, unload it (`pulsar-admin "
    "topics unload`), and run this again"
)
_NAMED = 10  # a message names at most this many segments
Named = tuple[int, Position]
"""Identifies a segment in an index: its number and the position of its last abort marker."""


class Remedy(StrEnum):
    """How a repair gives a topic an index that loads."""

    REPLAY = "REPLAY"  # an empty index: the broker replays the topic
    REPUBLISH = "REPUBLISH"  # lost segments are published again, and the index names their new positions


def empty_index(topic: str) -> bytes:
    """Return the value that makes a broker replay a topic from its beginning."""
    return encode_index(Index(topic, entries_of([]), BEFORE_ALL, ids_of([])))


def moved_index(index: Index, places: Mapping[Named, Position]) -> bytes:
    """Return the index with the new positions of the segments that were published again."""
    rows = [
        (number, places.get((number, marker), position), marker) for number, position, marker in named_segments(index)
    ]
    return encode_index(Index(index.topic, entries_of(rows), index.max_read, index.tail))


def complete_part_of(index: Index) -> Index:
    """Return the part of an index up to its maxReadPosition. A repair publishes only this part.

    A broker also writes indexes while transactions are open. Then the abort markers of some segments, and of ids in the
    tail (ids that are in no segment yet), are after maxReadPosition. A broker that loads such an index takes these ids,
    finds the same markers again as it replays the topic, and seals the ids twice. So only the segments up to
    maxReadPosition stay, and the last segment's marker becomes the new maxReadPosition: the replay finds every later
    abort again, including those of the tail. The replay misses no open transaction, since the new position is not after
    the old position.
    """
    rows = [row for row in named_segments(index) if row[2] <= index.max_read]
    last = max((marker for _number, _place, marker in rows), default=BEFORE_ALL)
    return Index(index.topic, entries_of(rows), last, ids_of([]))


def is_half(index: Index) -> bool:
    """Whether a broker wrote an index during a replay: a broker that loads it seals every id in it again."""
    return index.entries.rows > 0 and index.max_read == BEFORE_ALL


def missing_in(index: Index | None, sealed: Collection[Position]) -> str:
    """Name what the broker has in memory and the latest index does not contain; "" if a broker could load the index.

    A broker also writes indexes during a replay, with the maxReadPosition (-1, -1). If it loaded such an index, it
    would replay the whole topic, and seal every id again.

    Args:
        index: the latest index; None if there is none.
        sealed: last markers of the segments that the broker has sealed.
    """
    rows = [] if index is None else list(named_segments(index))
    missing = len(set(sealed) - {marker for _number, _place, marker in rows})
    if missing:
        return f"its broker has sealed {len(sealed)} segments, and {missing} of them are not in its index"
    if index is not None and is_half(index):
        return f"its index names {len(rows)} segments and no maxReadPosition"
    return ""


def lost_segments_of(facts: TopicFacts) -> list[NamedSegment]:
    """Return the segments that can't be read at their positions, and that the topic still needs."""
    return [each for each in facts.named if not each.is_readable and each.marker[0] in facts.ledgers]


@dataclass(frozen=True, slots=True)
class KnownIds:
    """Aborted ids of an old snapshot, to be compared with the ids after a repair."""

    known: frozenset[tuple[int, int]]  # all ids of its segments and its tail
    certain: frozenset[tuple[int, int]]  # ids whose abort marker certainly exists, so a broker must find them again
    unknown: tuple[int, ...]  # numbers of the segments that the topic needs, and whose ids could not be read


def all_known_ids(snapshots: Iterable[KnownIds]) -> KnownIds:
    """Return the union of the ids of several snapshots of a topic."""
    known: set[tuple[int, int]] = set()
    certain: set[tuple[int, int]] = set()
    unknown: list[int] = []
    for ids in snapshots:
        known |= ids.known
        certain |= ids.certain
        unknown += ids.unknown
    return KnownIds(frozenset(known), frozenset(certain), tuple(unknown))


def known_ids_of(facts: TopicFacts, values: Mapping[Named, TxnIds], tail: TxnIds) -> KnownIds:
    """Return the ids of an index. values: ids of the segments that it names, as far as they could be read.

    A segment contains the marker of its last id only. The markers of its other ids are after the previous segment's
    marker, and those of the tail are after the last segment's marker. So if the topic still has the ledger of that
    previous or last segment's marker, these ids are certain too (but not if an id is in several segments).
    """
    known: set[tuple[int, int]] = set()
    certain: set[tuple[int, int]] = set()
    unknown: list[int] = []
    are_certain = False
    for segment in sorted(facts.named, key=lambda named: named.marker):
        if segment.marker[0] not in facts.ledgers:
            are_certain = False
            continue
        value = values.get((segment.sequence, segment.marker))
        if value is None:
            unknown.append(segment.sequence)
        else:
            pairs = value.pairs()
            known.update(pairs)
            certain.update(pairs if are_certain else pairs[-1:])
        are_certain = not facts.doubled_ids
    known.update(tail.pairs())
    certain.update(tail.pairs() if are_certain else ())
    return KnownIds(frozenset(known), frozenset(certain), tuple(unknown))


def ignorance(ids: KnownIds, *, is_whole: bool) -> str:
    """Explain why the known old ids are incomplete; "" if they are complete.

    is_whole: whether the replaced index was complete, not written during a replay.
    """
    if not is_whole:
        return "the replaced index was written during a replay, so not all old ids are known"
    if not ids.known:
        return "no old ids are known"
    if ids.unknown:
        more = f" and {len(ids.unknown) - _NAMED} more" if len(ids.unknown) > _NAMED else ""
        return f"the ids of segments {', '.join(map(str, ids.unknown[:_NAMED]))}{more} are not known"
    return ""


def refusal_of(facts: TopicFacts, remedy: Remedy = Remedy.REPLAY) -> str:
    """Explain why a topic must not be repaired; "" if it may be. facts: what an audit collects, read just now.

    A topic with doubled ids (ids that are in several segments) works. A repair may replay it nevertheless, because a
    trim can make its broker forget every id. A repair may also replay a topic whose index was written during a replay
    that did not complete, because the next load would seal every id twice. A topic that its broker replays now is
    repaired only if it has lost segments: otherwise the replay may still complete, and unloading the topic would only
    restart it.
    """
    if facts.in_metadata is not Presence.PRESENT:
        is_gone = facts.in_metadata is Presence.GONE
        return "ZooKeeper does not have the topic" if is_gone else f"its list could not be read: {facts.detail}"
    if remedy is Remedy.REPLAY and (facts.doubled_ids or is_half_replayed(facts)):
        # a replay without lost segments may still complete
        return _REPLAYING if is_replaying(facts) and not lost_segments_of(facts) else ""
    if facts.buffer is not None and facts.buffer.state == READY:
        return _WORKS_YET if lost_segments_of(facts) else _WORKS
    if not facts.named:
        return "it has no index that names a segment, so no missing segment keeps it from being loaded"
    if not lost_segments_of(facts):
        return "every segment that it needs is readable: something else keeps it from being loaded"
    return ""
