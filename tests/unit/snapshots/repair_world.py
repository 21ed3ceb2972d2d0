"""A broker with one topic, and what is read, loaded and sent of it, as far as repairs and undos ask for it."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import ManualClock
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.repair_journal import RepairJournal
from streaming.snapshots.repair.steps import Repairs
from streaming.state.filesystem import Folder
from tests.builders import list_znode
from udfs.formats.entry import Content
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.records import BrokerView, Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.avro_schemas import SchemaOrigin
from udfs.snapshots.codec import Index, Segment, encode_index, encode_segment, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.topic_findings import BufferFacts
from udfs.snapshots.values import ReadValue, read_message
from udfs.undelivered import UndeliveredMessage

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"
INDEXES = system_topic(SPACE, SnapshotKind.INDEX)
SEGMENTS = system_topic(SPACE, SnapshotKind.SEGMENT)
TAIL = (1, 4)
OLD = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1)), (1, (10, 0), (5, 9))]), (5, 9), ids_of([TAIL])))
IDS = {0: [(1, 1), (1, 2)], 1: [(1, 3)]}
MARKERS = {0: (5, 1), 1: (5, 9)}
DOUBLED = [(1, 2), (1, 3)]


def read_at(kind: SnapshotKind, key: str, value: bytes | None, at: Position) -> ReadValue:
    found = UndeliveredMessage(
        batch_index=-1, content=Content(key=key.encode(), payload=value or b"", properties={}, is_null=value is None)
    )
    return read_message(kind, SPACE, at, found, lambda _version: SchemaOrigin.BROKERS)


def segment_at(
    number: int, at: Position, ids: Sequence[tuple[int, int]] = (), marker: Position | None = None
) -> ReadValue:
    value = encode_segment(Segment(TOPIC, number, marker or MARKERS[number], ids_of(ids or IDS[number])))
    return read_at(SnapshotKind.SEGMENT, f"multiple-{number}-{TOPIC}", value, at)


@dataclass
class World:
    """A broker with one topic whose first segment was trimmed: it loads once its index is empty."""

    node: Znode | Unreadable | None = field(
        default_factory=lambda: Znode(data=list_znode(5), version=0, ctime_ms=0, mtime_ms=0)
    )
    indexes: list[ReadValue] = field(default_factory=lambda: [read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 1))])
    segments: Sequence[ReadValue] = field(default_factory=lambda: [segment_at(1, (10, 0))])
    cursor: Position | None = None
    is_loaded: bool = False
    replayed: int = 3
    state: str = "Ready"
    max_read: Position = (6, 0)
    trimmed: int = 0  # so many ledgers of the topic of indexes
    forbids: bool = False
    done: list[str] = field(default_factory=list)
    meanwhile: ReadValue | None = None
    compacts: dict[int, ReadValue] = field(
        default_factory=lambda: {0: segment_at(0, (9, 0)), 1: segment_at(1, (10, 0))}
    )
    gets: list[tuple[int, int] | None] = field(default_factory=lambda: [None, (1, 9)])
    ends: bool = True
    overwritten: ReadValue | None = None
    loads: bool = True
    breaks: bool = False
    trims: bool = False
    vanishes: bool = False
    client: bool = False  # is quicker than we are: it has the topic loaded right before an index is sent
    mute: int = 0
    tries: int = 0
    sent: list[str] = field(default_factory=list)
    loaded_from: list[bytes] = field(default_factory=list)
    cursors: list[Position | None] = field(default_factory=list)  # where the guard stood at each index that was sent
    sealed: frozenset[Position] = frozenset()
    writes: list[ReadValue | None] = field(default_factory=list)  # what the broker writes at each load

    @property
    def admin(self) -> "World":
        return self

    more = admin

    def present(self, namespace: str) -> set[str]:
        return {INDEXES, SEGMENTS}

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        if kind is SnapshotKind.INDEX:
            return iter(list(self.indexes))
        return iter(list(self.compacts.values()))  # the compacted ledger still has the trimmed one

    def stored(self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL) -> Iterator[ReadValue]:
        if kind is SnapshotKind.INDEX:
            return iter(list(self.indexes))
        return (read for read in self.segments if read.position > after)

    def buffer(self, topic: str, *, with_segments: bool = False) -> BufferFacts | None:
        if self.tries and self.mute:
            self.mute -= 1
            raise UnavailableError("503")
        sealed = self.sealed if with_segments else frozenset()
        if not self.is_loaded:
            return None
        return BufferFacts(
            state=self.state, snapshot_type="Segment", aborted=self.replayed, sealed=sealed, max_read=self.max_read
        )

    def snapshot_seconds(self) -> float:
        return 5.0

    def internal_stats(self, topic: str) -> InternalStats:
        if topic == TOPIC:
            return InternalStats(ledgers=((5, 10), (6, 1)), cursors={}, pending_adds=0)
        if topic == INDEXES:
            last = self.indexes[-1].position if self.indexes else (1, -1)
            return InternalStats(ledgers=((last[0] + self.trimmed, last[1] + 1),), cursors={}, pending_adds=0)
        ledgers = tuple((ledger, 5) for ledger in sorted({10, *(each.position[0] for each in self.segments)} - {9}))
        return InternalStats(
            ledgers=ledgers, cursors={} if self.cursor is None else {GUARD: self.cursor}, pending_adds=0
        )

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        self.done.append("guard")
        self.cursor = (10, -1)

    def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        self.cursor = (position[0], position[1] - 1)

    def read_many(self, paths: Sequence[str]) -> list[Any]:
        return [self.node for _path in paths]

    def views(self, managed_ledgers: Sequence[str]) -> list[BrokerView]:
        return [BrokerView(presence=Presence.GONE) for _each in managed_ledgers]

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        yield from self.gets
        if not self.ends:
            raise UnavailableError("silence")

    def unload(self, topic: str) -> bool:
        self.done.append("unload")
        if self.vanishes:
            self.node = None
        if self.trims:
            self.segments = self.segments[1:]
        if self.overwritten is not None and "send" in self.done:
            self.indexes.append(self.overwritten)
        if self.meanwhile is not None:
            self.indexes.append(self.meanwhile)
        if self.forbids:
            raise RefusedError("403")
        if not self.is_loaded:  # a broker loads a topic that it is to unload
            self.loaded_from.append(self.indexes[-1].data)
        was_loaded, self.is_loaded = self.is_loaded, False
        return was_loaded

    def load(self, topic: str) -> None:
        self.tries += 1
        if not self.loads:
            raise UnavailableError("no answer for half a minute")
        if not self._can_load():
            raise UnavailableError("Failed to read snapshot segment")
        if not self.is_loaded:
            self.loaded_from.append(self.indexes[-1].data)
        if not self.is_loaded and self.writes and (written := self.writes.pop(0)) is not None:
            self.indexes.append(written)
        self.is_loaded = True

    def _can_load(self) -> bool:
        index = self.indexes[-1].value if self.indexes else None
        places = {read.position for read in self.segments}
        return isinstance(index, Index) and places.issuperset(
            place for _number, place, _marker in named_segments(index)
        )

    def send(self, key: str, value: bytes | None) -> Position:
        if self.breaks:
            raise UnavailableError("it broke off")
        if self.client and key == TOPIC and self._can_load():
            self.is_loaded = True
        self.done.append("send")
        self.sent.append(key)
        if key.startswith("multiple"):
            at = (11, len(self.sent))
            self.segments = [*self.segments, read_at(SnapshotKind.SEGMENT, key, value, at)]
            return at
        behind = max(50, self.indexes[-1].position[1] if self.indexes else 0)
        self.indexes.append(read_at(SnapshotKind.INDEX, key, value, (1, behind + 1)))
        self.cursors.append(self.cursor)
        return self.indexes[-1].position

    def sender(self, topic: str) -> AbstractContextManager[Sender]:
        assert topic in (INDEXES, SEGMENTS)
        return nullcontext(self)


def entries(journal: Folder) -> list[str]:
    return [name for name in journal.names() if name.endswith(".json")]


def repairs(world: World, journal: Folder, clock: ManualClock | None = None) -> Repairs:
    clock = clock or ManualClock(1_000)
    return Repairs(
        topics=cast(SnapshotTopics, world),
        store=cast(MetadataStore, world),
        loader=world,
        sender=world.sender,
        journal=RepairJournal(journal, clock),
        clock=clock,
        sleep=lambda _seconds: clock.advance(30_000),
    )


NEWER = encode_index(Index(TOPIC, entries_of([(0, (12, 0), (5, 9))]), (6, 0), ids_of([(1, 9)])))


def there(index: bytes | None) -> ReadValue:
    return read_at(SnapshotKind.INDEX, TOPIC, index, (1, 80))


def doubled(**changes: Any) -> World:
    """A topic that works, two segments of which share an id."""
    segments = [segment_at(0, (9, 0)), segment_at(1, (10, 0), DOUBLED)]
    return World(is_loaded=True, segments=segments, compacts=dict(enumerate(segments)), **changes)


class Interrupted(World):
    """Somebody presses Ctrl-C at that step of the repair, once."""

    at: str = ""

    def _perhaps(self, step: str) -> None:
        if self.at == step:
            self.at = ""
            raise KeyboardInterrupt

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        self._perhaps("guard")
        super().ensure_subscription(topic, subscription)

    def send(self, key: str, value: bytes | None) -> Position:
        self._perhaps("send")
        at = super().send(key, value)
        self._perhaps("sent")
        return at

    def load(self, topic: str) -> None:
        super().load(topic)
        self._perhaps("load")

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        self._perhaps("read")
        yield from super().delivered(topic)


def interrupted(at: str, *writes: ReadValue | None) -> Interrupted:
    world = Interrupted(sealed=frozenset({MARKER}) if writes else frozenset(), writes=list(writes))
    world.at = at
    return world


PLACE, MARKER = (10, 0), (5, 9)


def written(max_read: Position = (6, 0), at: Position = (1, 90)) -> ReadValue:
    """What a broker writes that has replayed the topic and sealed one segment."""
    value = encode_index(Index(TOPIC, entries_of([(1, PLACE, MARKER)]), max_read, ids_of([])))
    return read_at(SnapshotKind.INDEX, TOPIC, value, at)


def replayed(*writes: ReadValue | None) -> World:
    return World(sealed=frozenset({MARKER}), writes=list(writes))
