"""A guard is made where there is none, moves forward only, and never behind a segment that may be needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.errors import SafetyError, UnavailableError
from streaming.snapshots.guard import guards as module
from streaming.snapshots.guard.guards import Guards, GuardState
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, Segment, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import Fault, ReadValue

SPACE = "t/ns"
SEGMENTS = system_topic(SPACE, SnapshotKind.SEGMENT)
A, B = "persistent://t/ns/a", "persistent://t/ns/b"


def index(topic: str, *rows: tuple[int, Position]) -> ReadValue:
    value = Index(topic, entries_of([(number, place, (1, 1)) for number, place in rows]), (1, 1), ids_of([]))
    return ReadValue(
        kind=SnapshotKind.INDEX, key=topic, topic=topic, position=(1, 1), publish_ms=0, size_bytes=9, value=value
    )


def segment(topic: str, number: int, place: Position) -> ReadValue:
    value = Segment(topic, number, (1, 1), ids_of([(1, 1)]))
    return ReadValue(
        kind=SnapshotKind.SEGMENT,
        key=f"multiple-{number}-{topic}",
        topic=topic,
        position=place,
        publish_ms=0,
        size_bytes=9,
        sequence=number,
        value=value,
    )


@dataclass
class World:
    """One namespace. Every part of a broker that a guard needs, in memory."""

    indexes: Sequence[ReadValue] = ()
    segments: Sequence[ReadValue] = ()
    latest: Sequence[ReadValue] | None = None
    cursor: Position | None = None
    overshoots: int = 0
    moves: list[Position] = field(default_factory=list)
    fails: bool = False
    ledgers: tuple[tuple[int, int], ...] = ((10, 10), (11, 10), (12, 10), (13, 5))

    # SnapshotTopics
    @property
    def admin(self) -> "World":
        return self

    more = admin

    def present(self, namespace: str) -> set[str]:
        if self.fails:
            raise UnavailableError("no broker answers")
        return {SEGMENTS}

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        if kind is SnapshotKind.INDEX:
            return iter(self.indexes)
        return iter(self.segments if self.latest is None else self.latest)

    def stored(self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL) -> Iterator[ReadValue]:
        return (read for read in self.segments if read.position > after)

    # PulsarAdmin and SnapshotAdmin
    def internal_stats(self, topic: str) -> InternalStats:
        cursors = {} if self.cursor is None else {GUARD: self.cursor}
        return InternalStats(ledgers=self.ledgers, cursors=cursors, pending_adds=0)

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        self.cursor = (10, -1)

    def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        self.moves.append(position)
        ledger, entry = position
        self.cursor = (ledger + (self.overshoots if len(self.moves) == 1 else 0), entry - 1)


def guards_of(world: World) -> Guards:
    return Guards(cast(SnapshotTopics, world))


def keep(world: World) -> GuardState:
    (found,) = guards_of(world).keep([SPACE])
    return found


NAMED = [segment(A, 5, (12, 3)), segment(A, 6, (13, 1))]
OLD = [segment(A, number, (10, number)) for number in range(5)]
WELL = World([index(A, (5, (12, 3)), (6, (13, 1)))], [*OLD, *NAMED])


def test_a_guard_is_made_at_the_beginning_and_moved_to_the_ledger_of_the_first_named_segment() -> None:
    world = replace(WELL, moves=[])
    found = keep(world)
    assert (found.is_new, found.moved_from, found.position, found.error) == (True, (10, -1), (12, -1), "")
    assert world.moves == [(12, 0)]
    assert A in found.held_by


def test_a_guard_that_stands_there_already_is_left_alone() -> None:
    for cursor in ((12, -1), (12, 2)):
        world = replace(WELL, moves=[], cursor=cursor)
        assert keep(world).moved_from is None
        assert world.moves == []


@pytest.mark.parametrize("cursor", [(12, 3), (13, 0)])
def test_a_guard_behind_a_place_that_an_index_names_is_moved_back(cursor: Position) -> None:
    world = replace(WELL, moves=[], cursor=cursor)
    found = keep(world)
    assert (found.moved_from, found.position, found.error) == (cursor, (12, -1), "")
    assert world.moves == [(12, 0)]
    assert "at 12:3, which an index names" in found.describe()


def test_an_index_that_is_published_while_a_guard_moves_is_not_left_behind() -> None:
    """A repair or an undo publishes it, of segments that no index named when the guard's bound was found."""

    class Published(World):
        def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
            super().reset_cursor(topic, subscription, position)
            self.indexes = [*self.indexes, index(B, (0, (11, 1)))]

    world = Published(WELL.indexes, WELL.segments)
    found = keep(world)
    assert (found.position, found.error) == ((11, -1), "")
    assert world.moves == [(12, 0), (11, 0)]
    assert "at 11:1, which an index names" in found.describe()


def test_one_that_does_not_move_back_is_told() -> None:
    assert "does not move back" in keep(replace(WELL, moves=[], cursor=(13, 0), overshoots=1)).error


@pytest.mark.parametrize(
    ("changes", "position"),
    [
        pytest.param({"segments": [*OLD, segment(B, 0, (11, 1)), *NAMED]}, (11, -1), id="its index is still to come"),
        pytest.param({"segments": [*OLD, segment(A, 7, (11, 1)), *NAMED]}, (11, -1), id="behind the last named one"),
        pytest.param(
            {"segments": [*OLD, segment(B, 0, (11, 1)), *NAMED], "latest": NAMED}, (12, -1), id="compacted away"
        ),
        pytest.param(
            {
                "segments": [*OLD, segment(B, 0, (11, 1)), *NAMED],
                "latest": [replace(segment(B, 0, (13, 4)), value=None, is_null=True)],
            },
            (12, -1),
            id="tombstoned",
        ),
        pytest.param(
            {"indexes": [index(A, (5, (12, 3))), replace(index(B), value=None, fault=Fault.UNREADABLE)]},
            (10, -1),
            id="an index that nobody can read",
        ),
        pytest.param({"indexes": [index(A, (5, (12, 3))), index(B, (1, (10, 7)))]}, (10, -1), id="another topic's"),
        pytest.param({"indexes": [], "segments": []}, (13, -1), id="nothing is named"),
        pytest.param({"indexes": [], "segments": OLD}, (10, -1), id="the index is lost"),
    ],
)
def test_what_may_be_needed_holds_the_guard(changes: dict[str, object], position: Position) -> None:
    world = replace(WELL, moves=[], **changes)  # type: ignore[arg-type]
    assert keep(world).position == position


def test_a_guard_that_went_too_far_is_moved_back_and_told() -> None:
    world = replace(WELL, moves=[], cursor=(10, -1), overshoots=1)
    found = keep(world)
    assert "moved back" in found.error
    assert world.moves == [(12, 0), (10, 0)]


def test_where_everything_was_trimmed_the_guard_stands_before_the_first_entry_to_come() -> None:
    world = replace(WELL, moves=[], cursor=(10, -1), ledgers=((20, 0),), segments=[])
    found = keep(world)
    assert (found.error, found.position, found.lost) == ("", (20, -1), 2)


def test_too_many_candidates_leave_the_guard_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CANDIDATES", 1)
    world = replace(WELL, moves=[], segments=[segment(B, number, (11, number)) for number in range(3)])
    assert keep(world).position == (10, -1)


def test_a_namespace_that_fails_is_told_and_its_guard_left_alone() -> None:
    found = keep(replace(WELL, moves=[], fails=True))
    assert "no broker answers" in found.error
    assert "GUARD NOT UPDATED" in found.describe()


def test_a_guard_says_what_it_did() -> None:
    said = GuardState(
        namespace="t/ns", is_new=True, position=(12, -1), moved_from=(10, -1), held_by="a segment", lost=2
    ).describe()
    assert said == (
        "t/ns: guard created after 12:-1, moved from 10:-1; held by a segment; 2 segments that indexes name were "
        "trimmed before (`snapshots audit` names the topics)"
    )


@pytest.mark.parametrize(
    ("cursor", "places", "stands"),
    [
        pytest.param((12, 4), [(11, 3), (12, 1)], (11, -1), id="it goes back before the first of them"),
        pytest.param((11, 2), [(11, 3)], (11, 2), id="it stands before it"),
        pytest.param((10, -1), [(12, 3)], (10, -1), id="it never moves forward"),
        pytest.param((12, 4), [(9, 3), (12, 1)], (12, -1), id="what is gone holds nothing"),
        pytest.param((12, 4), [], (12, 4), id="there is nothing to hold"),
        pytest.param(None, [(12, 1)], (10, -1), id="there was none"),
    ],
)
def test_places_that_no_index_names_yet_are_held(
    cursor: Position | None, places: list[Position], stands: Position
) -> None:
    world = World(cursor=cursor)
    guards_of(world).hold(SPACE, places)
    assert world.cursor == stands


def test_a_guard_that_does_not_go_back_is_told() -> None:
    world = World(cursor=(12, 4), overshoots=1)
    with pytest.raises(SafetyError, match="does not move back"):
        guards_of(world).hold(SPACE, [(11, 3)])
