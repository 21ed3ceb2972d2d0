"""A snapshot in several parts (apache/pulsar#16042), with the rules under which it survives a crash at any message.

The ids of a topic are in the order of their abort markers; new ids are added at the end, and trimmed ids vanish, mostly
at the start. So when a snapshot is written again, each part ends at the same id as before or at a later id. Any mixture
of new and old parts after a crash therefore overlaps and has no gap, if
1. parts are written oldest first, each part acknowledged before the next, and `end` last;
2. only `end` contains the position up to which the snapshot is complete (maxReadPosition);
3. the capacity of a part never changes within a generation: another capacity starts a new generation, with keys of its
   own, and this generation counts as soon as its own `end` is written;
4. parts that remain of longer or older snapshots get tombstones only after the new `end` is written; the `end` of an
   older generation gets its tombstone before the other parts;
5. a recovery takes the latest value of each key, unites the parts as a set, leaves out ids whose marker's ledger has
   gone, and replays the topic after maxReadPosition. Without an `end` no snapshot was ever complete, so the whole topic
   is replayed.

To resume an interrupted write, write everything again. tests/model/test_snapshot_parts.py disables each rule once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots import varints
from udfs.snapshots.aborts import Aborts, aborts_of, merged, trimmed
from udfs.snapshots.codec import Snapshot, decode_snapshot, encode_snapshot
from udfs.snapshots.keys import Capacity, PartKey, part_key_of


@dataclass(frozen=True, slots=True)
class PartMessage:
    """One message to send, once the previous message was acknowledged."""

    key: str
    value: bytes | None  # None: a tombstone


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """A topic's snapshot, recovered from its parts."""

    generation: int  # 0: there is no complete snapshot, so the whole topic must be replayed
    max_read: Position  # the replay starts after it
    aborts: Aborts  # each id once, in the order of the markers


NOTHING = Recovered(0, BEFORE_ALL, aborts_of([]))


def split(aborts: Aborts, capacity: Capacity) -> Iterator[Aborts]:
    """Cut ids in the order of their markers into parts, each filled before the next; always at least one part.

    Parts are views: only the sizes of one part take memory.
    """
    capacity.checked()
    start = 0
    while True:
        piece = aborts.between(start, start + capacity.ids)
        sizes = np.cumsum(varints.row_bytes([piece.entry, piece.ledger, piece.least, piece.most]))
        fit = int(np.searchsorted(sizes, capacity.size_bytes, side="right"))
        piece = piece.between(0, fit)
        start += piece.rows
        yield piece
        if start >= aborts.rows:
            return


def write(
    topic: str, aborts: Aborts, max_read: Position, capacity: Capacity, present: Collection[str]
) -> Iterator[PartMessage]:
    """Yield the messages that store a snapshot, to be sent one by one in this order; each is encoded on demand.

    Args:
        topic: the topic of the snapshot.
        aborts: ids in the order of their markers.
        max_read: the snapshot is complete up to this position.
        capacity: of each part.
        present: all keys that have a value in the compacted topic now, also of other topics. The caller must read them
            from the compacted topic: the number of parts does not show what earlier snapshots left there.
    """
    topic_keys = [key for key in map(part_key_of, present) if key is not None and key.topic == topic]
    generation = _generation(topic_keys, capacity)
    number = 0
    before: Aborts | None = None
    for piece in split(aborts, capacity):
        if before is not None:
            number += 1
            key = PartKey(generation, capacity, number, topic)
            yield PartMessage(str(key), encode_snapshot(Snapshot(topic, BEFORE_ALL, before)))
        before = piece
    end = PartKey(generation, capacity, None, topic)
    yield PartMessage(
        str(end), encode_snapshot(Snapshot(topic, max_read, before if before is not None else aborts_of([])))
    )
    stale = [key for key in topic_keys if key.generation != generation or (key.number or 0) > number]
    yield from _tombstones(stale)


def retire(topic: str, present: Iterable[str]) -> Iterator[PartMessage]:
    """Yield tombstones for all parts of a topic, once another form has replaced them or the topic is gone.

    Each `end` goes before any part, so that a snapshot without all its parts never counts as complete.
    """
    yield from _tombstones([key for key in map(part_key_of, present) if key is not None and key.topic == topic])


def recover(latest: Mapping[str, bytes], topic: str, ledgers: Collection[int]) -> Recovered:
    """Recover a topic's snapshot from the latest value of each key.

    latest: values of live keys (no tombstones); keys of other topics are ignored. ledgers: the topic's list of ledgers.
    Raises FormatError if a part that counts can't be read; replaying the whole topic is then always right.
    """
    counting = counting_of(latest, topic)
    if not counting:
        return NOTHING
    values = [_value(latest[str(key)], key) for key in counting]
    aborts = trimmed(merged([value.aborts for value in values]), ledgers)
    return Recovered(counting[-1].generation, values[-1].max_read, aborts)


def counting_of(keys: Iterable[str], topic: str) -> list[PartKey]:
    """Return the keys of the parts that count for a topic, in order, `end` last; none where no snapshot is complete."""
    topic_keys = [key for key in map(part_key_of, keys) if key is not None and key.topic == topic]
    ends = [key for key in topic_keys if key.number is None]
    if not ends:
        return []
    counting = max(ends, key=lambda key: key.generation)
    return sorted(
        (key for key in topic_keys if (key.generation, key.capacity) == (counting.generation, counting.capacity)),
        key=lambda key: (key.number is None, key.number or 0),
    )


def pieces(keys: Iterable[PartKey], value_of: Callable[[PartKey], bytes], ledgers: Collection[int]) -> Iterator[Aborts]:
    """Yield the ids that `recover` would return, in the order of the markers, with only the current part in memory.

    Parts of two snapshots overlap, and have no gap; so ids with a marker at or before the last yielded marker were
    yielded already, or their ledger has gone.

    Args:
        keys: the result of counting_of.
        value_of: returns the value of a key.
        ledgers: the topic's list of ledgers.

    Raises FormatError if a part can't be read or is not in the order of its markers.
    """
    reached = BEFORE_ALL
    for key in keys:
        aborts = _value(value_of(key), key).aborts
        ledger, entry = aborts.ledger, aborts.entry
        if not bool(np.all((ledger[:-1] < ledger[1:]) | ((ledger[:-1] == ledger[1:]) & (entry[:-1] <= entry[1:])))):
            raise FormatError(f"the ids in {key} are not in the order of their markers")
        is_new = (ledger > reached[0]) | ((ledger == reached[0]) & (entry > reached[1]))
        piece = trimmed(Aborts(*(column[is_new] for column in aborts)), ledgers)
        if aborts.rows:
            reached = max(reached, (int(ledger[-1]), int(entry[-1])))
        if piece.rows:
            yield piece


def _value(data: bytes, key: PartKey) -> Snapshot:
    value = decode_snapshot(data)
    if value.topic != key.topic:
        raise FormatError(f"the value of key {key} names another topic: {value.topic!r}")
    return value


def _generation(known: Collection[PartKey], capacity: Capacity) -> int:
    """Return the generation to write: the newest generation if its parts have this capacity, or else the next."""
    newest = max((key.generation for key in known), default=0)
    sizes = {key.capacity for key in known if key.generation == newest}
    return newest if sizes == {capacity} else newest + 1


def _tombstones(stale: Iterable[PartKey]) -> Iterator[PartMessage]:
    for key in sorted(stale, key=lambda key: (key.number is not None, key.generation, -(key.number or 0))):
        yield PartMessage(str(key), None)
