"""The repairs of the configured cluster: clients, the journal in the state directory, and how a topic is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.frames import opened
from streaming.adapters.pulsar.keyed import KeyedSender
from streaming.clients import clients_for
from streaming.clock import SystemClock
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.snapshots.read import snapshot_topics
from streaming.snapshots.repair import JOURNAL, Repairs
from streaming.state.filesystem import below, folder_of
from udfs.formats.internal_stats import Position

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
