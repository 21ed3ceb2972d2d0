"""Namespaces with snapshot topics are found in ZooKeeper, and read only if that loads no topic."""

from typing import cast

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.audit.audit_options import FindingFilters
from streaming.ports import Broker, MetadataStore, Unreadable, Znode
from streaming.snapshots.snapshot_namespaces import Loaded, loaded, namespaces_with_snapshots
from tests.unit.snapshots import fakes
from tests.unit.snapshots.fakes import Store
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import Presence
from udfs.snapshots.keys import SnapshotKind

LOADED = [system_topic(space, SnapshotKind.INDEX) for space in ("t/a", "t/b")]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (FindingFilters(), ["t/a", "u/a"]),
        (FindingFilters(tenant="t"), ["t/a"]),
        (FindingFilters(namespace="u/a"), ["u/a"]),
        (FindingFilters(namespace="t/b"), []),
    ],
)
def test_namespaces_with_a_snapshot_topic_are_found_in_zookeeper(filters: FindingFilters, expected: list[str]) -> None:
    node = Znode(data=b"", version=0, ctime_ms=0, mtime_ms=0)
    root = "/managed-ledgers"
    store = Store(
        {
            f"{root}/t/a/persistent/{SnapshotKind.SINGLE}": node,
            f"{root}/u/a/persistent/{SnapshotKind.SEGMENT}": node,
            f"{root}/t/b/persistent/orders": node,
        },
        {
            root: ["t", "u", "v"],
            f"{root}/t": ["a", "b"],
            f"{root}/u": ["a"],
            f"{root}/v": Unreadable("no right"),
            **{f"{root}/{each}": ["persistent"] for each in ("t/a", "t/b", "u/a")},
        },
    )
    found, problems = namespaces_with_snapshots(cast(MetadataStore, store), filters)
    assert found == expected
    assert problems == [(f"{root}/v", "no right")]


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        (fakes.Broker(Presence.PRESENT), Loaded(["t/a", "t/b"], [], [])),
        (
            fakes.Broker(Presence.PRESENT, frozenset(managed_ledger_name(topic) for topic in LOADED)),
            Loaded(["t/a"], ["t/b"], []),
        ),
        (fakes.Broker(Presence.PRESENT, frozenset()), Loaded([], ["t/a", "t/b"], [])),
        (
            fakes.Broker(Presence.UNREADABLE),
            Loaded([], ["t/a", "t/b"], [(f"/managed-ledgers/{each}", "said so") for each in ("t/a", "t/b")]),
        ),
    ],
    ids=["all", "not all of b", "none", "no answer"],
)
def test_a_namespace_is_read_without_loading_a_topic_only_if_all_its_snapshot_topics_are_loaded(
    broker: fakes.Broker, expected: Loaded
) -> None:
    topics = [*LOADED, system_topic("t/b", SnapshotKind.SINGLE)]
    store = Store({managed_ledger_path(topic): Znode(data=b"", version=0, ctime_ms=0, mtime_ms=0) for topic in topics})
    assert loaded(cast(MetadataStore, store), cast(Broker, broker), ["t/a", "t/b"]) == expected
