"""Checks at each start that BookKeeper and the buckets are ours, and that ZooKeeper is what the brokers write to.

1. A ledger's metadata names its topic, not its Pulsar cluster. Where two clusters keep ledgers in one BookKeeper, each
   takes the other's for leaked, and nothing there tells them apart: only an operator knows.
2. An object names its Pulsar cluster, and clusters share names. The operator declares it for each bucket.
3. Lists that no broker writes any more (left over from a move, or another cluster's) never name what is new. A topic
   of ours shows it: the ledger that its broker writes to stands in its list.
"""

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

SUPERUSER = (
    "give the role of pulsar.token_file the rights of a superuser, and make every broker's web address reachable"
)
_LOOKS = 5  # a ledger that was made between the two answers stands in the next list
_PAUSE_S = 1.0


def require_exclusive_bookkeeper(settings: Settings) -> None:
    """Raise ConfigError unless somebody said that no other Pulsar cluster keeps ledgers in this BookKeeper."""
    if not settings.safety.exclusive_bookkeeper:
        raise ConfigError(
            "say that this BookKeeper is this Pulsar cluster's alone: safety.exclusive_bookkeeper = true. Ledgers do "
            "not tell which cluster they belong to: where brokers of another cluster have the same "
            "bookkeeperMetadataServiceUri, its ledgers look leaked. If that is so, leave it false: nothing is deleted"
        )


def require_declared_buckets(settings: Settings) -> None:
    """Raise ConfigError unless the operator declared for each allowed bucket who else offloads there."""
    if missing := undeclared([each for each in settings.tiered_storage.allowed if not each.is_declared]):
        raise ConfigError(missing)


def undeclared(buckets: Sequence[BucketSettings]) -> str:
    """Return which declaration the entries of these buckets need, as an error message; "" for no buckets."""
    if not buckets:
        return ""
    return (
        f"tiered_storage.allowed must declare who else offloads to {', '.join(each.bucket for each in buckets)}. "
        "Objects name their cluster, and a clone, a second release or a stand-alone has the same name. Add to the "
        "bucket's entry: exclusive = true if no other cluster offloads there; cluster_names_are_unique = true if every "
        "cluster that offloads there, clones included, has a name of its own; else cluster_names_are_unique = false, "
        "and nothing in the bucket is deleted"
    )


def require_superuser(broker: Broker) -> None:
    """Raise ConfigError where a broker refuses to say which topics it has loaded.

    A broker that does not answer now is not refused: what it may have loaded counts as in use until it answers.
    """
    try:
        broker.require_answers()
    except ForbiddenError as error:
        raise ConfigError(f"{error}; {SUPERUSER}") from error
    except UnavailableError as error:
        log.warning("not every broker says which topics it has loaded: %s; %s", error, SUPERUSER)


def require_brokers_store(store: MetadataStore, broker: Broker, partition: str, *, pause_s: float = _PAUSE_S) -> str:
    """Return in words that the partition's newest ledger, as its broker says, stands in the list in ZooKeeper.

    The partition must be loaded. Raises SafetyError where it does not, UnavailableError where that can't be told.
    """
    name = managed_ledger_name(partition)
    for look in range(_LOOKS):
        if look:
            time.sleep(pause_s)
        (view,) = broker.views([name])
        if not view.is_loaded:
            continue
        listed = _listed(store, managed_ledger_path(name))
        if view.presence is Presence.UNREADABLE:
            raise UnavailableError(f"{partition}: its broker did not tell which ledgers it has: {view.detail}")
        if listed is not None and _newest(view) in listed:
            return f"ledger {_newest(view)} of {partition} stands in ZooKeeper's list"
    if not view.is_loaded:
        raise UnavailableError(f"{partition}: no broker has it loaded, so none tells which ledgers it has")
    raise SafetyError(
        f"{partition}: its broker writes to ledger {_newest(view)}, and ZooKeeper's list "
        f"{'does not name it' if listed is not None else 'does not exist'}. Either zookeeper.hosts (chroot?) is not "
        "the store that the brokers of pulsar.admin_url use, or the lists there are left over: nothing is deleted"
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
        found = in_use_ids(node.data)
    except FormatError as error:
        raise SafetyError(f"a list of ours can't be parsed: {error}") from error
    return frozenset((*found.ids, *found.bookkeeper_free))
