"""Tombstones are taken away behind a guard and a live record; where none can be read, nothing is done."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from streaming.errors import SafetyError, UnavailableError
from streaming.snapshots.removal.compact import compact
from udfs.formats.internal_stats import Position
from udfs.snapshots.codec import decode_segment
from udfs.snapshots.keys import SegmentKey, SnapshotKind, is_keeper, segment_key_of
from udfs.snapshots.values import ReadValue

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"


@dataclass
class World:
    """A segments topic with tombstones; a compaction leaves some of them. did: what was done, in order."""

    nulls: int = 2
    leaves: int = 0
    ends: bool = True
    has_topic: bool = True
    did: list[str] = field(default_factory=list)
    sent: list[tuple[str, bytes | None]] = field(default_factory=list)

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        return {SnapshotKind.SEGMENT} if self.has_topic else {SnapshotKind.SINGLE}

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        for number in range(self.nulls + 1):
            key = str(SegmentKey(number, TOPIC))
            yield ReadValue(
                kind=kind,
                key=key,
                topic=TOPIC,
                position=(7, number),
                publish_ms=0,
                size_bytes=0,
                is_null=number < self.nulls,
            )

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        self.did.append("send")
        self.sent.append((key, value))
        return (8, 0)

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        self.did.append("compact")
        self.nulls = self.leaves
        return self.ends

    def guard(self, namespace: str) -> None:
        self.did.append("guard")


def test_a_guard_comes_first_and_a_live_record_before_the_compaction() -> None:
    world = World()
    assert compact(SPACE, world, world.guard) == 2
    assert world.did == ["guard", "send", "compact"]
    ((key, value),) = world.sent
    read = segment_key_of(key)
    assert value is not None
    assert read is not None
    assert is_keeper(read.topic)
    assert decode_segment(value).topic == read.topic


def test_where_no_tombstone_can_be_read_nothing_is_done() -> None:
    world = World(nulls=0)
    assert compact(SPACE, world, world.guard) == 0
    assert world.did == []


def test_a_namespace_without_segments_is_refused() -> None:
    world = World(has_topic=False)
    with pytest.raises(SafetyError, match="no segments topic"):
        compact(SPACE, world, world.guard)
    assert world.did == []


def test_a_guard_that_fails_leaves_everything_as_it_is() -> None:
    def fail(namespace: str) -> None:
        raise UnavailableError("no broker answers")

    world = World()
    with pytest.raises(UnavailableError, match="no broker answers"):
        compact(SPACE, world, fail)
    assert world.did == []


@pytest.mark.parametrize(
    ("world", "says"), [(World(ends=False), "has not ended"), (World(leaves=1), "1 tombstones are still visible")]
)
def test_tombstones_that_stay_are_told(world: World, says: str) -> None:
    with pytest.raises(UnavailableError, match=says):
        compact(SPACE, world, world.guard)
