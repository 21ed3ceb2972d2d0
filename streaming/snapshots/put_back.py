"""`ledger-reaper snapshots undo --removed`: publish again what the service gave tombstones to.

1. The bytes come from the journal, the newest of each key. A key that has a value by now keeps it.
2. Segments go before the index of their topic. An index names segments by place: where the old place of a segment is
   not there any more, the index that is put back names the new one.
3. Nothing is deleted, and what is not in the journal is not made up.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from streaming.adapters.pulsar.snapshot_topics import system_topic
from streaming.errors import ConfigError, RefusedError
from streaming.snapshots.parts import Sender
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_name, namespace_of
from udfs.snapshots.codec import decode_index
from udfs.snapshots.keys import SnapshotKind, segment_key_of
from udfs.snapshots.repairing import moved_index
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import Read

_IN_ORDER = (SnapshotKind.SEGMENT, SnapshotKind.SINGLE, SnapshotKind.INDEX)


class Compacted(Protocol):
    """What is read of a namespace's snapshot topics. Both raise UnavailableError, RefusedError."""

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[Read]:
        """Yield what a compacted reader gets: of a key, the last message counts."""
        ...

    def stored(self, namespace: str, kind: SnapshotKind) -> Iterator[Read]:
        """Yield what lies in the topic's own ledgers."""
        ...


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of one message. place: where it is now; None: its key had a value, and nothing was sent."""

    kind: SnapshotKind
    key: str
    place: Position | None

    def in_words(self) -> str:
        """Return one line for people."""
        if self.place is None:
            return f"{self.key}: has a value in {self.kind}, which was left as it is"
        return f"{self.key}: put back in {self.kind} at {self.place[0]}:{self.place[1]}"


def put_back(
    topic: str,
    journaled: Iterable[Mapping[str, Any]],
    topics: Compacted,
    sender: Callable[[str], AbstractContextManager[Sender]],
) -> Iterator[PutBack]:
    """Publish again what the journal has of a topic, one message after the other.

    journaled: rows of the snapshots' journal. Raises ConfigError where it has none, UnavailableError, RefusedError.
    """
    namespace = namespace_of(topic)
    values = _newest(topic, journaled)
    if not values:
        raise ConfigError(f"the journal holds no message about {topic} that was removed")
    places: dict[int, Position] = {}
    for kind in _IN_ORDER:
        mine = {key: value for (of_kind, key), value in sorted(values.items()) if of_kind is kind}
        if not mine:
            continue
        has_value = _with_value(topics, namespace, kind, topic)
        with sender(system_topic(namespace, kind)) as opened:
            for key, value in mine.items():
                if key in has_value:
                    yield PutBack(kind, key, None)
                    continue
                is_index = kind is SnapshotKind.INDEX
                place = opened.send(key, _named_anew(value, places, topics, topic) if is_index else value)
                segment = segment_key_of(key)
                if segment is not None:
                    places[segment.sequence] = place
                yield PutBack(kind, key, place)


def _newest(topic: str, journaled: Iterable[Mapping[str, Any]]) -> dict[tuple[SnapshotKind, str], bytes]:
    owner = f"data:{managed_ledger_name(topic)}"
    newest: dict[tuple[SnapshotKind, str], Mapping[str, Any]] = {}
    for row in journaled:
        if row["reference_key"] == owner:
            what = (SnapshotKind(str(row["topic"]).rpartition("/")[2]), str(row["key"]))
            if what not in newest or row["at_ms"] >= newest[what]["at_ms"]:
                newest[what] = row
    return {what: row["value"] for what, row in newest.items()}


def _with_value(topics: Compacted, namespace: str, kind: SnapshotKind, topic: str) -> set[str]:
    keys: set[str] = set()
    for read in topics.compacted(namespace, kind):
        if read.topic == topic:
            (keys.discard if read.is_null else keys.add)(read.key)
    return keys


def _named_anew(value: bytes, places: Mapping[int, Position], topics: Compacted, topic: str) -> bytes:
    """Return the index with the new places of segments whose old ones are gone."""
    try:
        index = decode_index(value)
    except FormatError as error:
        raise RefusedError(f"the journal's index of {topic} is none: {error}") from error
    stored = {
        read.position
        for read in topics.stored(namespace_of(topic), SnapshotKind.SEGMENT)
        if read.topic == topic and read.fault is None and not read.is_null
    }
    gone = {number for number, place, _marker in places_of(index) if place not in stored}
    moved = {number: place for number, place in places.items() if number in gone}
    return moved_index(index, moved) if moved else value
