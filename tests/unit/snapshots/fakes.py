"""Brokers and ZooKeeper of a namespace with snapshots, as far as these modules ask them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from streaming.errors import RefusedError, UnavailableError
from streaming.ports import Unreadable, Znode
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.records import BrokerView, Presence
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import BufferFacts
from udfs.snapshots.values import ReadValue

Node = Znode | Unreadable | None


@dataclass
class Store:
    """ZooKeeper. nodes: path -> what is read. children: path -> names."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    children: Mapping[str, list[str] | Unreadable] = field(default_factory=dict)

    def read_many(self, paths: Sequence[str]) -> list[Node]:
        return [self.nodes.get(path) for path in paths]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        return [self.children.get(path) for path in paths]


@dataclass
class Broker:
    """The brokers as a witness."""

    presence: Presence = Presence.GONE
    loaded: frozenset[str] | None = None  # managed ledgers; None: all
    detail: str = "said so"

    def views(self, managed_ledgers: Sequence[str], existing: Collection[str] = ()) -> list[BrokerView]:
        return [
            BrokerView(presence=self.presence, detail=self.detail, is_loaded=self.loaded is None or each in self.loaded)
            for each in managed_ledgers
        ]


@dataclass
class Admin:
    """The admin API."""

    stats: InternalStats = field(default_factory=lambda: InternalStats(ledgers=(), cursors={}, pending_adds=0))
    retentions: tuple[int, int] = (0, 0)
    buffers: Mapping[str, BufferFacts] = field(default_factory=dict)
    is_up: bool = True
    asked: list[str] = field(default_factory=list)  # internalStats of these topics, which loads them

    def retention(self, topic: str) -> tuple[int, int]:
        if not self.is_up:
            raise UnavailableError("no broker answers")
        return self.retentions

    def internal_stats(self, topic: str) -> InternalStats:
        self.asked.append(topic)
        return self.stats

    def buffer(self, topic: str) -> BufferFacts | None:
        if not self.is_up:
            raise RefusedError("not allowed")
        return self.buffers.get(topic)


@dataclass
class Topics:
    """Snapshot topics. fails: the kind whose reading breaks off behind its messages."""

    messages: Mapping[SnapshotKind, Sequence[ReadValue]]
    fails: SnapshotKind | None = None
    names: set[str] | None = None
    admin: Admin = field(default_factory=Admin)

    def present(self, namespace: str) -> set[str]:
        if self.names is None:
            raise UnavailableError("no broker answers")
        return self.names

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[ReadValue]:
        yield from self.messages.get(kind, ())
        if kind is self.fails:
            raise UnavailableError("it broke off")

    def stored(self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL) -> Iterator[ReadValue]:
        return iter(self.messages.get(kind, ()))
