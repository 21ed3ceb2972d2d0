"""A cluster of three bookies with topics of known sizes, and `space` on it."""

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streaming.sandbox import ledger_list, topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from tests.integration.conftest import Deployment, config_text
from udfs.formats.ledger_placement import placement_of

RUN = uuid.uuid4().hex[:6]
FULL = 4  # full ledgers of a topic
PER_LEDGER = topics.ENTRIES_PER_LEDGER
ENTRY_BYTES = 3_000
SUBSCRIPTION = "it's slow"  # with characters that a shell interprets


@dataclass(frozen=True)
class World:
    cluster: Cluster
    service: Deployment

    def space(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run `space --json`."""
        time.sleep(3.1)  # commands in one process share the brokers' lists of loaded topics for 3 s
        return self.service.document("space", *arguments, code=code)


def service_of(cluster: Cluster, here: Path, admin: str | None = None) -> Deployment:
    config = here / "local.toml"
    texts = {"name": "scenes", "chunk_rows": 1000, "home": cluster.home.root, "here": here}
    text = config_text(cluster, limits="", classes="", **texts)
    config.write_text(text if admin is None else text.replace(cluster.addresses.admin, admin))
    return Deployment(config)


def new_namespace(cluster: Cluster, name: str, *, retention: int = 0) -> str:
    namespace = f"public/{name}-{RUN}"
    topics.admin(cluster, "PUT", f"namespaces/{namespace}")
    set_retention(cluster, namespace, retention)
    return namespace


def set_retention(cluster: Cluster, namespace: str, limit: int) -> None:
    policy = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
    topics.admin(cluster, "POST", f"namespaces/{namespace}/retention", policy)


def topic_in(namespace: str, name: str = "o'clock") -> str:
    return f"persistent://{namespace}/{name}"


def filled(cluster: Cluster, namespace: str, *, consumed: bool = False) -> str:
    topic = topic_in(namespace)
    sent = topics.fill(cluster, topic, FULL, [SUBSCRIPTION], entry_bytes=ENTRY_BYTES)
    if consumed:
        topics.consume(cluster, topic, SUBSCRIPTION, sent)
    return topic


def closed_ledgers(cluster: Cluster, topic: str) -> dict[int, tuple[int, int]]:
    """Return the closed ledgers of a topic, without those of cursors: id -> bytes of one copy, and stored bytes.

    Stored bytes are as on the bookies: each entry as often as the write quorum, with 40 bytes more.
    """
    ids = ledger_list.owned(cluster, topic).data
    znodes = part_clients.read_znodes(cluster.addresses.zookeeper, [ledger_list.path_of(each) for each in ids])
    found = {}
    for path, data in znodes.items():
        placement = placement_of(data)
        entries, length = placement.metadata.last_entry_id + 1, placement.metadata.length_bytes
        if length:
            found[path] = length, placement.write_quorum * (length + 40 * entries)
    by_path = {ledger_list.path_of(each): each for each in ids}
    return {by_path[path]: sizes for path, sizes in found.items()}


@contextmanager
def mounted_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """Mount a file system of this size in the folder until the block ends. Skip the test if tests may not mount."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a bookie only gets a disk of its own where tests may mount one: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def du(folder: Path) -> int:
    """Return the bytes that `du` reports."""
    done = subprocess.run(["du", "--summarize", "--block-size=1", str(folder)], capture_output=True, check=True)
    return int(done.stdout.split()[0])
