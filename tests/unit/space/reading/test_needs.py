"""Ledgers that owners refer to, and that BookKeeper does not have, are missing only after a second reading."""

from collections.abc import Callable

import pytest

from tests.builders import SCHEMA, TOPIC, cursor_custom, locator_znode, put
from tests.unit.space.cluster import Cluster, path_of
from udfs.formats.managed_ledger import ManagedCursorInfo, serialize_cursor
from udfs.owners.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, DELAYED_BUCKET_PREFIX
from udfs.paths import managed_ledger_path, topic_of
from udfs.records import LedgerComponent

NAMED = topic_of(TOPIC)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def missing(cluster: Cluster) -> list[tuple[int, LedgerComponent, str, str]]:
    found = cluster.measure(topic=NAMED).missing
    return [(need.ledger_id, need.component, need.topic, need.cursor) for need in found]


def test_every_kind_of_missing_ledger_is_named_with_its_cursor(cluster: Cluster) -> None:
    cluster.topic(1, 2, 3, missing=[2])
    cluster.cursor("billing", (1, 9), ledger=20, cursor_properties={f"{DELAYED_BUCKET_PREFIX}_1_2": "21"})
    cluster.cursor(COMPACTION_CURSOR, (1, 9), properties={COMPACTED_LEDGER_PROPERTY: 22})
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(23, 24))
    assert missing(cluster) == [
        (2, LedgerComponent.MANAGED_LEDGER, NAMED, ""),
        (20, LedgerComponent.MANAGED_CURSOR, NAMED, "billing"),
        (21, LedgerComponent.DELAYED_INDEX_BUCKET, NAMED, "billing"),
        (22, LedgerComponent.COMPACTED_LEDGER, NAMED, COMPACTION_CURSOR),
        (23, LedgerComponent.SCHEMA_STORAGE, NAMED, ""),
        (24, LedgerComponent.SCHEMA_STORAGE, NAMED, ""),
    ]
    assert [need.is_last for need in cluster.measure(topic=NAMED).missing[-2:]] == [False, True]


def test_ledgers_that_exist_are_not_missing(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, 9), ledger=20)
    cluster.ledger(20, custom=cursor_custom())
    put(cluster.tree, f"/schemas/{SCHEMA}", locator_znode(23))
    cluster.ledger(23)
    assert not missing(cluster)


def test_a_ledger_whose_metadata_cannot_be_read_is_not_missing(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, 9), ledger=20)
    cluster.ledger(20, custom=cursor_custom())
    cluster.store.unreadable.add(path_of(20))
    assert not missing(cluster)


def _cursor_moves(cluster: Cluster) -> None:
    path = f"{managed_ledger_path(TOPIC)}/billing"
    cluster.tree.write(
        path, serialize_cursor(ManagedCursorInfo(cursors_ledger_id=-1, mark_delete_ledger_id=1, mark_delete_entry_id=9))
    )


def _cursor_goes(cluster: Cluster) -> None:
    cluster.tree.remove(f"{managed_ledger_path(TOPIC)}/billing")


def _ledger_comes(cluster: Cluster) -> None:
    cluster.ledger(20, custom=cursor_custom())


@pytest.mark.parametrize("change", [_cursor_moves, _cursor_goes, _ledger_comes])
def test_what_changed_since_it_was_read_is_not_missing(
    cluster: Cluster, change: Callable[[Cluster], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, 9), ledger=20)
    read_many, reads = cluster.store.read_many, list[str]()

    def read(paths: list[str]) -> list[object]:
        found: list[object] = list(read_many(paths))
        if path_of(20) not in paths and f"{managed_ledger_path(TOPIC)}/billing" in paths and not reads:
            reads.append("once")
            change(cluster)
        return found

    monkeypatch.setattr(cluster.store, "read_many", read)
    assert not missing(cluster)
    assert reads


def test_a_cursor_of_a_loaded_topic_is_missing_its_ledger_too(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, 9), ledger=20)
    cluster.load({"billing": (1, 9)}, ledgers=[1, 2])
    (need,) = cluster.measure(topic=NAMED).missing
    assert (need.ledger_id, need.is_loaded) == (20, True)


def test_faults_of_the_second_reading_are_not_counted_twice(cluster: Cluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("billing", (1, 9), ledger=20)
    put(cluster.tree, f"{managed_ledger_path(TOPIC)}/broken", b"garbled")
    report = cluster.measure(topic=NAMED)
    assert [need.ledger_id for need in report.missing] == [20]
    assert [each.what for each in report.unknown if "and" in each.what] == []
