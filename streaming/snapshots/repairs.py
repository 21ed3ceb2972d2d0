"""The repairs of the configured cluster: clients, the journal in the state directory, and how a topic is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.frames import Silence, opened
from streaming.adapters.pulsar.keyed import KeyedSender
from streaming.adapters.pulsar.snapshot_store import SnapshotStore
from streaming.clients import clients_for
from streaming.clock import SystemClock
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.errors import ConfigError
from streaming.snapshots.compact import compact
from streaming.snapshots.guard import Guards
from streaming.snapshots.put_back import PutBack, PutBacks
from streaming.snapshots.read import snapshot_topics
from streaming.snapshots.repair import JOURNAL, Repairs
from streaming.state.filesystem import below, folder_of
from streaming.state.journal import snapshot_entries
from udfs.formats.entry import parse_entry
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import managed_ledger_name, topic_of

_PATIENCE_SECONDS = 5.0
_BEHIND_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class BrokerLoader:
    """Unloads by the admin API, and loads as a client does: by a reader behind everything."""

    settings: PulsarSettings
    admin: PulsarAdmin

    def unload(self, topic: str) -> None:
        """Let its broker close it. Raises UnavailableError, RefusedError."""
        self.admin.unload(topic)

    def load(self, topic: str) -> None:
        """Ask for it once. Raises UnavailableError, RefusedError."""
        with opened(self.settings, topic, _BEHIND_ALL, compacted=True):  # such a reader makes no topic
            pass

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        """Yield the transaction of each entry that a reader gets, up to the end that there is now."""
        with opened(self.settings, topic, BEFORE_ALL, compacted=True) as reader:
            end = reader.last
            while True:
                try:
                    position, data = reader.next(_PATIENCE_SECONDS)
                except Silence:  # what is behind was taken back, or is a marker
                    return
                try:
                    yield parse_entry(data).transaction
                except FormatError:  # no client can read it either
                    yield None
                if end is not None and position >= end:
                    return


@contextmanager
def repairs_for(settings: Settings) -> Iterator[Repairs]:
    """Repairs of the configured cluster; the block's end closes the connections."""
    clients = clients_for(settings)
    with snapshot_topics(settings) as topics:
        yield Repairs(
            topics,
            clients.store,
            clients.broker,
            BrokerLoader(settings.pulsar, topics.admin),
            lambda topic: KeyedSender(settings.pulsar, topic),
            folder_of(below(settings.state_dir, JOURNAL)),
            SystemClock(),
        )


def full_name(topic: str) -> str:
    """Return a topic's full name, given in any form. Raises ConfigError."""
    try:
        return topic_of(managed_ledger_name(topic))
    except ValueError as error:
        raise ConfigError(f"--topic: {error}") from error


def compact_segments(settings: Settings, namespace: str) -> int:
    """Take away the tombstones in a namespace's segments topic; returns how many there were.

    Raises SafetyError, UnavailableError, RefusedError.
    """
    clients = clients_for(settings)
    with snapshot_topics(settings) as topics, SnapshotStore(settings.pulsar, topics) as store:
        guards = Guards(topics, clients.store, clients.broker, SystemClock())
        return compact(namespace, store, guards.require)


def put_back_all(settings: Settings, topic: str) -> Iterator[PutBack]:
    """Publish again what the service removed of a topic's snapshots.

    Raises ConfigError where the journal has nothing of it, SafetyError where that is refused, UnavailableError,
    RefusedError.
    """
    clients = clients_for(settings)
    with snapshot_topics(settings) as topics:
        guards = Guards(topics, clients.store, clients.broker, SystemClock())
        runs = PutBacks(
            topics,
            lambda each: KeyedSender(settings.pulsar, each),
            guards.require,
            lambda each: topics.more.buffer(each) is not None,
        )
        yield from runs.put_back(topic, snapshot_entries(settings.state_dir))
