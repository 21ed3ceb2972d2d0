"""Reports name the cluster and its ZooKeeper, as far as they are known."""

from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.audit.cluster_label import cluster_label
from streaming.clock import SystemClock
from streaming.config.load import load_values


@pytest.mark.parametrize(
    ("clusters", "configured", "label"),
    [
        (["global", "east"], "", "cluster east (ZooKeeper zk:2181/a)"),
        (["east", "west"], "", "cluster (ZooKeeper zk:2181/a)"),
        (["east", "west"], "west", "cluster west (ZooKeeper zk:2181/a)"),
        ([], "", "cluster (ZooKeeper zk:2181/a)"),
    ],
)
def test_the_name_is_the_configured_or_the_only_one(clusters: list[str], configured: str, label: str) -> None:
    store = MemoryStore(MemoryTree(SystemClock()))
    for name in clusters:
        store.create(f"/admin/clusters/{name}", b"{}", parents=True)
    values = {"zookeeper": {"hosts": "zk:2181/a"}, "tiered_storage": {"pulsar_cluster": configured}}
    assert cluster_label(load_values(values, Path("/")), store) == label
