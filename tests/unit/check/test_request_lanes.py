"""What `check` reports about lanes, from ZooKeeper alone."""

from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.check.questions import Notice
from streaming.check.request_lanes import request_lanes
from streaming.clock import ManualClock
from streaming.config.load import load
from streaming.config.settings import Settings

LANE = "__ledger_deletion"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(MemoryTree(ManualClock()))


def _settings(tmp_path: Path, lanes: str) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(f'[topics]\nlanes = "{lanes}"\n')
    return load(file)


def _create(store: MemoryStore, namespace: str, topic: str = f"{LANE}-partition-0/ledger-reaper") -> None:
    store.create(f"/managed-ledgers/{namespace}/persistent/{topic}", b"", parents=True)


@pytest.mark.parametrize(("lanes", "count"), [("tenant", "2 lanes exist"), ("namespace", "1 lane exists")])
def test_the_lanes_of_untrusted_tenants_are_counted(tmp_path: Path, store: MemoryStore, lanes: str, count: str) -> None:
    namespaces = ("a/ledger-deletion", "b/ledger-deletion", "pulsar/ledger-deletion")
    for namespace in namespaces if lanes == "tenant" else ("a/app", "pulsar/app"):
        _create(store, namespace)
    _create(store, "a/other", "orders-partition-0/ledger-reaper")
    assert request_lanes(store, _settings(tmp_path, lanes)) == f"topics.lanes = {lanes}: {count}"


def test_lanes_whose_requests_nobody_reads_are_named(tmp_path: Path, store: MemoryStore) -> None:
    _create(store, "auto/ledger-deletion", LANE)
    _create(store, "half/ledger-deletion", f"{LANE}-partition-0")
    with pytest.raises(Notice) as raised:
        request_lanes(store, _settings(tmp_path, "tenant"))
    text = str(raised.value)
    assert f"nothing reads their requests: persistent://auto/ledger-deletion/{LANE}" in text
    assert f"without the service's subscription: persistent://half/ledger-deletion/{LANE}" in text


def test_a_cluster_without_topics_has_no_lanes(tmp_path: Path, store: MemoryStore) -> None:
    assert request_lanes(store, _settings(tmp_path, "namespace")).endswith("0 lanes exist")
