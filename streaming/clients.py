"""Opens and closes all clients.

1. Executors keep their clients from batch to batch (clients_for).
2. A command opens its own clients and closes them when it ends (command_clients).
"""

import contextlib
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import Generic, TypeVar

from streaming.adapters.bookkeeper.bookies import HttpBookies
from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.admin_api.broker import AdminBroker
from streaming.adapters.pulsar.admin_api.loaded import running_brokers
from streaming.adapters.pulsar.admin_api.offload_policies import BrokerOffload
from streaming.adapters.pulsar.admin_api.properties import PulsarTopicProperties
from streaming.adapters.pulsar.admin_api.retention import Retentions
from streaming.adapters.pulsar.admin_api.segment_removal import BrokerSegmentRemover
from streaming.adapters.pulsar.admin_api.trims import PulsarTrimFacts
from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp
from streaming.adapters.pulsar.readers.read import PulsarReader
from streaming.adapters.zookeeper import zookeeper_session
from streaming.adapters.zookeeper.changes import ZooKeeperChanges
from streaming.adapters.zookeeper.store import ZooKeeperStore, store_for
from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings
from streaming.config.policies import allowed_buckets
from streaming.config.settings import Settings
from streaming.ports import (
    Bookies,
    Broker,
    ChangeHints,
    Copy,
    MessageReader,
    MetadataStore,
    ObjectStore,
    OffloadConfiguration,
    Pulsar,
    RequestSender,
    RetentionPolicies,
    SegmentRemover,
    TopicProperties,
    TrimFacts,
)
from udfs.offload_drivers import Bucket

Client = TypeVar("Client")


class _PerProcess(Generic[Client]):
    """Keeps a client per key and process."""

    def __init__(self) -> None:
        self._clients: dict[tuple[int, Hashable], Client] = {}
        self._lock = Lock()

    def get(self, key: Hashable, open_client: Callable[[], Client]) -> Client:
        """Return this process's client for the key, opened by the first call."""
        # a forked process must not share its parent's sockets
        own = (os.getpid(), key)
        with self._lock:
            if own not in self._clients:
                self._clients[own] = open_client()
            return self._clients[own]


_brokers: _PerProcess[AdminBroker] = _PerProcess()
_buckets: _PerProcess[ObjectStore] = _PerProcess()
_offload_configurations: _PerProcess[OffloadConfiguration] = _PerProcess()


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients of a sweep in an executor."""

    store: MetadataStore
    broker: Broker


class CommandClients:
    """The clients of a command. The store connects at its first use; the others are created at their first use."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        bookies: Bookies,
        objects: Callable[[Bucket], ObjectStore],
        open_pulsar: Callable[[], Pulsar],
        open_broker: Callable[[], Broker],
    ) -> None:
        self.store = store
        self.bookies = bookies
        self.objects = objects  # returns the client of an allowed bucket; raises ValueError for other buckets
        # opened at the first use, so that a command that needs only ZooKeeper, such as `pause`, works whatever is wrong
        # with Pulsar or its settings
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

        store = open_store(settings)
        stack.callback(store.close)
        yield CommandClients(
            store=store,
            bookies=bookies_for(settings, store),
            objects=partial(objects_for, settings),
            open_pulsar=open_pulsar,
            open_broker=lambda: broker_for(settings),
        )


def clients_for(settings: Settings) -> Clients:
    """Return the clients of this process for these settings; a forked child creates its own."""
    return Clients(process_store(settings), broker_for(settings))


def process_store(settings: Settings) -> MetadataStore:
    """Return the metadata store of this process, for commands that may need no broker; otherwise like clients_for."""
    return store_for(zookeeper_settings(settings))


def zookeeper_settings(settings: Settings) -> ZooKeeperClientSettings:
    """Return [zookeeper] in the form that the adapter takes."""
    zookeeper = settings.zookeeper
    return ZooKeeperClientSettings(
        hosts=zookeeper.hosts,
        session_timeout_seconds=zookeeper.session_timeout_seconds,
        operation_timeout_seconds=zookeeper.timeout_seconds,
        digest_file=zookeeper.digest_file,
        sasl_mechanism=zookeeper.sasl_mechanism,
        kerberos_principal=zookeeper.kerberos_principal,
        kerberos_keytab_file=zookeeper.kerberos_keytab_file,
        kerberos_service=zookeeper.kerberos_service,
        use_tls=zookeeper.use_tls,
        tls_ca_file=zookeeper.tls_ca_file,
        tls_cert_file=zookeeper.tls_cert_file,
        tls_key_file=zookeeper.tls_key_file,
    )


def open_store(settings: Settings) -> MetadataStore:
    """Return a store with a session of its own, which starts at the first use; the caller closes it."""
    return ZooKeeperStore(zookeeper_settings(settings))


def open_hints(settings: Settings, roots: Sequence[str]) -> ChangeHints:
    """Return hints about changes below the roots; the caller closes them."""
    return ZooKeeperChanges(zookeeper_settings(settings), roots)


def newest_zxid(settings: Settings) -> int:
    """Return the id of a transaction whose changes every later read of ZooKeeper sees. Raises UnavailableError."""
    return zookeeper_session.newest_zxid(zookeeper_settings(settings))


def bookies_for(settings: Settings, store: MetadataStore) -> Bookies:
    """Return the bookies of the cluster; each question opens its own connections."""
    return HttpBookies(store, settings.zookeeper.ledgers_root)


def admin_settings(settings: Settings) -> PulsarAdminSettings:
    """Return [pulsar] in the form that the admin client takes."""
    return PulsarAdminSettings.of(settings.pulsar)


def admin_for(settings: Settings) -> PulsarAdmin:
    """Return a client of the admin API; the caller closes it."""
    return PulsarAdmin(admin_settings(settings))


def metadata_stores_of(settings: Settings) -> Mapping[str, str]:
    """Return what TopicAdmin.metadata_stores does, and raise what it raises."""
    with admin_for(settings) as admin:
        return admin.metadata_stores()


def reader_for(settings: Settings) -> MessageReader:
    """Return a reader of stored messages; each of its reads opens its own connection."""
    return PulsarReader(settings.pulsar)


def broker_for(settings: Settings) -> AdminBroker:
    """Return the brokers as a witness, for this process; a forked child creates its own."""
    admin = admin_settings(settings)

    def open_broker() -> AdminBroker:
        store = store_for(zookeeper_settings(settings))
        use_tls = settings.pulsar.admin_url.startswith("https:")
        return AdminBroker(admin, partial(running_brokers, store, use_tls=use_tls))

    return _brokers.get(admin, open_broker)


@contextlib.contextmanager
def segment_remover(settings: Settings) -> Iterator[SegmentRemover]:
    """Yield what lets brokers delete segments, and close it when the block ends."""
    store, use_tls = process_store(settings), settings.pulsar.admin_url.startswith("https:")
    with contextlib.closing(
        BrokerSegmentRemover(admin_settings(settings), partial(running_brokers, store, use_tls=use_tls))
    ) as remover:
        yield remover


def open_properties(settings: Settings) -> TopicProperties:
    """Return a client that changes topics' properties; the caller closes it."""
    return PulsarTopicProperties(admin_settings(settings))


def open_trim_facts(settings: Settings) -> TrimFacts:
    """Return a client for the facts that decide what a topic's broker trims; the caller closes it."""
    return PulsarTrimFacts(admin_settings(settings), broker_for(settings).is_loaded)


def open_retention_policies(settings: Settings) -> RetentionPolicies:
    """Return a client for retention by level; the caller closes it."""
    return Retentions(PulsarHttp(admin_settings(settings)))


def open_sender(settings: Settings, topic: str) -> RequestSender:
    """Return a producer on a request topic; the caller closes it. Raises ConfigError, UnavailableError."""
    from streaming.adapters.pulsar.producer import PulsarRequestSender

    return PulsarRequestSender(settings.pulsar, topic)


def publish(
    settings: Settings, topic: str, producer_name: str, copies: Iterable[Copy], *, is_exclusive: bool = True
) -> int:
    """Publish copies in order under a producer's name, and return how many were stored, now or before.

    Raises UnavailableError if any was not acknowledged (then publish all again), FencedError if another instance has
    taken the producer's name.
    """
    from streaming.adapters.pulsar import publish as pulsar_publish

    return pulsar_publish.publish(settings.pulsar, topic, producer_name, copies, is_exclusive=is_exclusive)


def publish_in_batches(settings: Settings, topic: str, producer_name: str, copies: Iterable[Copy]) -> int:
    """Publish many copies, several of them in an entry, while others may publish too; otherwise like publish."""
    from streaming.adapters.pulsar import publish as pulsar_publish

    return pulsar_publish.publish_in_batches(settings.pulsar, topic, producer_name, copies)


def offload_configuration_for(settings: Settings) -> OffloadConfiguration:
    """Return what asks brokers how they offload, for this process; a forked child creates its own."""
    admin, cluster = admin_settings(settings), settings.tiered_storage.pulsar_cluster
    return _offload_configurations.get((admin, cluster), lambda: BrokerOffload(admin, cluster))


def objects_for(settings: Settings, bucket: Bucket) -> ObjectStore:
    """Return the client of an allowed bucket, for this process; a forked child creates its own.

    Raises ValueError for other buckets.
    """
    if bucket not in allowed_buckets(settings):
        raise ValueError(f"bucket {bucket.name} is not in tiered_storage.allowed")
    from streaming.adapters.s3.calls import S3Settings
    from streaming.adapters.s3.objects import S3Objects

    s3 = S3Settings(
        endpoint=bucket.endpoint,
        bucket=bucket.name,
        region=bucket.region,
        credentials_file=settings.tiered_storage.credentials_file,
        # requests for an unavailable bucket are retried after reconsume_later_seconds; its rest must be over by then
        rest_seconds=settings.two_phase.reconsume_later_seconds / 2,
    )
    return _buckets.get(s3, lambda: S3Objects(s3))
