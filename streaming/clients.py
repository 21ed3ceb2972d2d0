"""Opens and closes all clients.

1. Executors keep their clients from batch to batch, as Spark keeps its worker processes (clients_for).
2. A command opens its own clients and closes them when it ends (command_clients).
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.broker import AdminBroker
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.adapters.pulsar.loaded import running_brokers
from streaming.adapters.pulsar.read import PulsarReader
from streaming.adapters.zookeeper.settings import ZooKeeperClientSettings
from streaming.adapters.zookeeper.store import ZooKeeperStore, store_for
from streaming.config.settings import Settings
from streaming.ports import Broker, MessageReader, MetadataStore, Pulsar


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of a sweep in an executor."""

    store: MetadataStore
    broker: Broker


class CommandClients:
    """The clients of a command. The store connects at its first use; the others are created at their first use.

    So a command that needs only ZooKeeper, such as `pause`, works with any fault in Pulsar or its settings.
    """

    def __init__(
        self, store: MetadataStore, open_pulsar: Callable[[], Pulsar], open_broker: Callable[[], Broker]
    ) -> None:
        self.store = store
        self._open_pulsar = open_pulsar
        self._open_broker = open_broker

    @cached_property
    def pulsar(self) -> Pulsar:
        """Admin API and reader. Raises ConfigError for settings with which no client can be created."""
        return self._open_pulsar()

    @cached_property
    def broker(self) -> Broker:
        """The brokers as a witness. Raises as pulsar does."""
        return self._open_broker()


@contextlib.contextmanager
def command_clients(settings: Settings) -> Iterator[CommandClients]:
    """Yield the clients of a command, and close them when the block ends."""
    with contextlib.ExitStack() as stack:

        def open_pulsar() -> Pulsar:
            return Pulsar(stack.enter_context(admin_for(settings)), reader_for(settings))

        store = ZooKeeperStore(zookeeper_settings(settings))
        stack.callback(store.close)
        yield CommandClients(store, open_pulsar, lambda: broker_for(settings))


_brokers: dict[tuple[int, PulsarAdminSettings], AdminBroker] = {}  # by process, since a fork must not share sockets
_lock = Lock()


def clients_for(settings: Settings) -> Clients:
    """Return the clients of this process for these settings; a forked child creates its own."""
    return Clients(store_for(zookeeper_settings(settings)), broker_for(settings))


def zookeeper_settings(settings: Settings) -> ZooKeeperClientSettings:
    """Return [zookeeper] in the form that the adapter takes."""
    zookeeper = settings.zookeeper
    return ZooKeeperClientSettings(
        hosts=zookeeper.hosts,
        session_timeout_seconds=zookeeper.session_timeout_seconds,
        operation_timeout_seconds=zookeeper.timeout_seconds,
        digest_file=zookeeper.digest_file,
        sasl_mechanism=zookeeper.sasl_mechanism,
        use_tls=zookeeper.use_tls,
        tls_ca_file=zookeeper.tls_ca_file,
        tls_cert_file=zookeeper.tls_cert_file,
        tls_key_file=zookeeper.tls_key_file,
    )


def admin_settings(settings: Settings) -> PulsarAdminSettings:
    """Return [pulsar] in the form that the admin client takes."""
    return PulsarAdminSettings.of(settings.pulsar)


def admin_for(settings: Settings) -> PulsarAdmin:
    """Return a client of the admin API; the caller closes it."""
    return PulsarAdmin(admin_settings(settings))


def reader_for(settings: Settings) -> MessageReader:
    """Return a reader of stored messages; each of its reads opens its own connection."""
    return PulsarReader(settings.pulsar)


def broker_for(settings: Settings) -> AdminBroker:
    """Return the brokers as a witness, for this process; a forked child creates its own."""
    key = (os.getpid(), admin_settings(settings))
    with _lock:
        if key not in _brokers:
            store = store_for(zookeeper_settings(settings))
            use_tls = settings.pulsar.admin_url.startswith("https:")
            _brokers[key] = AdminBroker(key[1], partial(running_brokers, store, use_tls=use_tls))
        return _brokers[key]
