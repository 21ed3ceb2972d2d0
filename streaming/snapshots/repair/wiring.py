"""Opens the repairs, undos, compactions and migrations of the configured cluster, and loads topics for them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.readers.frames import ReceiveTimeout, opened
from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.adapters.pulsar.snapshots.snapshot_store import SnapshotStore
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.clients import metadata_stores_of, process_store
from streaming.clock import SystemClock
from streaming.config.amounts import topic_from
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.coordination.live_store import require_live_store
from streaming.errors import ConfigError, UnavailableError
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.migrate import Migrations
from streaming.snapshots.parts.undo_migration import MigrationUndo, Removed
from streaming.snapshots.removal.compact import compact
from streaming.snapshots.repair.blocking import Blocking
from streaming.snapshots.repair.finish import silent
from streaming.snapshots.repair.repair_journal import RepairJournal
from streaming.snapshots.repair.restore import Restored, Restores
from streaming.snapshots.repair.steps import JOURNAL, Repairs
from streaming.snapshots.snapshot_namespaces import snapshot_topics
from streaming.state.filesystem import below, folder_of
from streaming.state.journal import snapshot_entries
from udfs.formats.entry import parse_entry
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import segment_of

_PATIENCE_SECONDS, _TRIES = 60.0, 2
_AFTER_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)


class Entries(Protocol):
    """A reader of a topic's entries."""

    @property
    def last(self) -> Position | None:
        """The last position from which the broker would send an entry (entry -1: none); None: it does not report it."""
        ...

    def next(self, patience_seconds: float) -> tuple[Position, bytes]:
        """Return the next entry. Raises ReceiveTimeout, UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerLoader:
    """Unloads through the admin API, and loads as a client does: with a reader after the last entry."""

    settings: PulsarSettings
    admin: PulsarAdmin

    def unload(self, topic: str) -> bool:
        """Make the topic's broker close it; False if no broker had it loaded. Raises UnavailableError, RefusedError."""
        return self.admin.unload(topic)

    def load(self, topic: str) -> None:
        """Request the topic once. Raises UnavailableError, RefusedError."""
        with opened(self.settings, topic, _AFTER_ALL, compacted=True):  # such a reader creates no topic
            pass

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        """Yield the transaction of each entry that a reader gets, up to the current end."""
        # from the topic's own ledgers: a compacted reader would get only the last message of each key
        return read_to_the_end(topic, lambda after: opened(self.settings, topic, after, creates=False))


def read_to_the_end(
    topic: str, reader_after: Callable[[Position], AbstractContextManager[Entries]]
) -> Iterator[tuple[int, int] | None]:
    """Yield each entry's transaction up to the end that the broker reports; None: the entry has no transaction.

    Raises UnavailableError if a second reader does not reach the end either, or the broker does not report the end.
    """
    end: Position | None = None
    at, timeouts = BEFORE_ALL, 0
    while timeouts < _TRIES:
        timeouts += 1
        with reader_after(at) as reader:
            end = reader.last if end is None else end
            # a timeout does not show the end: a broker that skips many aborted messages sends nothing for long
            with suppress(ReceiveTimeout):
                while end is not None and at < end and end[1] >= 0:
                    at, data = reader.next(_PATIENCE_SECONDS)
                    timeouts = 0
                    yield _transaction_of(data)
        if end is not None and (at >= end or end[1] < 0):
            return
    if end is None:
        raise UnavailableError(f"{topic}: its broker does not report its last message")
    raise UnavailableError(f"{topic}: its broker sends nothing after {at[0]}:{at[1]}, and the end is {end[0]}:{end[1]}")


def _transaction_of(data: bytes) -> tuple[int, int] | None:
    try:
        return parse_entry(data).transaction
    except FormatError:  # no client can read it either
        return None


@contextmanager
def _live_topics(settings: Settings, *, is_unknown_foreign: bool = False) -> Iterator[SnapshotTopics]:
    """Open the snapshot topics for changes. Raises SafetyError if the cluster leaves ZooKeeper, UnavailableError."""
    require_live_store(process_store(settings), partial(metadata_stores_of, settings))
    with snapshot_topics(settings, is_unknown_foreign=is_unknown_foreign) as topics:
        yield topics


@contextmanager
def repairs_for(settings: Settings, say: Callable[[str], object] = silent) -> Iterator[Repairs]:
    """Open the repairs; the block's end closes the connections. say: receives progress messages."""
    clock = SystemClock()
    with _live_topics(settings) as topics:
        yield Repairs(
            topics=topics,
            store=process_store(settings),
            loader=BrokerLoader(settings.pulsar, topics.admin),
            sender=lambda topic: KeyedSender(settings.pulsar, topic),
            journal=RepairJournal(folder_of(below(settings.state_dir, JOURNAL)), clock),
            clock=clock,
            say=say,
        )


def full_name(topic: str) -> str:
    """Return a topic's full name. Raises ConfigError, also for a segment, which has no snapshots."""
    full = topic_from(topic, "--topic")
    if segment_of(full):
        raise ConfigError(f"--topic {topic}: Pulsar keeps no snapshots of segments of scalable topics")
    return full


@contextmanager
def blocking_for(settings: Settings, *, is_unknown_foreign: bool = False) -> Iterator[Blocking]:
    """Open the removal of messages that block loading; the block's end closes the connections.

    is_unknown_foreign: the operator knows that no broker of another version ever used the namespace.
    """
    opened_topics = _live_topics(settings, is_unknown_foreign=is_unknown_foreign)
    with opened_topics as topics, SnapshotStore(settings.pulsar, topics) as store:
        yield Blocking(store, RepairJournal(folder_of(below(settings.state_dir, JOURNAL)), SystemClock()))


def compact_segments(settings: Settings, namespace: str) -> int:
    """Remove the tombstones in a namespace's segments topic; returns how many there were.

    Raises SafetyError, UnavailableError, RefusedError.
    """
    with _live_topics(settings) as topics, SnapshotStore(settings.pulsar, topics) as store:
        guards = Guards(topics)
        return compact(namespace, store, guards.require)


@contextmanager
def migrations_for(settings: Settings) -> Iterator[Migrations]:
    """Open the migrations; the block's end closes the connections."""
    with _live_topics(settings) as topics, SnapshotStore(settings.pulsar, topics) as store:
        guards = Guards(topics)
        yield Migrations(
            topics=topics,
            store=process_store(settings),
            guards=guards,
            sender=lambda topic: KeyedSender(settings.pulsar, topic),
            journal=RepairJournal(folder_of(below(settings.state_dir, JOURNAL)), SystemClock()),
            compact=lambda namespace: compact(namespace, store, guards.require),
        )


def restore_removed(settings: Settings, topic: str) -> Iterator[Restored]:
    """Publish again what the service removed of a topic's snapshots. Raises as Restores.restore."""
    with _live_topics(settings) as topics:
        yield from _restores(settings, topics).restore(topic, snapshot_entries(settings.state_dir))


def undo_migration(settings: Settings, topic: str) -> Iterator[Restored | Removed]:
    """Undo the last migration of a topic's snapshot. Raises as MigrationUndo.undo."""
    with migrations_for(settings) as migrations:
        yield from MigrationUndo(migrations, _restores(settings, migrations.topics)).undo(topic)


def _restores(settings: Settings, topics: SnapshotTopics) -> Restores:
    guards = Guards(topics)
    return Restores(
        topics,
        lambda system_topic: KeyedSender(settings.pulsar, system_topic),
        guards.require,
        lambda topic: topics.more.buffer(topic) is not None,
    )
