"""A directory belongs to one cluster and one instance from the first start, even if that start is interrupted."""

from dataclasses import replace
from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.coordination import identity
from streaming.coordination.identity import ClusterIdentity
from streaming.errors import ConfigError, SafetyError, UnavailableError
from tests.builders import ROOT, put

HERE = ClusterIdentity(
    instance_id="id", ledgers_root=ROOT, layout="hierarchical", pulsar_cluster="standalone", service_name="main"
)


def test_the_first_start_records_the_identity_and_later_starts_compare(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    assert not identity.compare(HERE, state)
    assert not Path(state).exists()
    identity.hold(HERE, state)
    identity.hold(HERE, state)
    assert identity.compare(HERE, state)
    assert (identity.known(state), identity.known(str(tmp_path))) == (HERE, None)
    for other in (replace(HERE, instance_id="another"), replace(HERE, service_name="second")):
        with pytest.raises(SafetyError, match="belongs to another"):
            identity.hold(other, state)


def test_a_killed_start_leaves_no_identity(tmp_path: Path) -> None:
    (tmp_path / ".cluster.json.unfinished").write_bytes(b'{"instance_id": "i')
    (tmp_path / ".state.json.unfinished").write_bytes(b"")
    assert not identity.compare(HERE, str(tmp_path))
    identity.hold(HERE, str(tmp_path))
    identity.hold_state("receipts-1", str(tmp_path))
    assert identity.compare(HERE, str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]"])
def test_a_damaged_identity_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cluster.json").write_bytes(content)
    with pytest.raises(SafetyError, match="damaged"):
        identity.hold(HERE, str(tmp_path))


def test_checkpoints_belong_to_the_receipts_that_they_were_created_with(tmp_path: Path) -> None:
    identity.hold_state("receipts-1", str(tmp_path))
    identity.hold_state("receipts-1", str(tmp_path))
    with pytest.raises(SafetyError, match=r"Restore state\.dir"):
        identity.hold_state("receipts-2", str(tmp_path))


def test_a_cluster_without_an_identity_is_refused() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    with pytest.raises(ConfigError, match="INSTANCEID"):
        identity.instance_id_of(store, ROOT)
    put(tree, f"{ROOT}/INSTANCEID", b"id")
    put(tree, f"{ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    cluster = identity.read_identity(store, ROOT, "standalone", "main")
    assert (cluster.instance_id, cluster.pulsar_cluster) == ("id", "standalone")
    store.unreadable.add(f"{ROOT}/INSTANCEID")
    with pytest.raises(UnavailableError, match="can't be read"):
        identity.instance_id_of(store, ROOT)
