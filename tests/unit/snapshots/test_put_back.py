"""What got tombstones is published again: segments before indexes, and nothing over a value that is there."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from streaming.adapters.pulsar.snapshot_topics import system_topic
from streaming.errors import ConfigError, RefusedError
from streaming.snapshots.parts import Sender
from streaming.snapshots.put_back import put_back
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_name
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, decode_index, encode_index, entries_of
from udfs.snapshots.keys import SegmentKey, SnapshotKind
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import Fault, Read

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"
INDEX = encode_index(Index(TOPIC, entries_of([(0, (5, 0), (1, 1)), (1, (5, 1), (1, 2))]), (1, 2), ids_of([])))


def row(kind: SnapshotKind, key: str, value: bytes, at_ms: int = 1, topic: str = TOPIC) -> dict[str, Any]:
    owner = f"data:{managed_ledger_name(topic)}"
    return {"reference_key": owner, "topic": system_topic(SPACE, kind), "key": key, "value": value, "at_ms": at_ms}


def segment(number: int) -> str:
    return str(SegmentKey(number, TOPIC))


JOURNAL = [
    row(SnapshotKind.INDEX, TOPIC, INDEX),
    row(SnapshotKind.SEGMENT, segment(0), b"old"),
    row(SnapshotKind.SEGMENT, segment(0), b"zero", 2),
    row(SnapshotKind.SEGMENT, segment(1), b"one"),
    row(SnapshotKind.SINGLE, f"persistent://{SPACE}/other", b"x", topic=f"persistent://{SPACE}/other"),
]


@dataclass
class World:
    """Topics whose keys have tombstones; what is sent gets places in ledger 9."""

    live: list[Read] = field(default_factory=list)
    raw: list[Read] = field(default_factory=list)
    sent: list[tuple[str, bytes | None]] = field(default_factory=list)

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[Read]:
        return (read for read in self.live if read.kind is kind)

    def stored(self, namespace: str, kind: SnapshotKind) -> Iterator[Read]:
        return iter(self.raw)

    def sender(self, topic: str) -> AbstractContextManager[Sender]:
        return nullcontext(self)

    def send(self, key: str, value: bytes | None) -> Position:
        self.sent.append((key, value))
        return (9, len(self.sent))

    def run(self, journal: list[dict[str, Any]]) -> list[str]:
        return [each.in_words() for each in put_back(TOPIC, journal, self, self.sender)]


def _read(kind: SnapshotKind, key: str, at: Position, *, is_null: bool = False, fault: Fault | None = None) -> Read:
    return Read(kind, key, TOPIC, at, 1, 1, is_null=is_null, fault=fault)


def test_segments_go_first_and_the_index_names_the_new_places_of_those_whose_old_ones_are_gone() -> None:
    world = World(
        live=[_read(SnapshotKind.SEGMENT, segment(0), (8, 0), is_null=True)],
        raw=[
            _read(SnapshotKind.SEGMENT, segment(0), (5, 0), fault=Fault.UNREADABLE),
            _read(SnapshotKind.SEGMENT, segment(1), (5, 1)),
        ],
    )
    said = world.run(JOURNAL)
    assert world.sent[:2] == [(segment(0), b"zero"), (segment(1), b"one")]
    key, value = world.sent[2]
    assert key == TOPIC
    assert [place for _number, place, _marker in places_of(decode_index(value or b""))] == [(9, 1), (5, 1)]
    assert "put back" in said[0]
    assert len(world.sent) == 3


def test_an_index_whose_segments_are_where_they_were_comes_back_byte_for_byte() -> None:
    world = World(raw=[_read(SnapshotKind.SEGMENT, segment(number), (5, number)) for number in (0, 1)])
    world.run(JOURNAL)
    assert world.sent[-1] == (TOPIC, INDEX)


def test_a_key_that_has_a_value_keeps_it() -> None:
    world = World(live=[_read(SnapshotKind.INDEX, TOPIC, (8, 1))])
    said = world.run(JOURNAL)
    assert [key for key, _value in world.sent] == [segment(0), segment(1)]
    assert "left as it is" in said[-1]


def test_a_topic_of_which_nothing_was_removed_is_refused() -> None:
    with pytest.raises(ConfigError, match="no message"):
        World().run(JOURNAL[-1:])


def test_an_index_that_is_none_is_refused() -> None:
    with pytest.raises(RefusedError, match="is none"):
        World().run([row(SnapshotKind.INDEX, TOPIC, b"\xff")])
