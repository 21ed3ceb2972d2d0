"""Checks at each start that BookKeeper and the buckets are ours, and that the brokers write to this ZooKeeper."""

import logging
import time
from collections.abc import Sequence

from streaming.config.sections import BucketSettings
from streaming.config.settings import Settings
from streaming.errors import ConfigError, ForbiddenError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore, Unreadable
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import in_use_ids
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import BrokerView, Presence

log = logging.getLogger("ledger-reaper")

SUPERUSER = "give this service's role the rights of a superuser, and make every broker's web address reachable"
_ATTEMPTS = 5  # a ledger that was created between the two answers is in the next list
_PAUSE_S = 1.0


def require_exclusive_bookkeeper(settings: Settings) -> None:
    """Raise ConfigError unless the operator declared that no other Pulsar cluster keeps ledgers in this BookKeeper."""
    # A ledger's metadata names its topic, not its Pulsar cluster. If two clusters keep ledgers in one BookKeeper, the
    # ledgers of the other cluster look leaked, and nothing in BookKeeper distinguishes them.
    if not settings.safety.exclusive_bookkeeper:
        raise ConfigError(
            "declare that this BookKeeper belongs to this Pulsar cluster alone: safety.exclusive_bookkeeper = true. "
            "Ledgers do not name their cluster: if brokers of another cluster use the same "
            "bookkeeperMetadataServiceUri, their ledgers look leaked. In that case leave it false: nothing is deleted"
        )


def require_declared_buckets(settings: Settings) -> None:
    """Raise ConfigError unless the operator declared for each allowed bucket who else offloads there."""
    # an object names its Pulsar cluster, but clusters may share a name
    if missing := undeclared([bucket for bucket in settings.tiered_storage.allowed if not bucket.is_declared]):
        raise ConfigError(missing)


def undeclared(buckets: Sequence[BucketSettings]) -> str:
    """Return an error message that asks for the declarations of these buckets; "" for no buckets."""
    if not buckets:
        return ""
    return (
        f"tiered_storage.allowed must declare who else offloads to {', '.join(entry.bucket for entry in buckets)}. "
        "Objects name their cluster, and a clone, a second release or a stand-alone has the same name. Add to the "
        "bucket's entry: exclusive = true if no other cluster offloads there; cluster_names_are_unique = true if every "
        "cluster that offloads there, clones included, has a name of its own; else cluster_names_are_unique = false, "
        "and nothing in the bucket is deleted"
    )


def require_superuser(broker: Broker) -> None:
    """Raise ConfigError if a broker refuses to list the topics that it has loaded.

    A broker that does not answer now is accepted: the ledgers of topics that it may have loaded count as in use until
    it answers.
    """
    try:
        broker.require_answers()
    except ForbiddenError as error:
        raise ConfigError(f"{error}; {SUPERUSER}") from error
    except UnavailableError as error:
        log.warning("not every broker lists the topics that it has loaded: %s; %s", error, SUPERUSER)


def require_brokers_store(store: MetadataStore, broker: Broker, partition: str, *, pause_s: float = _PAUSE_S) -> str:
    """Check that ZooKeeper's list names the newest ledger that the partition's broker reports; return a message.

    The partition must be loaded. Raises SafetyError if the list does not name that ledger, UnavailableError if the
    check is not possible now.
    """
    name = managed_ledger_name(partition)
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(pause_s)
        (view,) = broker.views([name])
        if not view.is_loaded:
            continue
        listed = _listed(store, managed_ledger_path(name))
        if view.presence is Presence.UNREADABLE:
            raise UnavailableError(f"{partition}: its broker did not report its ledgers: {view.detail}")
        # lists that no broker writes any more (from before a move, or another cluster's) never name new ledgers
        if listed is not None and _newest(view) in listed:
            return f"ledger {_newest(view)} of {partition} is in ZooKeeper's list"
    if not view.is_loaded:
        raise UnavailableError(f"{partition}: no broker has it loaded, so no broker reports its ledgers")
    raise SafetyError(
        f"{partition}: its broker writes to ledger {_newest(view)}, and ZooKeeper's list "
        f"{'does not name it' if listed is not None else 'does not exist'}. Either zookeeper.hosts (chroot?) is not "
        "the store that the brokers of pulsar.admin_url use, or its lists are no longer written: nothing is deleted"
    )


def _newest(view: BrokerView) -> int:
    return max(view.ledgers, default=-1)


def _listed(store: MetadataStore, path: str) -> frozenset[int] | None:
    node = store.read_many([path])[0]
    if node is None:
        return None
    if isinstance(node, Unreadable):
        raise UnavailableError(f"{path} can't be read: {node.detail}")
    try:
        in_use = in_use_ids(node.data)
    except FormatError as error:
        raise SafetyError(f"the list of ledgers in {path} can't be parsed: {error}") from error
    return frozenset((*in_use.ids, *in_use.bookkeeper_free))
