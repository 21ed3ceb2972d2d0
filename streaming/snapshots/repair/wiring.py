"""The repairs of the configured cluster: clients, the journal in the state directory, and how a topic is loaded."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.frames import ReceiveTimeout, opened
from streaming.adapters.pulsar.keyed import KeyedSender
from streaming.adapters.pulsar.snapshot_store import SnapshotStore
from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics
from streaming.clients import clients_for
from streaming.clock import SystemClock
from streaming.config.amounts import topic_from
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.errors import UnavailableError
from streaming.snapshots.audit.messages import snapshot_topics
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.migrate import Migrations
from streaming.snapshots.parts.undo_migration import MigrationUndo, TakenAway
from streaming.snapshots.removal.compact import compact
from streaming.snapshots.repair.blocking import Blocking
from streaming.snapshots.repair.first_index import silent
from streaming.snapshots.repair.journal import RepairJournal
from streaming.snapshots.repair.restore import PutBack, PutBacks
from streaming.snapshots.repair.steps import JOURNAL, Repairs
from streaming.state.filesystem import below, folder_of
from streaming.state.journal import snapshot_entries
from udfs.formats.entry import parse_entry
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position

_PATIENCE_SECONDS, _TRIES = 60.0, 2
_BEHIND_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)


class Entries(Protocol):
    """What is needed of a reader of a topic's entries."""

    @property
    def last(self) -> Position | None:
        """The last place of which the broker has something to send; entry -1: of none; None: it does not say."""
        ...

    def next(self, patience_seconds: float) -> tuple[Position, bytes]:
        """Return the next entry. Raises ReceiveTimeout, UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerLoader:
    """Unloads by the admin API, and loads as a client does: by a reader behind everything."""

    settings: PulsarSettings
    admin: PulsarAdmin

    def unload(self, topic: str) -> bool:
        """Let its broker close it; False if no broker had it loaded. Raises UnavailableError, RefusedError."""
        return self.admin.unload(topic)

    def load(self, topic: str) -> None:
        """Ask for it once. Raises UnavailableError, RefusedError."""
        with opened(self.settings, topic, _BEHIND_ALL, compacted=True):  # such a reader makes no topic
            pass

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        """Yield the transaction of each entry that a reader gets, up to the end that there is now.

        It reads the topic's own ledgers: of a topic that is compacted, a compacted reader gets the last message of each
        key only, and the others would not be looked at.
        """
        return read_to_the_end(topic, lambda after: opened(self.settings, topic, after, creates=False))


def read_to_the_end(
    topic: str, reader_behind: Callable[[Position], AbstractContextManager[Entries]]
) -> Iterator[tuple[int, int] | None]:
    """Yield the transaction of each entry up to the last one that the broker had something to send of; None: no such.

    ReceiveTimeout before that is no end: a broker that passes over many aborted messages is silent for long. Raises
    UnavailableError where a reader does not come to the end though it is begun anew, or nobody says where the end is.
    """
    end: Position | None = None
    at, silent = BEFORE_ALL, 0
    while silent < _TRIES:
        silent += 1
        with reader_behind(at) as reader:
            end = reader.last if end is None else end
            with suppress(ReceiveTimeout):
                while end is not None and at < end and end[1] >= 0:
                    at, data = reader.next(_PATIENCE_SECONDS)
                    silent = 0
                    yield _transaction_of(data)
        if end is not None and (at >= end or end[1] < 0):
            return
    if end is None:
        raise UnavailableError(f"{topic}: its broker does not say what its last message is")
    raise UnavailableError(
        f"{topic}: its broker sends nothing behind {at[0]}:{at[1]}, and the end is {end[0]}:{end[1]}"
    )


def _transaction_of(data: bytes) -> tuple[int, int] | None:
    try:
        return parse_entry(data).transaction
    except FormatError:  # no client can read it either
        return None


@contextmanager
def repairs_for(settings: Settings, say: Callable[[str], object] = silent) -> Iterator[Repairs]:
    """Repairs of the configured cluster; the block's end closes the connections. say: is told what is waited for."""
    clients = clients_for(settings)
    clock = SystemClock()
    with snapshot_topics(settings) as topics:
        yield Repairs(
            topics=topics,
            store=clients.store,
            broker=clients.broker,
            loader=BrokerLoader(settings.pulsar, topics.admin),
            sender=lambda topic: KeyedSender(settings.pulsar, topic),
            journal=RepairJournal(folder_of(below(settings.state_dir, JOURNAL)), clock),
            clock=clock,
            say=say,
        )


def full_name(topic: str) -> str:
    """Return a topic's full name, given in any form. Raises ConfigError."""
    return topic_from(topic, "--topic")


@contextmanager
def blocking_for(settings: Settings, *, is_unknown_foreign: bool = False) -> Iterator[Blocking]:
    """What takes away the messages that block loading; the block's end closes the connections.

    is_unknown_foreign: the operator knows that no broker of another version ever used the namespace.
    """
    opened_topics = snapshot_topics(settings, is_unknown_foreign=is_unknown_foreign)
    with opened_topics as topics, SnapshotStore(settings.pulsar, topics) as store:
        yield Blocking(store, RepairJournal(folder_of(below(settings.state_dir, JOURNAL)), SystemClock()))


def compact_segments(settings: Settings, namespace: str) -> int:
    """Take away the tombstones in a namespace's segments topic; returns how many there were.

    Raises SafetyError, UnavailableError, RefusedError.
    """
    clients = clients_for(settings)
    with snapshot_topics(settings) as topics, SnapshotStore(settings.pulsar, topics) as store:
        guards = Guards(topics, clients.store, clients.broker, SystemClock())
        return compact(namespace, store, guards.require)


@contextmanager
def migrations_for(settings: Settings) -> Iterator[Migrations]:
    """Migrations of the configured cluster; the block's end closes the connections."""
    clients = clients_for(settings)
    with snapshot_topics(settings) as topics, SnapshotStore(settings.pulsar, topics) as store:
        guards = Guards(topics, clients.store, clients.broker, SystemClock())
        yield Migrations(
            topics=topics,
            store=clients.store,
            guards=guards,
            sender=lambda topic: KeyedSender(settings.pulsar, topic),
            journal=RepairJournal(folder_of(below(settings.state_dir, JOURNAL)), SystemClock()),
            compact=lambda namespace: compact(namespace, store, guards.require),
        )


def put_back_all(settings: Settings, topic: str) -> Iterator[PutBack]:
    """Publish again what the service removed of a topic's snapshots.

    Raises ConfigError where the journal has nothing of it, SafetyError where that is refused, UnavailableError,
    RefusedError.
    """
    with snapshot_topics(settings) as topics:
        yield from _put_backs(settings, topics).put_back(topic, snapshot_entries(settings.state_dir))


def undo_migration(settings: Settings, topic: str) -> Iterator[PutBack | TakenAway]:
    """Undo the last migration of a topic's snapshot. Raises as MigrationUndo.undo."""
    with migrations_for(settings) as migrations:
        yield from MigrationUndo(migrations, _put_backs(settings, migrations.topics)).undo(topic)


def _put_backs(settings: Settings, topics: SnapshotTopics) -> PutBacks:
    clients = clients_for(settings)
    guards = Guards(topics, clients.store, clients.broker, SystemClock())
    return PutBacks(
        topics,
        lambda each: KeyedSender(settings.pulsar, each),
        guards.require,
        lambda each: topics.more.buffer(each) is not None,
    )
