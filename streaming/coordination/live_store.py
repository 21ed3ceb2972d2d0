"""Judges whether this ZooKeeper is still the metadata store of the cluster. If it is not, all that it contains is old.

1. A migration to another store (PIP-454) has a znode. Starts refuse it, the running service waits, and the sweeps read
   the znode again right before they delete (decision 39).
2. A broker's configuration may name another kind of store. Starts refuse it.
3. Every running broker has a session in its store. If none has a session here although the admin API answers, this is
   a copy, or an ensemble that the brokers have left. Starts refuse it; the running service waits for a broker.
"""

import time
from collections.abc import Callable, Mapping

from streaming.errors import RefusedError, SafetyError, StopRequestedError, UnavailableError
from streaming.ports import SweepStore, Unreadable, Znode
from udfs.formats.metadata_url import other_store
from udfs.formats.store_migration import MIGRATION_PATH, describe_migration, unknown_migration
from udfs.paths import BROKERS

# A broker's admin API answers some seconds before the broker registers, and a broker whose session has expired (30 s by
# default) registers again.
_PATIENCE_S = 30
_NO_BROKER = f"no broker has a session in this ZooKeeper ({BROKERS} is empty)"


def migration(store: SweepStore) -> str:
    """Return why the cluster is leaving ZooKeeper or has left it; "" if no migration has started.

    Raises UnavailableError.
    """
    (node,) = store.read_many([MIGRATION_PATH])
    if node is None:
        return ""
    return unknown_migration(node.detail) if isinstance(node, Unreadable) else describe_migration(node.data)


def require_no_migration(store: SweepStore) -> None:
    """Raise SafetyError if a migration to another metadata store has started, UnavailableError."""
    if why := migration(store):
        raise SafetyError(why)


def stop_at_migration(store: SweepStore) -> None:
    """Raise UnavailableError if a migration to another metadata store has started.

    A sweep calls this right before it deletes. The service repeats the work, and waits at the gate before that.
    """
    if why := migration(store):
        raise UnavailableError(why)


def brokers(store: SweepStore) -> int:
    """Return how many brokers have a session in this ZooKeeper. Raises UnavailableError."""
    (names,) = store.children_many([BROKERS])
    if isinstance(names, Unreadable):
        raise UnavailableError(f"{BROKERS} can't be listed: {names.detail}")
    nodes = store.read_many([f"{BROKERS}/{name}" for name in names or ()])
    if unread := next((node for node in nodes if isinstance(node, Unreadable)), None):
        raise UnavailableError(f"a znode below {BROKERS} can't be read: {unread.detail}")
    # a copy of the znodes may have brokers' znodes without their sessions
    return sum(isinstance(node, Znode) and node.is_ephemeral for node in nodes)


def await_broker(store: SweepStore) -> None:
    """Raise UnavailableError unless a broker has a session in this ZooKeeper: the service repeats its work later."""
    if not brokers(store):
        raise UnavailableError(
            f"{_NO_BROKER}: all brokers are down, or they use another metadata store. Nothing is deleted until one "
            "registers"
        )


def require_live_store(
    store: SweepStore,
    brokers_stores: Callable[[], Mapping[str, str]],
    *,
    patience_s: int = _PATIENCE_S,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Return how many brokers have a session in this ZooKeeper: 0 if the admin API does not answer either.

    Raises SafetyError if the cluster leaves or does not use ZooKeeper, UnavailableError if no broker has a session here
    although the admin API answers, StopRequestedError.

    Args:
        store: ZooKeeper.
        brokers_stores: TopicAdmin.metadata_stores.
        patience_s: how long to wait for a broker that is just starting.
        sleep: sleeps for so many seconds; true if the program is to stop.
    """
    require_no_migration(store)
    for second in range(patience_s + 1):
        if second and sleep(1.0):
            raise StopRequestedError
        answers = _answers(brokers_stores)
        if (running := brokers(store)) or not answers:
            return running
    # not SafetyError: a supervisor must start the service again, since brokers may be late after a failure of ZooKeeper
    raise UnavailableError(
        f"{_NO_BROKER}, although the admin API answers: this is not, or no longer, the brokers' metadata store (a "
        "copy, an ensemble that was left, another chroot). Its content may be old: nothing is judged or deleted. "
        "Compare zookeeper.hosts with the brokers' metadataStoreUrl; if a broker is just starting, try again"
    )


def _answers(brokers_stores: Callable[[], Mapping[str, str]]) -> bool:
    """Return whether the admin API answers. Raises SafetyError if a broker uses another kind of store."""
    try:
        stores = brokers_stores()
    except RefusedError:  # an answer, too
        return True
    except UnavailableError:
        return False
    for setting, url in stores.items():
        if other := other_store(url):
            raise SafetyError(
                f"the broker that answers has {setting}={url}: the cluster keeps metadata in {other}, and what "
                "ZooKeeper contains may be old. Nothing is judged or deleted. Stop Ledger Reaper for this cluster, "
                "because it can read no other metadata store"
            )
    return True
