"""The cluster and instance that a directory belongs to: the first start records them, later starts compare."""

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from streaming.clock import Clock, utc_text
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, TopicAdmin, Unreadable, Znode
from streaming.state.filesystem import Folder, folder_of, shown
from udfs.paths import Layout, parse_layout

_FILE = "cluster.json"
_STATE_FILE = "state.json"


def iso_time(clock: Clock) -> str:
    """Return the time as ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")


def shown_time(text: str) -> str:
    """Return an ISO time of a znode in the form of messages; a text of another form as it is."""
    try:
        return utc_text(round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return text  # of another version, or created by hand


def operator_name() -> str:
    """Return who runs this process: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """The field names are the keys of cluster.json."""

    instance_id: str  # BookKeeper's INSTANCEID
    ledgers_root: str
    layout: str
    pulsar_cluster: str
    service_name: str  # of our instance


_KEYS = tuple(each.name for each in fields(ClusterIdentity))


def read_layout(store: MetadataStore, ledgers_root: str) -> Layout:
    """Read BookKeeper's layout of ledger paths; it is never guessed. Raises ConfigError, UnavailableError."""
    node = _required(store, f"{ledgers_root}/LAYOUT")
    try:
        return parse_layout(node.data)
    except ValueError as error:
        raise ConfigError(f"{ledgers_root}/LAYOUT: {error}") from error


def instance_id_of(store: MetadataStore, ledgers_root: str) -> str:
    """Read BookKeeper's INSTANCEID. Raises ConfigError, UnavailableError."""
    return _required(store, f"{ledgers_root}/INSTANCEID").data.decode("utf-8", "replace")


def read_identity(store: MetadataStore, ledgers_root: str, pulsar_cluster: str, service_name: str) -> ClusterIdentity:
    """Read the cluster's present identity. Raises ConfigError, UnavailableError."""
    layout = read_layout(store, ledgers_root)
    return ClusterIdentity(
        instance_id=instance_id_of(store, ledgers_root),
        ledgers_root=ledgers_root,
        layout=str(layout),
        pulsar_cluster=pulsar_cluster,
        service_name=service_name,
    )


def of_cluster(settings: Settings, store: MetadataStore, admin: TopicAdmin) -> ClusterIdentity:
    """Read the present identity of the configured cluster. Raises ConfigError, UnavailableError."""
    clusters = ",".join(sorted(admin.clusters()))
    return read_identity(store, settings.zookeeper.ledgers_root, clusters, settings.service.name)


def hold(identity: ClusterIdentity, directory: str) -> None:
    """Compare with the directory's identity, or record it if there is none.

    Raises SafetyError on any difference, UnavailableError.
    """
    if not compare(identity, directory):
        folder_of(directory).write(_FILE, json.dumps(asdict(identity), indent=2).encode())


def compare(identity: ClusterIdentity, directory: str) -> bool:
    """Compare with the directory's identity; return False if it has none. Raises SafetyError, UnavailableError."""
    recorded = _read(folder_of(directory), _FILE)
    if recorded is None:
        return False
    differences = [
        f"{key} was {recorded.get(key)!r} and is {value!r}"
        for key, value in asdict(identity).items()
        if recorded.get(key) != value
    ]
    # another cluster at the same address has other ledgers with the same ids
    if differences:
        raise SafetyError(
            f"{shown(directory)} belongs to another cluster or instance: {'; '.join(differences)}. "
            "If this is intended, start with empty state and checkpoint directories; nothing was deleted."
        )
    return True


def known(directory: str) -> ClusterIdentity | None:
    """Return the identity recorded in the directory, if any. Raises SafetyError, UnavailableError."""
    recorded = _read(folder_of(directory), _FILE)
    return None if recorded is None else ClusterIdentity(**{key: str(recorded.get(key)) for key in _KEYS})


def hold_state(receipts_id: str, checkpoints: str) -> None:
    """Compare the receipts' id with the id recorded beside the checkpoints, or record it if there is none.

    Raises SafetyError, UnavailableError.
    """
    if not compare_state(receipts_id, checkpoints):
        folder_of(checkpoints).write(_STATE_FILE, json.dumps({"receipts": receipts_id}).encode())


def compare_state(receipts_id: str, checkpoints: str) -> bool:
    """Compare the receipts' id with the id recorded beside the checkpoints; return False if none is recorded.

    Raises SafetyError, UnavailableError.
    """
    recorded = _read(folder_of(checkpoints), _STATE_FILE)
    if recorded is not None and recorded.get("receipts") != receipts_id:
        raise SafetyError(
            f"the receipts in state.dir are not those that {shown(checkpoints)} was created with: retries that waited "
            "beside those receipts would be lost. Restore state.dir; if it is gone, move the checkpoints away, run "
            "`ledger-reaper release --state` and start again: the service then processes again every message that the "
            "topics still hold (checkpoints/README.md)"
        )
    return recorded is not None


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    content = folder.read(name)
    if content is None:
        return None
    try:
        return dict(json.loads(content))
    except (TypeError, ValueError) as error:
        raise SafetyError(f"{folder.root}/{name} is damaged ({error}); restore it before starting") from error


def _required(store: MetadataStore, path: str) -> Znode:
    node = store.read_many([path])[0]
    if node is None:
        raise ConfigError(f"ZooKeeper has no {path}: check zookeeper.hosts (chroot?) and zookeeper.ledgers_root")
    if isinstance(node, Unreadable):
        raise UnavailableError(f"{path} can't be read: {node.detail}")
    return node
