"""From one form of a topic's snapshot to another: single, in parts (udfs.snapshots.parts), and PIP-196's segments.

Where a topic has several forms, the one in parts counts if it has its `end`, else the index, else the single one, else
nothing (then the topic is replayed). Each of them is right by itself, however old it is: it holds what it says up to
its own maxReadPosition, and the rest is replayed. So a migration writes the new form whole, and takes the old ones away
afterwards, those that would be preferred last of all. It may be cut short behind any message and begun again.

While a topic is migrated, nobody else may write its snapshots: its broker must not have it loaded.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots import parts, segments
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
    """One message to send to the compacted topic of that kind. value None: a tombstone."""

    kind: SnapshotKind
    key: str
    value: bytes | None


Keys = Mapping[SnapshotKind, Collection[str]]  # that have a value now, of each compacted topic


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What was read of a namespace's snapshots: latest values by kind and key, and segments by their places."""

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
"""Of each form, what counts before it if both are there."""


class StoredForm(NamedTuple):
    """Which form of a topic's snapshot counts, and what it says; kind None: there is none."""

    kind: SnapshotKind | None
    max_read: Position
    aborts: Aborts


def kind_of(keys: Keys, topic: str) -> SnapshotKind | None:
    """Return which form of a topic's snapshot counts, by the keys that have a value; None: it has no snapshot."""
    if parts.counting_of(keys.get(SnapshotKind.PARTS, ()), topic):
        return SnapshotKind.PARTS
    kinds = (SnapshotKind.INDEX, SnapshotKind.SINGLE)
    return next((kind for kind in kinds if topic in keys.get(kind, ())), None)


def current(stored: Stored, topic: str, ledgers: Collection[int], newest: Position) -> StoredForm:
    """Return what counts for a topic; newest: place of its newest entry, as segments.recover wants it.

    Raises FormatError where the form that counts can't be read, or is an index that has ids twice.
    """
    kind = kind_of(stored.keys, topic)
    if kind is SnapshotKind.PARTS:
        in_parts = parts.recover(stored.latest[kind], topic, ledgers)
        return StoredForm(kind, in_parts.max_read, in_parts.aborts)
    if kind is SnapshotKind.INDEX:
        read = decode_index(stored.latest[kind][topic])
        found = segments.recover(read, stored.segments_at, newest)
        named = [stored.segments_at[place].ids.rows for _number, place, _marker in segments.places_of(read)]
        if found.rows < sum(named) + read.tail.rows:  # then where an id's marker lies can't be told
            raise FormatError(f"ids stand twice in the index of {topic} and its segments: repair it first")
        return StoredForm(kind, read.max_read, trimmed(found, ledgers))
    if kind is SnapshotKind.SINGLE:
        snapshot = decode_snapshot(stored.latest[kind][topic])
        return StoredForm(kind, snapshot.max_read, trimmed(snapshot.aborts, ledgers))
    return StoredForm(None, parts.NOTHING.max_read, parts.NOTHING.aborts)


def without_preferred(stored: Stored, kind: SnapshotKind) -> Stored:
    """Return what is stored without the forms that count before that form."""
    preferred = PREFERRED[kind]
    return Stored({each: values for each, values in stored.latest.items() if each not in preferred}, stored.segments_at)


def before(form: StoredForm, position: Position) -> Aborts:
    """Return the ids of a form whose markers are at a position or before it."""
    ledger, entry = position
    stays = (form.aborts.ledger < ledger) | ((form.aborts.ledger == ledger) & (form.aborts.entry <= entry))
    return Aborts(*(column[stays] for column in form.aborts))


def missing(wanted: Aborts, found: Aborts) -> int:
    """Return how many ids of the first are not in the second."""
    most, least = (np.concatenate(columns) for columns in zip(found.ids, wanted.ids, strict=True))
    both = np.stack([most, least], axis=1)
    return len(np.unique(both, axis=0)) - len(np.unique(both[: found.rows], axis=0))


def to_parts(topic: str, form: StoredForm, capacity: Capacity, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield the messages that store `form` in parts and then take the others away, in this order and one by one."""
    for step in parts.write(topic, form.aborts, form.max_read, capacity, keys.get(SnapshotKind.PARTS, ())):
        yield SnapshotMessage(SnapshotKind.PARTS, step.key, step.value)
    yield from _retired_segments(topic, keys)
    if topic in keys.get(SnapshotKind.SINGLE, ()):
        yield SnapshotMessage(SnapshotKind.SINGLE, topic, None)


def to_single(topic: str, form: StoredForm, most_bytes: int, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield the messages that store `form` as one single snapshot and then take the others away, in this order.

    Raises FormatError where it would be larger than most_bytes; nothing was yielded then.
    """
    value = encode_snapshot(Snapshot(topic, form.max_read, form.aborts))
    if len(value) > most_bytes:
        raise FormatError(f"{form.aborts.rows} aborted ids of {topic} take {len(value)} bytes, more than {most_bytes}")
    yield SnapshotMessage(SnapshotKind.SINGLE, topic, value)
    yield from _retired_segments(topic, keys)
    yield from _retired_parts(topic, keys)


def retired(topic: str, kind: SnapshotKind, keys: Keys) -> Iterator[SnapshotMessage]:
    """Yield the tombstones of what counts before a form, what would be preferred last of all."""
    if SnapshotKind.INDEX in PREFERRED[kind]:
        yield from _retired_segments(topic, keys)
    if SnapshotKind.PARTS in PREFERRED[kind]:
        yield from _retired_parts(topic, keys)


def to_segments(topic: str, form: StoredForm, ids: int, keys: Keys) -> Generator[SnapshotMessage, Position, None]:
    """Yield the messages that store `form` in segments of so many ids; whoever sends one answers with its place."""
    yield from to_segments_of(topic, (form.aborts,), form.max_read, ids, keys)


def to_segments_of(
    topic: str, pieces: Iterable[Aborts], max_read: Position, ids: int, keys: Keys
) -> Generator[SnapshotMessage, Position, None]:
    """Yield the messages that store these ids in segments; whoever sends one answers with its place.

    pieces: in the order of their markers (parts.pieces); one of them is in memory at a time. The new segments get
    numbers above all that the topic has, so that no index of another's loses a segment. What became of the old ones is
    tombstoned behind the index, then the parts. A single snapshot stays, as it does where a broker begins with
    segments. Ids whose marker lies, or may lie, behind max_read are left to the replay: a broker that is given them
    and finds their markers seals them twice.
    """
    old = [key for key in map(segment_key_of, keys.get(SnapshotKind.SEGMENT, ())) if key and key.topic == topic]
    first = max((key.sequence for key in old), default=-1) + 1
    rows: list[tuple[int, Position, Position]] = []
    cut = _Cut(pieces, max_read)
    sealing = segments.sealed(topic, cut, ids, first)
    while True:
        try:
            segment = next(sealing)
        except StopIteration as ended:
            tail = ended.value
            break
        named = str(SegmentKey(segment.sequence, topic))
        place = yield SnapshotMessage(SnapshotKind.SEGMENT, named, encode_segment(segment))
        rows.append((segment.sequence, place, segment.marker))
    yield SnapshotMessage(SnapshotKind.INDEX, topic, encode_index(Index(topic, entries_of(rows), cut.max_read, tail)))
    for key in old:
        yield SnapshotMessage(SnapshotKind.SEGMENT, str(key), None)
    yield from _retired_parts(topic, keys)


class _Cut:
    """The pieces without what lies behind max_read; where anything does, the last marker before it is the new one.

    A marker that is too late, as an index's tail has it, costs a longer replay: what is left out lies behind the last
    one that stays, since the pieces come in the order of their markers.
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
        """Up to where what was yielded so far is complete."""
        return self._last if self._is_cut else self._max_read


def _retired_segments(topic: str, keys: Keys) -> Iterator[SnapshotMessage]:
    """The index goes first: a broker can't load a topic whose index names what is no longer there."""
    if topic in keys.get(SnapshotKind.INDEX, ()):
        yield SnapshotMessage(SnapshotKind.INDEX, topic, None)
    found: Iterable[SegmentKey | None] = map(segment_key_of, keys.get(SnapshotKind.SEGMENT, ()))
    for key in sorted(key for key in found if key and key.topic == topic):
        yield SnapshotMessage(SnapshotKind.SEGMENT, str(key), None)


def _retired_parts(topic: str, keys: Keys) -> Iterator[SnapshotMessage]:
    for step in parts.retire(topic, keys.get(SnapshotKind.PARTS, ())):
        yield SnapshotMessage(SnapshotKind.PARTS, step.key, step.value)
