"""Whether a topic's snapshot may be replaced by an empty one, so that its broker replays the topic.

A broker that finds an index without segments and without a maxReadPosition replays all that the topic still holds,
finds every abort marker again, and seals new segments (seen on Pulsar 4.0.8). That costs one reading of the topic and
loses nothing: where a marker is gone, the messages before it that it takes back are gone as well. It is right only for
a topic that is not loaded: of one that is, the broker would write its own index over ours. Where the topic is too large
to be read again, and the compacted ledger still has the values of its lost segments, these can be published once more.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.snapshots.aborts import TxnIds, ids_of
from udfs.snapshots.audit import READY, NamedSegment, TopicFacts, is_half_replayed, is_replaying
from udfs.snapshots.codec import Index, encode_index, entries_of
from udfs.snapshots.segments import places_of

_REPLAYING = (
    "its broker is replaying it: wait until it is loaded, and look again. If it never is, take its clients away, "
    "unload it, and run this again"
)
_WORKS = "the topic is loaded and its transaction buffer is ready: it works, and nothing is repaired"
_WORKS_YET = (
    "the topic is loaded and works, but it will not load again: take its clients away, unload it (`pulsar-admin topics "
    "unload`), and run this again"
)
Named = tuple[int, Position]
"""How an index names a segment: by its number, and by the place of its last abort marker."""


class Remedy(StrEnum):
    """How a repair goes about it. REPUBLISH: segments are published again, and the index names their new places."""

    REPLAY = "REPLAY"
    REPUBLISH = "REPUBLISH"


def empty_index(topic: str) -> bytes:
    """Return the value that makes a broker replay a topic from its beginning."""
    return encode_index(Index(topic, entries_of([]), BEFORE_ALL, ids_of([])))


def moved_index(index: Index, places: Mapping[Named, Position]) -> bytes:
    """Return the index with the new places of those segments that were published again."""
    rows = [(number, places.get((number, marker), place), marker) for number, place, marker in places_of(index)]
    return encode_index(Index(index.topic, entries_of(rows), index.max_read, index.tail))


def before_the_end(index: Index) -> Index:
    """Return what an index says of the time before its maxReadPosition: what a republished topic begins with.

    A broker writes an index while transactions are open, too. It then names segments, and ids in its tail, of which
    the markers lie behind maxReadPosition. A broker that loads it takes them, finds the same markers once more as it
    replays the topic, and seals their ids twice. So only the segments up to maxReadPosition stay, and the last one's
    marker is the new maxReadPosition: the broker finds again whatever was aborted behind it, the tail as well. No
    transaction that is open there can be overlooked, since the new position lies before the old one.
    """
    rows = [row for row in places_of(index) if row[2] <= index.max_read]
    last = max((marker for _number, _place, marker in rows), default=BEFORE_ALL)
    return Index(index.topic, entries_of(rows), last, ids_of([]))


def is_half(index: Index) -> bool:
    """Whether a broker wrote an index in the midst of a replay: whoever loads it seals every id of it once more."""
    return index.entries.rows > 0 and index.max_read == BEFORE_ALL


def unwritten(index: Index | None, sealed: Collection[Position]) -> str:
    """Return what the latest index lacks of what its broker has in memory; "" where a broker could go on from it.

    sealed: last markers of the segments that the broker has sealed. The maxReadPosition of a broker that recovers a
    topic is (-1, -1), and it writes indexes all the same. With such a one it would read the whole topic at the next
    load, and seal every id once more.
    """
    rows = [] if index is None else list(places_of(index))
    lacks = len(set(sealed) - {marker for _number, _place, marker in rows})
    if lacks:
        return f"its broker has sealed {len(sealed)} segments, and its index lacks {lacks} of them"
    if index is not None and is_half(index):
        return f"its index names {len(rows)} segments and no maxReadPosition"
    return ""


def lost_of(facts: TopicFacts) -> list[NamedSegment]:
    """Return the segments that can't be read at their places, and that the topic still needs."""
    return [each for each in facts.named if not each.is_readable and each.marker[0] in facts.ledgers]


@dataclass(frozen=True, slots=True)
class Told:
    """What an old snapshot tells of aborted transactions, so that what a repair came to can be compared with it.

    known: all ids of its segments and its tail. sure: those of them whose abort marker lives for certain; so a broker
    must have found them again. unknown: numbers of the segments that the topic needs, and whose ids nobody knows.
    """

    known: frozenset[tuple[int, int]]
    sure: frozenset[tuple[int, int]]
    unknown: tuple[int, ...]


def all_told(each: Iterable[Told]) -> Told:
    """Return what several snapshots of a topic tell together."""
    known: set[tuple[int, int]] = set()
    sure: set[tuple[int, int]] = set()
    unknown: list[int] = []
    for told in each:
        known |= told.known
        sure |= told.sure
        unknown += told.unknown
    return Told(frozenset(known), frozenset(sure), tuple(unknown))


def told_of(facts: TopicFacts, values: Mapping[Named, TxnIds], tail: TxnIds) -> Told:
    """Return what an index tells. values: ids of the segments that it names, as far as they are known.

    A segment says only where the marker of its last id lies; those of the others lie behind the segment before it, and
    those of the tail behind the last segment. Of segments that share ids that is not so.
    """
    known: set[tuple[int, int]] = set()
    sure: set[tuple[int, int]] = set()
    unknown: list[int] = []
    are_sure = False
    for each in sorted(facts.named, key=lambda segment: segment.marker):
        if each.marker[0] not in facts.ledgers:
            are_sure = False
            continue
        value = values.get((each.sequence, each.marker))
        if value is None:
            unknown.append(each.sequence)
        else:
            pairs = value.pairs()
            known.update(pairs)
            sure.update(pairs if are_sure else pairs[-1:])
        are_sure = not facts.doubled_ids
    known.update(tail.pairs())
    sure.update(tail.pairs() if are_sure else ())
    return Told(frozenset(known), frozenset(sure), tuple(unknown))


def refusal_of(facts: TopicFacts, remedy: Remedy = Remedy.REPLAY) -> str:
    """Return why a topic must not be repaired; "" where it may. facts: as the audit has them, read just now.

    A topic whose segments hold ids twice works, and may be replayed all the same: a trim can make its broker forget
    every id. So does one whose index was written in the midst of a replay that came to no end: its next load would
    seal every id twice. While its broker replays it, that end may come: to unload it would only begin anew.
    """
    if facts.in_metadata is not Presence.PRESENT:
        is_gone = facts.in_metadata is Presence.GONE
        return "ZooKeeper does not have the topic" if is_gone else f"its list could not be read: {facts.detail}"
    if remedy is Remedy.REPLAY and (facts.doubled_ids or is_half_replayed(facts)):
        return _REPLAYING if is_replaying(facts) and not lost_of(facts) else ""  # with a lost one it comes to no end
    if facts.buffer is not None and facts.buffer.state == READY:
        return _WORKS_YET if lost_of(facts) else _WORKS
    if not facts.named:
        return "it has no index that names a segment: a missing segment is not what keeps it from being loaded"
    if not lost_of(facts):
        return "every segment that it needs can be read: something else keeps it from being loaded"
    return ""
