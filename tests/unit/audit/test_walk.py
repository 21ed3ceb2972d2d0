"""What the audit's walk over ledgers and owners sees, and how it tells what it could not."""

from collections.abc import Iterator

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.audit import columns as a
from streaming.audit.walk.listing import find_folders, ids_in
from streaming.audit.walk.owners import find_namespaces
from streaming.audit.walk.references import ReferenceReader
from streaming.sweep.pace import Pace
from tests.builders import CURSOR, ROOT, SCHEMA, TOPIC, UUID, cursor_znode, list_znode, locator_znode, offloaded, put
from udfs import columns as c
from udfs.paths import FIRST_LONG_ID, Layout, ledger_path

TOPIC_PATH = f"/managed-ledgers/{TOPIC}"


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    for name in ("LAYOUT", "INSTANCEID", "available/127.0.0.1:3181", "idgen/ID-1", "underreplication/ledgers"):
        put(made.tree, f"{ROOT}/{name}")
    yield made
    made.close()


def _listed(store: MemoryStore, layout: Layout) -> tuple[list[int], list[str]]:
    folders = find_folders(store, ROOT, layout)
    problems = list(folders.problems)
    ids = ids_in(ROOT, folders.paths, store.children_many(folders.paths), problems)
    return sorted(ids), [path for path, _detail in problems]


def _references(store: MemoryStore) -> list[dict[str, object]]:
    namespaces = find_namespaces(store)
    children = store.children_many(namespaces.paths)
    paths = [f"{ns}/{name}" for ns, names in zip(namespaces.paths, children, strict=True) for name in names or ()]  # type: ignore[union-attr]
    return ReferenceReader(store, Pace(0)).rows(paths)


def _ids(rows: list[dict[str, object]], component: str) -> list[object]:
    return [row[c.LEDGER_ID] for row in rows if row.get(c.COMPONENT) == component and row[a.IN_BOOKKEEPER]]


@pytest.mark.parametrize(
    ("layout", "ids"),
    [
        (Layout.HIERARCHICAL, [0, 7, 9_999, 10_000, 123_456_789, FIRST_LONG_ID - 1, FIRST_LONG_ID, 2**40, 2**63 - 1]),
        (Layout.LONG_HIERARCHICAL, [0, 7, 9_999, 10_000, 2**31, 2**63 - 1]),
    ],
)
def test_every_ledger_of_either_layout_is_listed(store: MemoryStore, layout: Layout, ids: list[int]) -> None:
    for ledger_id in ids:
        put(store.tree, ledger_path(layout, ROOT, ledger_id))

    assert _listed(store, layout) == (ids, [])


def test_an_unreadable_folder_is_told_and_the_others_are_listed(store: MemoryStore) -> None:
    for ledger_id in (5, 10_005, 100_000_005):
        put(store.tree, ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id))
    store.unreadable |= {f"{ROOT}/00/0001", f"{ROOT}/01"}

    assert _listed(store, Layout.HIERARCHICAL) == ([5], [f"{ROOT}/01", f"{ROOT}/00/0001"])


def test_what_is_no_ledger_below_a_ledgers_folder_is_told(store: MemoryStore) -> None:
    put(store.tree, f"{ROOT}/00/0000/L0005")
    put(store.tree, f"{ROOT}/00/0000/backup")
    put(store.tree, f"{ROOT}/00/old")

    ids, problems = _listed(store, Layout.HIERARCHICAL)

    assert ids == [5]
    assert sorted(problems) == [f"{ROOT}/00/0000/backup", f"{ROOT}/00/old"]


def test_a_folder_that_goes_away_meanwhile_holds_nothing(store: MemoryStore) -> None:
    problems: list[tuple[str, str]] = []

    assert ids_in(ROOT, [f"{ROOT}/00/0003"], store.children_many([f"{ROOT}/00/0003"]), problems) == []
    assert problems == []


def test_topics_of_both_name_forms_and_schemas_are_found(store: MemoryStore) -> None:
    put(store.tree, f"{TOPIC_PATH}/{CURSOR}")
    put(store.tree, "/managed-ledgers/old/us-west/ns/persistent/t")
    put(store.tree, f"/schemas/{SCHEMA}")

    found = find_namespaces(store)

    assert found.paths == (
        "/managed-ledgers/public/default/persistent",
        "/managed-ledgers/old/us-west/ns/persistent",
        "/schemas/public/default",
    )
    assert found.problems == ()


def test_an_unreadable_namespace_is_told(store: MemoryStore) -> None:
    put(store.tree, TOPIC_PATH)
    store.unreadable.add("/managed-ledgers/public/default")

    assert [path for path, _detail in find_namespaces(store).problems] == ["/managed-ledgers/public/default"]


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


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        pytest.param(TOPIC_PATH, {"SCHEMA_STORAGE"}, id="the topic's list"),
        pytest.param(f"{TOPIC_PATH}/{CURSOR}", {"MANAGED_LEDGER", "SCHEMA_STORAGE"}, id="a cursor"),
        pytest.param(f"/schemas/{SCHEMA}", {"MANAGED_LEDGER", "MANAGED_CURSOR"}, id="a schema"),
    ],
)
@pytest.mark.parametrize("damage", ["unreadable", "garbled"])
def test_a_reference_that_can_not_be_read_is_told_and_the_others_are_read(
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


def test_a_znode_that_is_no_topic_is_told(store: MemoryStore) -> None:
    put(store.tree, "/managed-ledgers/public/default/persistent/a%2", list_znode(1))

    assert [row[a.PATH] for row in _references(store)] == ["/managed-ledgers/public/default/persistent/a%2"]


def test_a_topic_deleted_during_the_walk_refers_to_nothing(store: MemoryStore) -> None:
    assert ReferenceReader(store, Pace(0)).rows([TOPIC_PATH, f"/schemas/{SCHEMA}"]) == []
