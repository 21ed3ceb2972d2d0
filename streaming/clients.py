"""The clients of one process, made once and kept: a worker is reused from batch to batch, and so are they."""

import os
from dataclasses import dataclass
from threading import Lock

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.adapters.pulsar.broker import AdminBroker
from streaming.adapters.pulsar.http import PulsarAdminSettings
from streaming.adapters.zookeeper.settings import ZooKeeperSettings
from streaming.adapters.zookeeper.store import store_for
from streaming.config.settings import Settings
from streaming.ports import Broker, MetadataStore


@dataclass(frozen=True, slots=True)
class Clients:
    """What a sweep talks to."""

    store: MetadataStore
    broker: Broker


_made: dict[tuple[int, PulsarAdminSettings], Broker] = {}
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
    pulsar = settings.pulsar
    return PulsarAdminSettings(
        admin_url=pulsar.admin_url,
        token_file=pulsar.token_file,
        tls_ca_file=pulsar.tls_trust_certs_file,
        timeout_seconds=pulsar.timeout_seconds,
    )


def admin_for(settings: Settings) -> PulsarAdmin:
    """A client for administration; the caller closes it."""
    return PulsarAdmin(admin_settings(settings))


def broker_for(settings: Settings) -> Broker:
    """The brokers as a witness, for this process; a forked child makes its own."""
    key = (os.getpid(), admin_settings(settings))
    with _lock:
        if key not in _made:
            _made[key] = AdminBroker(key[1])
        return _made[key]
