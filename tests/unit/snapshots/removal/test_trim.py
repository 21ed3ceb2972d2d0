"""Dead ids are dropped by an empty transaction, where there are any and nothing can be lost by it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from streaming.errors import SafetyError, UnavailableError
from streaming.snapshots.removal.trim import Trimmed, Trims
from streaming.snapshots.repair.steps import Repairs
from streaming.snapshots.repair.topic_session import TopicState
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.codec import Index, Snapshot, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import READY, BufferFacts, NamedSegment, SnapshotFacts, TopicFacts
from udfs.snapshots.values import ReadValue

TOPIC = "persistent://t/ns/orders"
LIVES, GONE = 5, 4
INDEX = ReadValue(kind=SnapshotKind.INDEX, key=TOPIC, topic=TOPIC, position=(1, 1), publish_ms=1, size_bytes=1)


def _segment(number: int, marker: int, *, is_readable: bool = True) -> NamedSegment:
    return NamedSegment(number, (70, number), (marker, 9), is_readable=is_readable)


FACTS = TopicFacts(
    topic=TOPIC,
    in_metadata=Presence.PRESENT,
    at_broker=Presence.UNREADABLE,
    ledgers=frozenset({LIVES}),
    named=(_segment(0, GONE, is_readable=False), _segment(1, GONE), _segment(2, LIVES)),
)


@dataclass
class World:
    """A topic whose broker drops dead ids at the n-th look after a commit; 0: never."""

    facts: TopicFacts = FACTS
    single: tuple[int, ...] = ()
    drops_at: int = 2
    index: ReadValue | None = INDEX
    committed: list[str] = field(default_factory=list)
    looks: int = 0
    memory: BufferFacts | None = None

    @property
    def topics(self) -> "World":
        return self

    more = topics

    def buffer(self, topic: str, *, with_segments: bool = False) -> BufferFacts | None:
        assert with_segments
        return self.memory

    def state_of(self, topic: str) -> TopicState:
        self.looks += bool(self.committed)
        if self.looks == self.drops_at and self.committed:
            living = tuple(each for each in self.facts.named if each.marker[0] in self.facts.ledgers)
            self.facts = replace(self.facts, named=living)
            if self.index is None:
                self.single = tuple(each for each in self.single if each in self.facts.ledgers)
        return TopicState(self.facts, self.index, {})

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        assert kind is SnapshotKind.SINGLE
        at: Position = (1, 1)
        value = Snapshot(TOPIC, at, aborts_of([(0, number, ledger, 0) for number, ledger in enumerate(self.single)]))
        return iter(
            [ReadValue(kind=kind, key=TOPIC, topic=TOPIC, position=at, publish_ms=1, size_bytes=1, value=value)]
            if self.single
            else []
        )

    def trim(self) -> Trimmed:
        return Trims(cast(Repairs, self), self.committed.append, lambda _seconds: None).trim(TOPIC)


def test_dead_segments_are_dropped_by_one_empty_transaction() -> None:
    world = World()
    assert world.trim() == Trimmed(TOPIC, 2, 0)
    assert world.committed == [TOPIC]


def test_dead_ids_of_a_single_snapshot_are_too() -> None:
    world = World(replace(FACTS, named=()), (GONE, GONE, LIVES), index=None)
    assert world.trim() == Trimmed(TOPIC, 0, 2)


def test_beside_an_index_a_single_snapshot_does_not_count() -> None:
    facts = replace(FACTS, named=(_segment(0, GONE),))
    assert World(facts, (GONE, GONE)).trim() == Trimmed(TOPIC, 1, 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"named": (_segment(2, LIVES),)}, "no ids", id="nothing is dead"),
        pytest.param({"doubled_ids": 3}, "repair it first", id="ids stand in several segments"),
        pytest.param({"named": (_segment(0, GONE), _segment(1, LIVES, is_readable=False))}, "can't be read", id="lost"),
        pytest.param({"in_metadata": Presence.GONE}, "does not have the topic", id="the topic is gone"),
        pytest.param({"in_metadata": Presence.UNREADABLE}, "could not be read", id="its list can't be read"),
    ],
)
def test_else_nothing_is_committed(changes: dict[str, Any], why: str) -> None:
    world = World(replace(FACTS, **changes))
    with pytest.raises(SafetyError, match=why):
        world.trim()
    assert world.committed == []


def _indexed(max_read: Position) -> dict[str, Any]:
    """An index of a dead and a living segment, which is complete up to max_read."""
    rows = [(each.sequence, each.position, each.marker) for each in FACTS.named[1:]]
    value = Index(TOPIC, entries_of(rows), max_read, ids_of([]))
    told = SnapshotFacts(kind=SnapshotKind.INDEX, key=TOPIC, position=(1, 1), size_bytes=9, max_read=max_read)
    return {
        "facts": replace(FACTS, named=FACTS.named[1:], values=(told,)),
        "index": replace(INDEX, value=value),
    }


SEALED = BufferFacts(state=READY, snapshot_type="Segment", aborted=3, sealed=frozenset({(GONE, 9), (LIVES, 9)}))


@pytest.mark.parametrize("memory", [None, SEALED])
def test_an_index_up_to_its_last_marker_is_no_hindrance(memory: BufferFacts | None) -> None:
    world = World(**_indexed((LIVES, 9)), memory=memory)
    assert world.trim() == Trimmed(TOPIC, 1, 0)


@pytest.mark.parametrize(
    ("max_read", "memory", "why"),
    [
        pytest.param(BEFORE_ALL, SEALED, "during a replay", id="half a replay's index"),
        pytest.param(BEFORE_ALL, None, "during a replay", id="half a replay's index of a topic nobody has"),
        pytest.param((LIVES, 8), None, "after its maxReadPosition", id="a marker lies behind maxReadPosition"),
        pytest.param((LIVES, 8), SEALED, "after its maxReadPosition", id="so it does of a topic that is loaded"),
        pytest.param((LIVES, 9), replace(SEALED, state="Initializing"), "wait until it is loaded", id="it replays"),
        pytest.param(
            (LIVES, 9),
            replace(SEALED, sealed=SEALED.sealed | {(LIVES, 30)}),
            "has sealed 3 segments, and 1 of them are not in its index: wait",
            id="its broker may have sealed ids twice, and not written them yet",
        ),
    ],
)
def test_nothing_is_committed_where_a_broker_would_seal_ids_twice_right_before_it_trims(
    max_read: Position, memory: BufferFacts | None, why: str
) -> None:
    """It forgot all ids then (seen on Pulsar 4.0.8)."""
    world = World(**_indexed(max_read), memory=memory)
    with pytest.raises(SafetyError, match=why):
        world.trim()
    assert world.committed == []


def test_a_broker_that_drops_nothing_is_told() -> None:
    with pytest.raises(UnavailableError, match="dropped nothing yet"):
        World(drops_at=0).trim()
