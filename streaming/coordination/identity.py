"""Which cluster a checkpoint belongs to, and which instance: written at the first start, compared at every later one.

Another cluster behind the same address has other ledgers under the same numbers; so a difference stops the start.
"""

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.fs as pafs

from streaming.adapters.pulsar.admin import PulsarAdmin
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.state.filesystem import open_filesystem, shown
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


def read_identity(store: MetadataStore, ledgers_root: str, pulsar_cluster: str, service_name: str) -> ClusterIdentity:
    """Who the cluster says it is now."""
    layout = read_layout(store, ledgers_root)
    instance = _required(store, f"{ledgers_root}/INSTANCEID").data.decode("utf-8", "replace")
    return ClusterIdentity(instance, ledgers_root, str(layout), pulsar_cluster, service_name)


def hold(identity: ClusterIdentity, directory: str) -> None:
    """Compare with what the directory remembers, or make it remember. Raises SafetyError on any difference."""
    filesystem, root = open_filesystem(directory)
    path = f"{root}/{_FILE}"
    try:
        if _read(filesystem, path) is None:
            filesystem.create_dir(root, recursive=True)
            with filesystem.open_output_stream(path) as out:
                out.write(json.dumps(asdict(identity), indent=2).encode())
            return
    except OSError as error:
        raise UnavailableError(f"{path} can't be read or written: {error}") from error
    compare(identity, directory)


def compare(identity: ClusterIdentity, directory: str) -> bool:
    """Compare with what the directory remembers; False where that is nothing. Raises SafetyError, UnavailableError."""
    filesystem, root = open_filesystem(directory)
    path = f"{root}/{_FILE}"
    try:
        known = _read(filesystem, path)
    except OSError as error:
        raise UnavailableError(f"{path} can't be read: {error}") from error
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
            "If that is intended, start with empty state and checkpoint directories; nothing was deleted."
        )
    return True


def hold_state(receipts_id: str, checkpoints: str) -> None:
    """Compare the receipts with those the checkpoints were made with. Raises SafetyError, UnavailableError."""
    filesystem, root = open_filesystem(checkpoints)
    path = f"{root}/{_STATE_FILE}"
    try:
        known = _read(filesystem, path)
        if known is None:
            with filesystem.open_output_stream(path) as out:
                out.write(json.dumps({"receipts": receipts_id}).encode())
            return
    except OSError as error:
        raise UnavailableError(f"{path} can't be read or written: {error}") from error
    if known.get("receipts") != receipts_id:
        raise SafetyError(
            f"the receipts in state.dir are not those that {shown(checkpoints)} was made with: retries that waited "
            "there would be lost. Restore state.dir; if it is gone, move the checkpoints away and start again: all "
            "that the topics still hold is then looked at anew (checkpoints/README.md)"
        )


def of_cluster(settings: Settings, store: MetadataStore, admin: PulsarAdmin) -> ClusterIdentity:
    """Who the configured cluster says it is now. Raises ConfigError, UnavailableError."""
    clusters = ",".join(sorted(admin.clusters()))
    return read_identity(store, settings.zookeeper.ledgers_root, clusters, settings.service.name)


def _read(filesystem: pafs.FileSystem, path: str) -> dict[str, Any] | None:
    if filesystem.get_file_info(path).type is pafs.FileType.NotFound:
        return None
    with filesystem.open_input_stream(path) as stream:
        try:
            return dict(json.loads(stream.read()))
        except ValueError as error:
            raise SafetyError(f"{path} is damaged ({error}); restore it before starting") from error


def _required(store: MetadataStore, path: str) -> Znode:
    node = store.read_many([path])[0]
    if node is None:
        raise ConfigError(f"ZooKeeper has no {path}: check zookeeper.hosts (chroot?) and zookeeper.ledgers_root")
    if isinstance(node, Unreadable):
        raise UnavailableError(f"{path} can't be read: {node.detail}")
    return node
