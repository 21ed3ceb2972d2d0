"""What got tombstones is published again: nothing over a value that is there, and no index that names what is not."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.restore import Restores
from udfs.formats.entry import Content
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_name
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import Index, Segment, decode_index, encode_index, encode_segment, entries_of
from udfs.snapshots.keys import SegmentKey, SnapshotKind
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import UndeliveredMessage

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"
OLD_PLACES, MARKERS = [(5, 0), (5, 1)], [(1, 1), (1, 2)]
INDEX = encode_index(Index(TOPIC, entries_of([(0, (5, 0), (1, 1)), (1, (5, 1), (1, 2))]), (1, 2), ids_of([])))


def row(kind: SnapshotKind, key: str, value: bytes, at_ms: int = 1, topic: str = TOPIC) -> dict[str, Any]:
    owner = f"data:{managed_ledger_name(topic)}"
    return {"reference_key": owner, "topic": system_topic(SPACE, kind), "key": key, "value": value, "at_ms": at_ms}


def segment(number: int) -> str:
    return str(SegmentKey(number, TOPIC))


def value_of(number: int, marker: Position | None = None, first: int = 0) -> bytes:
    return encode_segment(Segment(TOPIC, number, marker or MARKERS[number], ids_of([(1, first + number)])))


ZERO, ONE = value_of(0), value_of(1)
JOURNAL = [
    row(SnapshotKind.INDEX, TOPIC, INDEX),
    row(SnapshotKind.SEGMENT, segment(0), value_of(0, first=70)),
    row(SnapshotKind.SEGMENT, segment(0), ZERO, 2),
    row(SnapshotKind.SEGMENT, segment(1), ONE),
    row(SnapshotKind.SINGLE, f"persistent://{SPACE}/other", b"x", topic=f"persistent://{SPACE}/other"),
]


@dataclass
class World:
    """Topics whose keys have tombstones; what is sent gets places in ledger 9. breaks_at: the send that fails."""

    live: list[ReadValue] = field(default_factory=list)
    raw: list[ReadValue] = field(default_factory=list)
    sent: list[tuple[str, bytes | None]] = field(default_factory=list)
    breaks_at: int = -1
    loaded: list[bool] = field(default_factory=list)
    guarded: list[str] = field(default_factory=list)
    is_guarded: bool = True
    guarded_behind: Position = (-1, -1)
    guard_comes_first: bool = True

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        return (read for read in self.live if read.kind is kind)

    def stored(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        return (read for read in self.raw if read.kind is kind)

    def sender(self, topic: str) -> AbstractContextManager[Sender]:
        self.opened = SnapshotKind(topic.rpartition("/")[2])
        return nullcontext(self)

    def send(self, key: str, value: bytes | None) -> Position:
        if len(self.sent) == self.breaks_at:
            raise UnavailableError("it broke off")
        self.sent.append((key, value))
        place = (9, len(self.sent))
        read = _read(self.opened, key, place, value)
        self.live.append(read)
        self.raw.append(read)
        return place

    def guard(self, namespace: str) -> Position:
        assert not self.sent or not self.guard_comes_first
        self.guarded.append(namespace)
        if not self.is_guarded:
            raise UnavailableError("no guard")
        return self.guarded_behind

    def is_loaded(self, topic: str) -> bool:
        assert topic == TOPIC
        return self.loaded.pop(0) if self.loaded else False

    def run(self, journal: list[dict[str, Any]]) -> list[str]:
        runs = Restores(self, self.sender, self.guard, self.is_loaded)
        return [each.describe() for each in runs.restore(TOPIC, journal)]

    @property
    def named(self) -> list[Position]:
        """The places that the last index names."""
        value = next(value for key, value in reversed(self.sent) if key == TOPIC)
        return [place for _number, place, _marker in named_segments(decode_index(value or b""))]


def _read(kind: SnapshotKind, key: str, at: Position, value: bytes | None) -> ReadValue:
    found = UndeliveredMessage(
        batch_index=-1, content=Content(key=key.encode(), payload=value or b"", properties={}, is_null=value is None)
    )
    return read_message(kind, SPACE, at, found, lambda _version: SchemaOrigin.BROKERS)


def _segment(number: int, at: Position, value: bytes | None) -> ReadValue:
    return _read(SnapshotKind.SEGMENT, segment(number), at, value)


def test_segments_go_first_and_the_index_names_the_new_places_of_those_whose_old_ones_are_gone() -> None:
    world = World(live=[_segment(0, (8, 0), None)], raw=[_segment(0, (5, 0), b"torn"), _segment(1, (5, 1), ONE)])
    said = world.run(JOURNAL)
    assert world.sent[:2] == [(segment(0), ZERO), (segment(1), ONE)]
    assert world.named == [(9, 1), (5, 1)]
    assert "published again" in said[0]
    assert len(world.sent) == 3
    assert world.guarded == [SPACE]


def test_an_index_whose_segments_are_where_they_were_comes_back_byte_for_byte() -> None:
    world = World(raw=[_segment(0, (5, 0), ZERO), _segment(1, (5, 1), ONE)])
    world.run(JOURNAL)
    assert world.sent[-1] == (TOPIC, INDEX)


@pytest.mark.parametrize(
    ("max_read", "tail", "places", "begins"),
    [((1, 1), [], [(5, 0)], (1, 1)), ((1, 9), [(1, 9)], [(5, 0), (5, 1)], (1, 2)), ((1, 0), [], [], (-1, -1))],
)
def test_of_an_index_nothing_comes_back_that_its_broker_finds_again(
    max_read: Position, tail: list[tuple[int, int]], places: list[Position], begins: Position
) -> None:
    """A transaction was open when the index was written; the broker would seal what lies behind it twice."""
    world = World(raw=[_segment(0, (5, 0), ZERO), _segment(1, (5, 1), ONE)])
    old = replace(decode_index(INDEX), max_read=max_read, tail=ids_of(tail))
    world.run([row | ({"value": encode_index(old)} if row["key"] == TOPIC else {}) for row in JOURNAL])
    assert world.named == places
    index = decode_index(world.sent[-1][1] or b"")
    assert (index.max_read, index.tail.rows) == (begins, 0)


def test_an_index_does_not_name_places_that_the_guard_has_left_behind() -> None:
    """A guard moves over segments while nothing names them, and then they are trimmed at any time."""
    world = World(raw=[_segment(0, (5, 0), ZERO), _segment(1, (5, 1), ONE)], guarded_behind=(5, 0))
    world.run(JOURNAL)
    assert world.named == [(9, 1), (5, 1)]


def test_what_an_undo_that_broke_off_sent_is_sent_again_where_nothing_keeps_it_any_more() -> None:
    first = World(breaks_at=2)
    with pytest.raises(UnavailableError):
        first.run(JOURNAL)
    second = World(first.live, first.raw, list(first.sent), guard_comes_first=False, guarded_behind=(9, 1))
    second.run(JOURNAL)
    assert [key for key, _value in second.sent[2:]] == [segment(0), TOPIC]
    assert second.named == [(9, 3), (9, 2)]


def test_a_newer_segment_stays_though_nothing_keeps_it() -> None:
    newer = _segment(1, (5, 1), value_of(1, (7, 7)))
    world = World(live=[newer], raw=[newer], guarded_behind=(6, 0))
    with pytest.raises(SafetyError, match=r"segments 1 .* neither"):
        world.run(JOURNAL)
    assert world.sent == []


def test_a_key_that_has_a_value_keeps_it() -> None:
    world = World(live=[_read(SnapshotKind.INDEX, TOPIC, (8, 1), INDEX)])
    said = world.run(JOURNAL)
    assert [key for key, _value in world.sent] == [segment(0), segment(1)]
    assert "was not changed" in said[-1]


@pytest.mark.parametrize("breaks_at", [1, 2])
def test_one_that_broke_off_is_brought_to_its_end_by_the_next_one(breaks_at: int) -> None:
    """The segments that the first one sent are kept by the second, and its index names them where they are now."""
    first = World(breaks_at=breaks_at)
    with pytest.raises(UnavailableError):
        first.run(JOURNAL)
    second = World(first.live, first.raw, list(first.sent), guard_comes_first=False)
    second.run(JOURNAL)
    assert [key for key, _value in second.sent] == [segment(0), segment(1), TOPIC]
    assert second.named == [(9, 1), (9, 2)]


def test_an_index_that_names_a_segment_that_is_nowhere_is_refused_before_anything_is_sent() -> None:
    world = World()
    with pytest.raises(SafetyError, match=r"segments 1 .* neither"):
        world.run([row for row in JOURNAL if row["key"] != segment(1)])
    assert world.sent == []


def test_a_newer_segment_of_that_number_does_not_stand_for_the_one_that_the_index_names() -> None:
    newer = _segment(1, (8, 1), value_of(1, (7, 7)))
    world = World(live=[newer], raw=[newer])
    with pytest.raises(SafetyError, match=r"segments 1 .* neither"):
        world.run(JOURNAL)
    assert world.sent == []


def test_an_index_is_not_sent_where_a_segment_that_was_sent_is_not_found_again() -> None:
    class Forgetful(World):
        def stored(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
            return iter([])

    world = Forgetful()
    with pytest.raises(SafetyError, match="can't be read at their positions"):
        world.run(JOURNAL)
    assert [key for key, _value in world.sent] == [segment(0), segment(1)]


def test_without_a_guard_nothing_is_sent() -> None:
    world = World(is_guarded=False)
    with pytest.raises(UnavailableError, match="no guard"):
        world.run(JOURNAL)
    assert world.sent == []


def test_a_topic_that_is_loaded_is_refused() -> None:
    world = World(loaded=[True])
    with pytest.raises(SafetyError, match="is loaded"):
        world.run(JOURNAL)
    assert (world.sent, world.guarded) == ([], [])


def test_a_topic_that_is_loaded_meanwhile_gets_no_index() -> None:
    world = World(loaded=[False, True])
    with pytest.raises(SafetyError, match="is loaded"):
        world.run(JOURNAL)
    assert [key for key, _value in world.sent] == [segment(0), segment(1)]


def test_a_topic_of_which_nothing_was_removed_is_refused() -> None:
    with pytest.raises(ConfigError, match="no removed message"):
        World().run(JOURNAL[-1:])


def test_an_index_that_is_none_is_refused() -> None:
    with pytest.raises(RefusedError, match="can't be decoded"):
        World().run([row(SnapshotKind.INDEX, TOPIC, b"\xff")])


def test_a_segment_in_the_journal_that_is_none_stands_for_nothing() -> None:
    world = World()
    with pytest.raises(SafetyError, match=r"segments 0 .* neither"):
        world.run([JOURNAL[0], row(SnapshotKind.SEGMENT, segment(0), b"torn", 2), JOURNAL[3]])
    assert world.sent == []
