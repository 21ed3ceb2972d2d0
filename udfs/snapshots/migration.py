"""Conversion between the forms of a topic's snapshot: single, in parts (snapshot_parts.py), and PIP-196's segments.

If a topic has several forms, the parts count if they have their `end`, else the index, else the single snapshot, else
nothing (then the topic is replayed). Each form is right by itself at any age: it is complete up to its own
maxReadPosition, and the rest is replayed. So a migration writes the whole new form, and removes the old forms
afterwards, the preferred forms last. It may be interrupted after any message and started again.

During a migration, nothing else may write the topic's snapshots: its broker must not have it loaded.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots import sealed_segments, snapshot_parts
from udfs.snapshots.aborts import Aborts, trimmed
from udfs.snapshots.codec import (
    Index,
    Segment,
    Snapshot,
    decode_index,
    decode_snapshot,
    encode_index,
    encode_segment,
    encode_snapshot,
    entries_of,
)
from udfs.snapshots.keys import Capacity, SegmentKey, SnapshotKind, segment_key_of


class SnapshotMessage(NamedTuple):
    """One message to send to the compacted topic of that kind."""

    kind: SnapshotKind
    key: str
    value: bytes | None  # None: a tombstone


Keys = Mapping[SnapshotKind, Collection[str]]  # of each compacted topic, the keys that have a value now


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """Snapshots as they were read: latest values by kind and key, and segments by their positions."""

    latest: Mapping[SnapshotKind, Mapping[str, bytes]]
    segments_at: Mapping[Position, Segment]

    @property
    def keys(self) -> Keys:
        """The keys that have a value."""
        return {kind: tuple(values) for kind, values in self.latest.items()}


PREFERRED: Mapping[SnapshotKind, tuple[SnapshotKind, ...]] = {
    SnapshotKind.PARTS: (),
    SnapshotKind.INDEX: (SnapshotKind.PARTS,),
    SnapshotKind.SINGLE: (SnapshotKind.PARTS, SnapshotKind.INDEX, SnapshotKind.SEGMENT),
}
"""For each form, the forms that count instead of it if both exist."""


class StoredForm(NamedTuple):
    """The form of a topic's snapshot that counts, and its content."""

    kind: SnapshotKind | None  # None: the topic has no snapshot
    max_read: Position
    aborts: Aborts


def kind_of(keys: Keys, topic: str) -> SnapshotKind | None:
    """Return the form of a topic's snapshot that counts, by the keys that have a value; None: it has no snapshot."""
    if snapshot_parts.counting_of(keys.get(SnapshotKind.PARTS, ()), topic):
        return SnapshotKind.PARTS
    kinds = (SnapshotKind.INDEX, SnapshotKind.SINGLE)
    return next((kind for kind in kinds if topic in keys.get(kind, ())), None)


def current(stored: Stored, topic: str, ledgers: Collection[int], newest: Position) -> StoredForm:
    """Return the snapshot that counts for a topic; newest: position of its newest entry, as for recover.

    Raises FormatError if the form that counts can't be read, or if it is an index with doubled ids.
    """
    kind = kind_of(stored.keys, topic)
    if kind is SnapshotKind.PARTS:
        in_parts = snapshot_parts.recover(stored.latest[kind], topic, ledgers)
        return StoredForm(kind, in_parts.max_read, in_parts.aborts)
    if kind is SnapshotKind.INDEX:
        read = decode_index(stored.latest[kind][topic])
        aborts = sealed_segments.recover(read, stored.segments_at, newest)
        rows = sealed_segments.named_segments(read)
        named = [stored.segments_at[position].ids.rows for _number, position, _marker in rows]
        if aborts.rows < sum(named) + read.tail.rows:  # unknown: the marker of an id that occurs twice
            raise FormatError(f"the index of {topic} and its segments contain ids twice: repair it first")
        return StoredForm(kind, read.max_read, trimmed(aborts, ledgers))
    if kind is SnapshotKind.SINGLE:
        snapshot = decode_snapshot(stored.latest[kind][topic])
        return StoredForm(kind, snapshot.max_read, trimmed(snapshot.aborts, ledgers))
    return StoredForm(None, snapshot_parts.NOTHING.max_read, snapshot_parts.NOTHING.aborts)


def without_preferred(stored: Stored, kind: SnapshotKind) -> Stored:
    """Return the stored snapshots without the forms that count before that form."""
    preferred = PREFERRED[kind]
    return Stored({each: values for each, values in stored.latest.items() if each not in preferred}, stored.segments_at)


def before(form: StoredForm, position: Position) -> Aborts:
    """Return the ids of a form whose markers are at or before a position."""
    ledger, entry = position
    stays = (form.aborts.ledger < ledger) | ((form.aborts.ledger == ledger) & (form.aborts.entry <= entry))
    return Aborts(*(column[stays] for column in form.aborts))


def missing(expected: Aborts, actual: Aborts) -> int:
    """Count the expected ids that are missing."""
    most, least = (np.concatenate(columns) for columns in zip(actual.ids, expected.ids, strict=True))
    both = np.stack([most, least], axis=1)
    return len(np.unique(both, axis=0)) - len(np.unique(both[: actual.rows], axis=0))


def to_parts(topic: str, form: StoredForm, capacity: Capacity, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield the messages that store `form` in parts and then remove the other forms, one by one in this order."""
    for step in snapshot_parts.write(topic, form.aborts, form.max_read, capacity, keys.get(SnapshotKind.PARTS, ())):
        yield SnapshotMessage(SnapshotKind.PARTS, step.key, step.value)
    yield from _retired_segments(topic, keys)
    if topic in keys.get(SnapshotKind.SINGLE, ()):
        yield SnapshotMessage(SnapshotKind.SINGLE, topic, None)


def to_single(topic: str, form: StoredForm, most_bytes: int, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield the messages that store `form` as a single snapshot and then remove the other forms, in this order.

    Raises FormatError before the first message if the snapshot would be larger than most_bytes.
    """
    value = encode_snapshot(Snapshot(topic, form.max_read, form.aborts))
    if len(value) > most_bytes:
        raise FormatError(f"{form.aborts.rows} aborted ids of {topic} take {len(value)} bytes, more than {most_bytes}")
    yield SnapshotMessage(SnapshotKind.SINGLE, topic, value)
    yield from _retired_segments(topic, keys)
    yield from _retired_parts(topic, keys)


def retired(topic: str, kind: SnapshotKind, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield tombstones for the forms that count before a form; the most preferred form goes last."""
    if SnapshotKind.INDEX in PREFERRED[kind]:
        yield from _retired_segments(topic, keys)
    if SnapshotKind.PARTS in PREFERRED[kind]:
        yield from _retired_parts(topic, keys)


def to_segments(topic: str, form: StoredForm, ids: int, keys: Keys) -> Generator[SnapshotMessage, Position, None]:
    """Yield the messages that store `form` in segments of `ids` ids; the caller sends back each message's position."""
    yield from to_segments_of(topic, (form.aborts,), form.max_read, ids, keys)


def to_segments_of(
    topic: str, pieces: Iterable[Aborts], max_read: Position, ids: int, keys: Keys
) -> Generator[SnapshotMessage, Position, None]:
    """Yield the messages that store these ids in segments; the caller sends back each message's position.

    The new segments get higher numbers than all segments of the topic, so that an index of the broker loses no segment.
    After the index, the old segments get tombstones, then the parts. A single snapshot stays, as it does when a broker
    starts to write segments. Ids whose markers are or may be after max_read are left out, since the broker finds them
    again in the replay: if it had them already, it would seal them twice.

    Args:
        topic: the topic of the snapshot.
        pieces: ids in the order of their markers (snapshot_parts.pieces); only the current piece is in memory.
        max_read: the pieces are complete up to this position.
        ids: how many ids a segment has.
        keys: the keys that have a value now.
    """
    old = [key for key in map(segment_key_of, keys.get(SnapshotKind.SEGMENT, ())) if key and key.topic == topic]
    first = max((key.sequence for key in old), default=-1) + 1
    rows: list[tuple[int, Position, Position]] = []
    cut = _Cut(pieces, max_read)
    sealing = sealed_segments.sealed(topic, cut, ids, first)
    while True:
        try:
            segment = next(sealing)
        except StopIteration as ended:
            tail = ended.value
            break
        named = str(SegmentKey(segment.sequence, topic))
        position = yield SnapshotMessage(SnapshotKind.SEGMENT, named, encode_segment(segment))
        rows.append((segment.sequence, position, segment.marker))
    yield SnapshotMessage(SnapshotKind.INDEX, topic, encode_index(Index(topic, entries_of(rows), cut.max_read, tail)))
    for key in old:
        yield SnapshotMessage(SnapshotKind.SEGMENT, str(key), None)
    yield from _retired_parts(topic, keys)


class _Cut:
    """The pieces without ids after max_read; if there are any, the last marker before it becomes the new max_read.

    The pieces are in the order of their markers, so all omitted ids are after the last id that stays. A marker that is
    too late (as for the ids of an index's tail) therefore only costs a longer replay.
    """

    def __init__(self, pieces: Iterable[Aborts], max_read: Position) -> None:
        self._pieces, self._max_read = pieces, max_read
        self._last, self._is_cut = BEFORE_ALL, False

    def __iter__(self) -> Iterator[Aborts]:
        ledger, entry = self._max_read
        for piece in self._pieces:
            stays = (piece.ledger < ledger) | ((piece.ledger == ledger) & (piece.entry <= entry))
            kept = Aborts(*(column[stays] for column in piece))
            self._is_cut |= kept.rows < piece.rows
            if kept.rows:
                self._last = max(self._last, (int(kept.ledger[-1]), int(kept.entry[-1])))
            yield kept

    @property
    def max_read(self) -> Position:
        """The position up to which the pieces yielded so far are complete."""
        return self._last if self._is_cut else self._max_read


def _retired_segments(topic: str, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield tombstones for the index, then for the segments: no topic loads while its index names a missing segment."""
    if topic in keys.get(SnapshotKind.INDEX, ()):
        yield SnapshotMessage(SnapshotKind.INDEX, topic, None)
    segment_keys: Iterable[SegmentKey | None] = map(segment_key_of, keys.get(SnapshotKind.SEGMENT, ()))
    for key in sorted(key for key in segment_keys if key and key.topic == topic):
        yield SnapshotMessage(SnapshotKind.SEGMENT, str(key), None)


def _retired_parts(topic: str, keys: Keys) -> Iterator[SnapshotMessage]:
    for step in snapshot_parts.retire(topic, keys.get(SnapshotKind.PARTS, ())):
        yield SnapshotMessage(SnapshotKind.PARTS, step.key, step.value)
