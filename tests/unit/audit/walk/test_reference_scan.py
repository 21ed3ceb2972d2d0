"""The references that the walk reads, and its report of unreadable ones."""

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.audit import audit_columns as a
from streaming.audit.walk.owner_listing import find_namespaces
from streaming.audit.walk.reference_scan import ReferenceReader
from streaming.sweep.pace import Pace
from tests.builders import CURSOR, SCHEMA, SEGMENT, TOPIC, UUID, cursor_znode, list_znode, locator_znode, offloaded, put
from udfs import columns as c

TOPIC_PATH = f"/managed-ledgers/{TOPIC}"


def _references(store: MemoryStore) -> list[dict[str, object]]:
    namespaces = find_namespaces(store)
    children = store.children_many(namespaces.paths)
    paths = [f"{ns}/{name}" for ns, names in zip(namespaces.paths, children, strict=True) for name in names or ()]  # type: ignore[union-attr]
    return ReferenceReader(store, Pace(0)).rows(paths)


def _ids(rows: list[dict[str, object]], component: str) -> list[object]:
    return [row[c.LEDGER_ID] for row in rows if row.get(c.COMPONENT) == component and row[a.IN_BOOKKEEPER]]


def test_every_kind_of_reference_is_read(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH, list_znode(1, 2, offloaded(3), 4))
    put(store.tree, f"{TOPIC_PATH}/{CURSOR}", cursor_znode(10, buckets=[20, 21]))
    put(store.tree, f"{TOPIC_PATH}/__compaction", cursor_znode(11, properties={"CompactedTopicLedger": 30}))
    put(store.tree, f"/schemas/{SCHEMA}", locator_znode(40, 41))

    rows = _references(store)

    assert _ids(rows, "MANAGED_LEDGER") == [1, 2, 4]
    assert sorted(_ids(rows, "MANAGED_CURSOR")) == [10, 11]  # type: ignore[type-var]
    assert _ids(rows, "DELAYED_INDEX_BUCKET") == [20, 21]
    assert _ids(rows, "COMPACTED_LEDGER") == [30]
    assert _ids(rows, "SCHEMA_STORAGE") == [40, 41]
    assert [(row[c.LEDGER_ID], row[c.UUID]) for row in rows if row.get(c.UUID)] == [(3, UUID)]
    assert not [row for row in rows if row.get(a.PATH)]


def test_segments_name_ledgers_as_topics_do(store: MemoryStore) -> None:
    put(store.tree, f"/managed-ledgers/{SEGMENT}", list_znode(1, 2))
    put(store.tree, f"/managed-ledgers/{SEGMENT}/{CURSOR}", cursor_znode(10))

    rows = _references(store)

    assert _ids(rows, "MANAGED_LEDGER") == [1, 2]
    assert _ids(rows, "MANAGED_CURSOR") == [10]
    assert {(row[a.MANAGED_LEDGER], row[a.NAMESPACE]) for row in rows} == {(SEGMENT, "public/default")}


def test_a_segment_without_a_valid_name_is_reported(store: MemoryStore) -> None:
    put(store.tree, "/managed-ledgers/t/ns/segment/orders/all", list_znode(1))

    (row,) = _references(store)

    assert row[a.PATH] == "/managed-ledgers/t/ns/segment/orders/all"


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        pytest.param(TOPIC_PATH, {"SCHEMA_STORAGE"}, id="the topic's list"),
        pytest.param(f"{TOPIC_PATH}/{CURSOR}", {"MANAGED_LEDGER", "SCHEMA_STORAGE"}, id="a cursor"),
        pytest.param(f"/schemas/{SCHEMA}", {"MANAGED_LEDGER", "MANAGED_CURSOR"}, id="a schema"),
    ],
)
@pytest.mark.parametrize("damage", ["unreadable", "garbled"])
def test_an_unreadable_reference_is_reported_and_the_others_are_read(
    store: MemoryStore, path: str, kept: set[str], damage: str
) -> None:
    put(store.tree, TOPIC_PATH, list_znode(1, 2))
    put(store.tree, f"{TOPIC_PATH}/{CURSOR}", cursor_znode(10))
    put(store.tree, f"/schemas/{SCHEMA}", locator_znode(40))
    if damage == "unreadable":
        store.unreadable.add(path)
    else:
        put(store.tree, path, b"\xff\xff\xff")

    rows = _references(store)

    assert path in {row.get(a.PATH) for row in rows}
    assert {row[c.COMPONENT] for row in rows if row.get(c.COMPONENT)} >= kept


def test_a_znode_that_is_no_topic_is_reported(store: MemoryStore) -> None:
    put(store.tree, "/managed-ledgers/public/default/persistent/a%2", list_znode(1))

    assert [row[a.PATH] for row in _references(store)] == ["/managed-ledgers/public/default/persistent/a%2"]


def test_a_topic_deleted_during_the_walk_refers_to_nothing(store: MemoryStore) -> None:
    assert ReferenceReader(store, Pace(0)).rows([TOPIC_PATH, f"/schemas/{SCHEMA}"]) == []
