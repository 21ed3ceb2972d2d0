"""The znode in which Pulsar keeps the state of its migration to another metadata store (PIP-454, Pulsar 4.2 and 5.0).

Pulsar creates the znode when the migration starts and never deletes it. Brokers write to ZooKeeper in NOT_STARTED and
FAILED, to no store in PREPARATION and COPYING (but Pulsar copies after a minute even if a broker has not stopped), and
only to the other store from COMPLETED on.
"""

import json
from enum import StrEnum
from typing import Any

# below the chroot of the brokers' metadataStoreUrl; `participants` beside it exists in every cluster of these versions
MIGRATION_PATH = "/pulsar/migration-coordinator/migration"
NO_MIGRATION = (MIGRATION_PATH, -1)  # as a check of InUseLoader.holding: the znode must not exist
MIGRATION_STARTED = f"{MIGRATION_PATH} exists: a migration to another metadata store has started, so nothing is deleted"

_LONGEST = 200  # characters of a text from the znode
_STATUS = "`pulsar-admin metadata-migration status`"


class MigrationPhase(StrEnum):
    """The phases, by Pulsar's names."""

    NOT_STARTED = "NOT_STARTED"
    PREPARATION = "PREPARATION"
    COPYING = "COPYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


_BACK_IN_ZOOKEEPER = (
    "Brokers write to ZooKeeper in this phase, but a retry may start at any moment. If none is planned, and every "
    "broker and bookie has logged `Metadata Migration Failed` or was restarted since, delete the znode: Pulsar then "
    "treats the migration as not started"
)
_UNDER_WAY = (
    f"Wait until it has ended ({_STATUS} shows its phase); if it succeeds, Ledger Reaper can't serve this cluster any "
    "more"
)
_REMEDIES = {
    MigrationPhase.NOT_STARTED: _BACK_IN_ZOOKEEPER,
    MigrationPhase.PREPARATION: _UNDER_WAY,
    MigrationPhase.COPYING: _UNDER_WAY,
    MigrationPhase.COMPLETED: "The brokers no longer use this ZooKeeper, which is a stale copy: stop Ledger Reaper for "
    "this cluster, because it can read no other metadata store",
    MigrationPhase.FAILED: _BACK_IN_ZOOKEEPER,
}


def describe_migration(data: bytes) -> str:
    """Return why nothing may be judged or deleted while the znode has this content, and what the operator can do.

    Any content, readable or not, means that the cluster is leaving ZooKeeper or has left it.
    """
    fields = _fields(data)
    phase, target = fields.get("phase"), fields.get("targetUrl")
    if phase not in list(MigrationPhase):
        found = data[:_LONGEST].decode("utf-8", "replace")
        return unknown_migration(f"it contains no phase that we know: {found!r}")
    where = target[:_LONGEST] if isinstance(target, str) and target else "another metadata store"
    return (
        f"Pulsar's migration of this cluster's metadata to {where} has phase {phase}. Nothing is judged or "
        f"deleted while {MIGRATION_PATH} exists. {_REMEDIES[MigrationPhase(phase)]}"
    )


def unknown_migration(detail: str) -> str:
    """Return what describe_migration returns, for a znode whose content can't be read or understood."""
    return (
        f"{MIGRATION_PATH} exists, so Pulsar's migration to another metadata store has started, and its phase is "
        f"unknown: {detail}. Nothing is judged or deleted. {_STATUS} shows the phase"
    )


def _fields(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
