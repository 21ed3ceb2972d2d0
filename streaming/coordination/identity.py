"""Which cluster and which instance a directory belongs to: the first start writes it down, every later one compares.

Another cluster behind the same address has other ledgers under the same numbers, so a difference stops the start.
"""

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, TopicAdmin, Unreadable, Znode
from streaming.state.filesystem import Folder, folder_of, shown
from udfs.paths import Layout, parse_layout

_FILE = "cluster.json"
_STATE_FILE = "state.json"


def iso_time(clock: Clock) -> str:
    """The time as ISO 8601, UTC, to the second."""
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")


def operator_name() -> str:
    """Who runs this process: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """BookKeeper's INSTANCEID, its ledgers root and layout, Pulsar's cluster name, and our instance's name."""

    instance_id: str
    ledgers_root: str
    layout: str
    pulsar_cluster: str
    service_name: str


def read_layout(store: MetadataStore, ledgers_root: str) -> Layout:
    """BookKeeper's own word on how ledger paths look. Raises ConfigError, UnavailableError; never guesses."""
    node = _required(store, f"{ledgers_root}/LAYOUT")
    try:
        return parse_layout(node.data)
    except ValueError as error:
        raise ConfigError(f"{ledgers_root}/LAYOUT: {error}") from error


def instance_id_of(store: MetadataStore, ledgers_root: str) -> str:
    """BookKeeper's own name for itself (INSTANCEID), now. Raises ConfigError, UnavailableError."""
    return _required(store, f"{ledgers_root}/INSTANCEID").data.decode("utf-8", "replace")


def read_identity(store: MetadataStore, ledgers_root: str, pulsar_cluster: str, service_name: str) -> ClusterIdentity:
    """Who the cluster says it is now. Raises as instance_id_of."""
    layout = read_layout(store, ledgers_root)
    return ClusterIdentity(instance_id_of(store, ledgers_root), ledgers_root, str(layout), pulsar_cluster, service_name)


def of_cluster(settings: Settings, store: MetadataStore, admin: TopicAdmin) -> ClusterIdentity:
    """Who the configured cluster says it is now. Raises ConfigError, UnavailableError."""
    clusters = ",".join(sorted(admin.clusters()))
    return read_identity(store, settings.zookeeper.ledgers_root, clusters, settings.service.name)


def hold(identity: ClusterIdentity, directory: str) -> None:
    """Compare with what the directory remembers, or make it remember.

    Raises SafetyError on any difference, UnavailableError.
    """
    if not compare(identity, directory):
        folder_of(directory).write(_FILE, json.dumps(asdict(identity), indent=2).encode())


def compare(identity: ClusterIdentity, directory: str) -> bool:
    """Compare with what the directory remembers; False where that is nothing. Raises SafetyError, UnavailableError."""
    known = _read(folder_of(directory), _FILE)
    if known is None:
        return False
    differences = [
        f"{key} was {known.get(key)!r} and is {value!r}"
        for key, value in asdict(identity).items()
        if known.get(key) != value
    ]
    if differences:
        raise SafetyError(
            f"{shown(directory)} belongs to another cluster or instance: {'; '.join(differences)}. "
            "If you mean that, start with empty state and checkpoint directories; nothing was deleted."
        )
    return True


def known_instance_id(directory: str) -> str | None:
    """Return the INSTANCEID that the directory remembers; None where it remembers none. Raises as compare."""
    known = _read(folder_of(directory), _FILE)
    return None if known is None else str(known.get("instance_id"))


def hold_state(receipts_id: str, checkpoints: str) -> None:
    """Compare the receipts with those of the checkpoints, or have these remember them. Raises as compare_state."""
    if not compare_state(receipts_id, checkpoints):
        folder_of(checkpoints).write(_STATE_FILE, json.dumps({"receipts": receipts_id}).encode())


def compare_state(receipts_id: str, checkpoints: str) -> bool:
    """Compare the receipts with those that the checkpoints were created with; False if they remember none.

    Raises SafetyError, UnavailableError.
    """
    known = _read(folder_of(checkpoints), _STATE_FILE)
    if known is not None and known.get("receipts") != receipts_id:
        raise SafetyError(
            f"the receipts in state.dir are not those that {shown(checkpoints)} was made with: retries that waited "
            "there would be lost. Restore state.dir; if it is gone, move the checkpoints away, run `ledger-reaper "
            "release --state` and start again: the service then looks anew at all that the topics still hold "
            "(checkpoints/README.md)"
        )
    return known is not None


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
