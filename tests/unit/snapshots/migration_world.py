"""A broker whose snapshot topics are lists, and migrations of its topic."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import ManualClock
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore, Znode
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.migrate import Migrations
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.repair_journal import RepairJournal
from streaming.state.filesystem import Folder
from tests.builders import list_znode
from tests.unit.snapshots.repair_world import IDS, OLD, TAIL, TOPIC, read_at, segment_at
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.owners.references import COMPACTION_CURSOR
from udfs.snapshots.aborts import aborts_of
from udfs.snapshots.codec import Snapshot, encode_snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import BufferFacts
from udfs.snapshots.values import ReadValue

ALL = {*IDS[0], *IDS[1], TAIL}
SINGLE = encode_snapshot(Snapshot(TOPIC, (5, 20), aborts_of([(*each, 5, n) for n, each in enumerate(sorted(ALL))])))


@dataclass
class Broker:
    """A broker whose snapshot topics are lists; it does not have the topic loaded, but for a moment: loads_at.

    loads_at: before so many messages were sent. fails_at: the same, of a broker that does not answer.
    """

    topics: dict[SnapshotKind, list[ReadValue]]
    most_bytes: int = 100_000
    segment_bytes_: int = 8 + len(TOPIC) + 6  # two ids
    is_segmented: bool | None = True
    loads_at: int = -1
    fails_at: int = -1
    sent: list[tuple[SnapshotKind, str, bool]] = field(default_factory=list)
    held: list[list[Position]] = field(default_factory=list)
    compacted_spaces: list[str] = field(default_factory=list)
    lies: bool = False
    places: int = 0  # that messages got

    @property
    def admin(self) -> "Broker":
        return self

    more = admin

    def present(self, namespace: str) -> set[str]:
        return {system_topic(namespace, kind) for kind in self.topics}

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        for read in list(self.topics[kind]):
            is_single = isinstance(read.value, Snapshot) and read.key in with_bytes_of
            yield replace(read, data=encoded(read)) if is_single else read

    def stored(self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL) -> Iterator[ReadValue]:
        return iter(list(self.topics[kind]))

    def buffer(self, topic: str) -> BufferFacts | None:
        return (
            BufferFacts(state="Ready", snapshot_type="Segment", aborted=3) if self.loads_at == len(self.sent) else None
        )

    def broker_settings(self) -> tuple[bool | None, int]:
        return self.is_segmented, self.most_bytes

    def segment_bytes(self) -> int:
        return self.segment_bytes_

    def create_topic(self, topic: str) -> bool:
        self.topics.setdefault(SnapshotKind(topic.rpartition("/")[2]), [])
        return True

    def set_compaction_threshold(self, topic: str, *, size_bytes: int) -> None:
        pass

    def internal_stats(self, topic: str) -> InternalStats:
        return InternalStats(ledgers=((1, 1),), cursors={COMPACTION_CURSOR: BEFORE_ALL}, pending_adds=0)

    def read_many(self, paths: list[str]) -> list[Znode]:
        return [Znode(data=list_znode(5), version=0, ctime_ms=0, mtime_ms=0) for _path in paths]

    def require(self, namespace: str) -> Position:
        self.held.append([])
        return BEFORE_ALL

    def hold(self, namespace: str, places: list[Position]) -> None:
        self.held.append(list(places))

    def sender(self, topic: str) -> AbstractContextManager[Sender]:
        kind = SnapshotKind(topic.rpartition("/")[2])
        broker = self

        class Opened:
            def send(self, key: str, value: bytes | None) -> Position:
                if broker.fails_at == len(broker.sent):
                    raise UnavailableError("no answer")
                at = (30, broker.places)
                broker.places += 1
                broker.sent.append((kind, key, value is None))
                if not (broker.lies and kind is SnapshotKind.SINGLE):
                    broker.topics[kind].append(read_at(kind, key, value, at))
                return at

        return nullcontext(Opened())

    def kinds(self) -> set[SnapshotKind]:
        """Which forms hold a value of the topic."""
        return {kind for kind in self.topics if self.values(kind)}

    def values(self, kind: SnapshotKind) -> dict[str, bytes]:
        """Return the latest value of each key."""
        latest = {read.key: read for read in self.topics[kind]}
        return {
            key: encoded(read) if isinstance(read.value, Snapshot) else read.data
            for key, read in latest.items()
            if not read.is_null
        }


def segmented(**changes: object) -> Broker:
    index = [read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 1))]
    return Broker(
        {SnapshotKind.INDEX: index, SnapshotKind.SEGMENT: [segment_at(0, (9, 0)), segment_at(1, (10, 0))]},
        **changes,  # type: ignore[arg-type]
    )


def single(**changes: object) -> Broker:
    reads = [read_at(SnapshotKind.SINGLE, TOPIC, SINGLE, (2, 0))]
    return Broker({SnapshotKind.SINGLE: reads}, **changes)  # type: ignore[arg-type]


def migrations(broker: Broker, journal: Folder) -> Migrations:
    return Migrations(
        topics=cast(SnapshotTopics, broker),
        store=cast(MetadataStore, broker),
        guards=cast(Guards, broker),
        sender=broker.sender,
        journal=RepairJournal(journal, ManualClock(1_000)),
        compact=broker.compacted_spaces.append,
    )


def encoded(read: ReadValue) -> bytes:
    """Return the bytes of a single snapshot, which a reader is not given."""
    assert isinstance(read.value, Snapshot)
    return encode_snapshot(read.value)
