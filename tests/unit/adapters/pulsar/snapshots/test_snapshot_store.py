"""A sweep's access to snapshot topics: guards, sends and compactions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD, NO_LIMIT, SnapshotStore
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError
from udfs.formats.internal_stats import InternalStats, Position
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue

SPACE = "t/ns"
OWNER = "persistent://t/ns/orders"
SEGMENTS = system_topic(SPACE, SnapshotKind.SEGMENT)


@dataclass
class World:
    """The admin API of a namespace with segments."""

    cursors: Mapping[str, Position] = field(default_factory=dict)
    kept: tuple[int, int] = (0, 0)
    ends: int | None = 3  # the poll at which a compaction has ended; None: never
    asked: list[str] = field(default_factory=list)
    polls: int = 0
    named: Position | None = None

    @property
    def admin(self) -> "World":
        return self

    more = admin

    def present(self, namespace: str) -> set[str]:
        return {SEGMENTS} if self.named is None else {SEGMENTS, system_topic(namespace, SnapshotKind.INDEX)}

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        assert kind is SnapshotKind.INDEX
        assert self.named is not None
        rows = entries_of([(0, self.named, (1, 1))])
        value = Index(OWNER, rows, (1, 1), ids_of([]))
        yield ReadValue(kind=kind, key=OWNER, topic=OWNER, position=(3, 0), publish_ms=0, size_bytes=9, value=value)

    def retention(self, topic: str) -> tuple[int, int]:
        return self.kept

    def ask_for_compaction(self, topic: str) -> None:
        self.asked.append(topic)

    def internal_stats(self, topic: str) -> InternalStats:
        self.polls += 1
        has_ended = self.ends is not None and self.polls > self.ends
        return InternalStats(
            ledgers=((7, 4),), cursors=self.cursors, pending_adds=0, compacted=(71 if has_ended else 70, 9)
        )


def _store(world: World) -> SnapshotStore:
    return SnapshotStore(cast(PulsarSettings, None), cast(SnapshotTopics, world), lambda _seconds: None)


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        pytest.param(World(), False, id="nothing"),
        pytest.param(World({"another": (1, 1)}), False, id="another subscription"),
        pytest.param(World({GUARD: (1, 1)}), True, id="a guard"),
        pytest.param(World({GUARD: (7, 0)}, named=(7, 1)), True, id="a guard right before what is named"),
        pytest.param(World({GUARD: (7, 1)}, named=(7, 1)), False, id="a guard after a named segment"),
        pytest.param(World({GUARD: (7, 1)}, named=(6, 1)), True, id="a guard after a segment that is gone"),
        pytest.param(World({GUARD: (7, 1)}, NO_LIMIT, named=(7, 1)), True, id="a late guard, and retention"),
        pytest.param(World(kept=NO_LIMIT), True, id="retention without limit"),
        pytest.param(World(kept=(-1, 10)), False, id="retention with a limit"),
    ],
)
def test_a_guard_or_unlimited_retention_protects(world: World, expected: bool) -> None:
    assert _store(world).is_guarded(SPACE) is expected


def test_existing_topics_and_their_ends_are_returned() -> None:
    store = _store(World())
    assert store.kinds(SPACE) == {SnapshotKind.SEGMENT}
    assert store.last(SPACE, SnapshotKind.SEGMENT) == (7, 3)


def test_a_compaction_has_ended_with_a_new_compacted_ledger() -> None:
    world = World()
    assert _store(world).compact(SPACE, SnapshotKind.SEGMENT)
    assert world.asked == [SEGMENTS]
    assert not _store(World(ends=None)).compact(SPACE, SnapshotKind.SEGMENT)


def test_nothing_is_sent_to_a_missing_topic() -> None:
    with pytest.raises(RefusedError, match="only brokers create it"), _store(World()) as store:
        store.send(SPACE, SnapshotKind.INDEX, "key", None)
