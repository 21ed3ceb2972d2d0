"""`ledger-reaper snapshots undo --removed|--migrated`: publish again what the service or a migration removed.

1. The journal's newest message of each key is published. If a key has a value by now, the value stays.
2. A guard (a subscription that keeps segments from being trimmed) is created first. A loaded topic is refused.
3. Segments go before the index of their topic. An index names segments by position: if the old position of a segment is
   not kept any more, the restored index names the position where that very segment is now, with the same number and
   last marker. All segments must be stored or in the journal before anything is sent, and stored before the index is
   sent.
4. Nothing is deleted, and nothing is published that is not in the journal. Run an interrupted undo again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.errors import ConfigError, RefusedError, SafetyError
from streaming.snapshots.parts.topic import Sender
from streaming.terminal import some_of
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_name, namespace_of
from udfs.snapshots.codec import Index, Segment, decode_index, decode_segment, encode_segment
from udfs.snapshots.keys import SegmentKey, SnapshotKind, part_key_of
from udfs.snapshots.repair_rules import Named, complete_part_of, moved_index
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.values import ReadValue

Values: TypeAlias = Mapping[tuple[SnapshotKind, str], bytes]
_NAMED = 10
_WITHOUT_INDEX = (
    "Keep its consumers away if it has messages: without an index they would also get messages of aborted transactions"
)
_IN_ORDER = (SnapshotKind.SEGMENT, SnapshotKind.SINGLE, SnapshotKind.INDEX, SnapshotKind.PARTS)


class SnapshotReads(Protocol):
    """Reads of a namespace's snapshot topics. Both methods raise UnavailableError, RefusedError."""

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        """Yield the messages that a compacted reader gets; the last message of each key counts."""
        ...

    def stored(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        """Yield the messages in the topic's own ledgers."""
        ...


@dataclass(frozen=True, slots=True)
class Restored:
    """The result for one message."""

    kind: SnapshotKind
    key: str
    position: Position | None  # of the published message; None: its key had a value, and nothing was sent

    def describe(self) -> str:
        """Return one line for the terminal."""
        if self.position is None:
            return f"{self.key}: has a value in {self.kind}, which was not changed"
        return f"{self.key}: published again in {self.kind} at {self.position[0]}:{self.position[1]}"


@dataclass(frozen=True, slots=True)
class Restores:
    """Publishes removed messages again."""

    topics: SnapshotReads
    sender: Callable[[str], AbstractContextManager[Sender]]  # opens a producer on a system topic
    guard: Callable[[str], Position]  # creates a namespace's guard; segments after the returned position are kept
    is_loaded: Callable[[str], bool]  # whether a broker has a topic loaded

    def restore(
        self, topic: str, journaled: Iterable[Mapping[str, Any]], remedy: str = _WITHOUT_INDEX
    ) -> Iterator[Restored]:
        """Publish again what the journal has about a topic, one message after the other.

        journaled: rows of the snapshots' journal. remedy: advice for the error if the index is refused. Raises
        ConfigError if the journal has no message of the topic, SafetyError if the undo is refused, UnavailableError,
        RefusedError.
        """
        namespace = namespace_of(topic)
        values = _newest(topic, journaled)
        if not values:
            raise ConfigError(f"the journal contains no removed message about {topic}")
        self._refuse_loaded(topic)
        # the guard comes first, so that the messages are not trimmed as soon as they are published
        guard = self.guard(namespace)
        has_value = {kind: self._with_value(topic, kind, values, guard) for kind in {kind for kind, _key in values}}
        missing = {what: value for what, value in values.items() if what[1] not in has_value[what[0]]}
        self._refuse_dangling(topic, missing, guard, remedy)
        for kind in _IN_ORDER:
            chosen = {key: values[of_kind, key] for of_kind, key in sorted(values, key=_by_key) if of_kind is kind}
            if not chosen:
                continue
            kept = self._with_value(topic, kind, values, guard)
            with self.sender(system_topic(namespace, kind)) as sender:
                for key, value in chosen.items():
                    if key in kept:
                        yield Restored(kind, key, None)
                        continue
                    if kind is not SnapshotKind.SEGMENT:  # a broker that has loaded the topic no longer reads segments
                        self._refuse_loaded(topic)
                    data = self._with_current_positions(topic, value, guard) if kind is SnapshotKind.INDEX else value
                    yield Restored(kind, key, sender.send(key, data))

    def _refuse_loaded(self, topic: str) -> None:
        if self.is_loaded(topic):
            raise SafetyError(
                f"{topic} is loaded: its broker has its own list of aborted transactions, and would write over the "
                "restored one. Disconnect its clients, unload it, and try again"
            )

    def _with_value(self, topic: str, kind: SnapshotKind, values: Values, guard: Position) -> set[str]:
        """Return the keys that have a value, but not those of segments in `values` that the guard does not keep."""
        keys: set[str] = set()
        for read in self.topics.compacted(namespace_of(topic), kind):
            if read.topic == topic:
                is_ours = isinstance(read.value, Segment) and encode_segment(read.value) == values.get((kind, read.key))
                # a segment that the guard passed while no index named it may be trimmed at any time: it counts as gone
                is_free = read.is_null or (is_ours and read.position <= guard)
                (keys.discard if is_free else keys.add)(read.key)
        return keys

    def _refuse_dangling(self, topic: str, missing: Values, guard: Position, remedy: str) -> None:
        """Refuse an index that names a segment which is neither stored nor about to be sent."""
        value = missing.get((SnapshotKind.INDEX, topic))
        if value is None:
            return
        index, stored = _index(topic, value), self._stored(topic, guard)
        there = {*stored.values(), *_segments(topic, missing)}
        lost = [
            number
            for number, position, marker in named_segments(index)
            if (number, marker) not in there and not _is_at(position, number, stored)
        ]
        if lost:
            raise SafetyError(
                f"{topic}: segments {some_of(lost, _NAMED)} that its index names are neither in the segments topic nor "
                f"in the journal, so the topic would not load with the index: nothing was sent. {remedy}"
            )

    def _stored(self, topic: str, guard: Position) -> dict[Position, Named]:
        """Return position -> segment, for the topic's stored segments that the guard keeps."""
        return {
            read.position: (read.sequence, read.value.marker)
            for read in self.topics.stored(namespace_of(topic), SnapshotKind.SEGMENT)
            if read.topic == topic and isinstance(read.value, Segment) and read.position > guard
        }

    def _with_current_positions(self, topic: str, value: bytes, guard: Position) -> bytes:
        """Return the index up to its maxReadPosition, with the new positions of segments that were published again."""
        old, stored = _index(topic, value), self._stored(topic, guard)
        # a replay finds later aborts again, so an index that contained their ids would have them sealed twice
        index = complete_part_of(old)
        now = {named: position for position, named in stored.items()}
        rows = named_segments(index)
        gone = [(number, marker) for number, position, marker in rows if not _is_at(position, number, stored)]
        if lost := [named[0] for named in gone if named not in now]:
            raise SafetyError(
                f"{topic}: segments {some_of(lost, _NAMED)} were published again and can't be read at their positions, "
                "so its index was not restored. Run the command again"
            )
        is_whole = not old.tail.rows and list(named_segments(index)) == list(named_segments(old))
        return moved_index(old if is_whole else index, {named: now[named] for named in gone})


def _is_at(position: Position, number: int, stored: Mapping[Position, Named]) -> bool:
    return position in stored and stored[position][0] == number


def _by_key(what: tuple[SnapshotKind, str]) -> tuple[bool, str]:
    # the part `end` of a snapshot goes last: without it, the other parts do not count
    part = part_key_of(what[1])
    return part is not None and part.number is None, what[1]


def _index(topic: str, value: bytes) -> Index:
    try:
        return decode_index(value)
    except FormatError as error:
        raise RefusedError(f"the journal's index of {topic} can't be decoded: {error}") from error


def _segments(topic: str, values: Values) -> Iterator[Named]:
    for (kind, key), value in values.items():
        if kind is SnapshotKind.SEGMENT:
            with suppress(FormatError):  # a value that can't be decoded is not a segment
                segment = decode_segment(value)
                if key == str(SegmentKey(segment.sequence, topic)):
                    yield segment.sequence, segment.marker


def _newest(topic: str, journaled: Iterable[Mapping[str, Any]]) -> dict[tuple[SnapshotKind, str], bytes]:
    owner = f"data:{managed_ledger_name(topic)}"
    newest: dict[tuple[SnapshotKind, str], Mapping[str, Any]] = {}
    for row in journaled:
        if row["reference_key"] == owner:
            what = (SnapshotKind(str(row["topic"]).rpartition("/")[2]), str(row["key"]))
            if what not in newest or row["at_ms"] >= newest[what]["at_ms"]:
                newest[what] = row
    return {what: row["value"] for what, row in newest.items()}
