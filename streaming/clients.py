"""Who opens and closes our clients.

1. Executors keep theirs: a worker process is used from batch to batch, and so are its clients (clients_for).
2. A command opens its own and closes them when it ends (command_clients).
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
from streaming.adapters.zookeeper.settings import ZooKeeperSettings
from streaming.adapters.zookeeper.store import ZooKeeperStore, store_for
from streaming.config.settings import Settings
from streaming.ports import Broker, MessageReader, MetadataStore, Pulsar


@dataclass(frozen=True, slots=True)
class Clients:
    """What a sweep in an executor talks to."""

    store: MetadataStore
    broker: Broker


class CommandClients:
    """What one command talks to. The store connects when it is first used; the others are made when first used.

    So a command that needs ZooKeeper alone, such as `pause`, works whatever is wrong with Pulsar or its settings.
    """

    def __init__(
        self, store: MetadataStore, open_pulsar: Callable[[], Pulsar], open_broker: Callable[[], Broker]
    ) -> None:
        self.store = store
        self._open_pulsar = open_pulsar
        self._open_broker = open_broker

    @cached_property
    def pulsar(self) -> Pulsar:
        """Admin API and reader. Raises ConfigError for settings that no client can be made of."""
        return self._open_pulsar()

    @cached_property
    def broker(self) -> Broker:
        """The brokers as a witness. Raises as pulsar does."""
        return self._open_broker()


@contextlib.contextmanager
def command_clients(settings: Settings) -> Iterator[CommandClients]:
    """The clients of one command, closed when the block ends."""
    with contextlib.ExitStack() as stack:

        def open_pulsar() -> Pulsar:
            return Pulsar(stack.enter_context(admin_for(settings)), reader_for(settings))

        store = ZooKeeperStore(zookeeper_settings(settings))
        stack.callback(store.close)
        yield CommandClients(store, open_pulsar, lambda: broker_for(settings))


_made: dict[tuple[int, PulsarAdminSettings], AdminBroker] = {}
_lock = Lock()


def clients_for(settings: Settings) -> Clients:
    """The clients of this process for these settings; a forked child makes its own."""
    return Clients(store_for(zookeeper_settings(settings)), broker_for(settings))


def zookeeper_settings(settings: Settings) -> ZooKeeperSettings:
    """[zookeeper] as the adapter takes it."""
    zookeeper = settings.zookeeper
    return ZooKeeperSettings(
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
    """[pulsar] as the admin client takes it."""
    return PulsarAdminSettings.of(settings.pulsar)


def admin_for(settings: Settings) -> PulsarAdmin:
    """A client for administration; the caller closes it."""
    return PulsarAdmin(admin_settings(settings))


def reader_for(settings: Settings) -> MessageReader:
    """A reader of stored messages; each of its reads connects for itself."""
    return PulsarReader(settings.pulsar)


def broker_for(settings: Settings) -> AdminBroker:
    """The brokers as a witness, for this process; a forked child makes its own."""
    key = (os.getpid(), admin_settings(settings))
    with _lock:
        if key not in _made:
            store = store_for(zookeeper_settings(settings))
            use_tls = settings.pulsar.admin_url.startswith("https:")
            _made[key] = AdminBroker(key[1], partial(running_brokers, store, use_tls=use_tls))
        return _made[key]
