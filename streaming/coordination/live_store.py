"""Judges whether this ZooKeeper is still the metadata store of the cluster. If it is not, all that it contains is old.

Starts refuse (require_live_store), and the running service waits (streaming/deletion/gate.py). A migration that starts
after that stops each delete: the sweeps read its znode again right before they delete (decision 39).
"""

from streaming.errors import SafetyError, UnavailableError
from streaming.ports import SweepStore, Unreadable
from udfs.formats.migration import MIGRATION_PATH, describe_migration, unknown_migration


def migration(store: SweepStore) -> str:
    """Return why the cluster is leaving ZooKeeper or has left it; "" if no migration has started.

    Raises UnavailableError.
    """
    (node,) = store.read_many([MIGRATION_PATH])
    if node is None:
        return ""
    return unknown_migration(node.detail) if isinstance(node, Unreadable) else describe_migration(node.data)


def require_live_store(store: SweepStore) -> None:
    """Raise SafetyError if a migration to another metadata store has started, UnavailableError."""
    if why := migration(store):
        raise SafetyError(why)


def stop_at_migration(store: SweepStore) -> None:
    """Raise UnavailableError if a migration to another metadata store has started.

    A sweep calls this right before it deletes. The service repeats the work, and waits at the gate before that.
    """
    if why := migration(store):
        raise UnavailableError(why)
