"""Znodes that deleted tenants, namespaces, topics and ledgers left behind."""

from collections.abc import Callable, Sequence

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.errors import SafetyError
from streaming.ports import Unreadable
from streaming.space.leftover_znodes import Leftover, LeftoverKind, leftovers_of
from streaming.sweep.pace import Pace
from tests.builders import ROOT, put
from udfs.formats.store_migration import MIGRATION_PATH


class PartlyUnreadable(MemoryStore):
    """A store in which the children of some paths can't be listed."""

    def __init__(self, *unreadable: str) -> None:
        super().__init__()
        self._unreadable = unreadable

    def children_many(self, paths: Sequence[str]) -> list[list[str] | Unreadable | None]:
        answers = zip(paths, super().children_many(paths), strict=True)
        return [Unreadable("no right") if path in self._unreadable else answer for path, answer in answers]


def store_of(*paths: str, store: MemoryStore | None = None) -> MemoryStore:
    """Return a store with the namespaces shop/prod and the V1 namespace old/c1/ns, and with these paths."""
    store = store or MemoryStore()
    fixed = ("/admin/policies/shop/prod", "/admin/policies/old/c1/ns", "/managed-ledgers/shop/prod/persistent/orders")
    for path in (*fixed, "/schemas/shop/prod/orders", f"{ROOT}/00/0000/L0001", f"{ROOT}/available/b:3181", *paths):
        put(store.tree, path)
    return store


def search(store: MemoryStore, between: Callable[[], None] = lambda: None) -> list[Leftover]:
    return leftovers_of(store, ROOT, Pace(0), between, zookeeper="zk:2181")


def found(*paths: str) -> list[tuple[LeftoverKind, str]]:
    return [(leftover.kind, leftover.path) for leftover in search(store_of(*paths))]


@pytest.mark.parametrize(
    "paths",
    [
        pytest.param((), id="only what is in use"),
        pytest.param(("/managed-ledgers/old/c1/ns/persistent/a", "/schemas/old/ns/a"), id="V1 names"),
        pytest.param(("/managed-ledgers/shop/prod/persistent/p-partition-0", "/schemas/shop/prod/p"), id="a partition"),
        pytest.param(("/admin/partitioned-topics/shop/prod/persistent/p", "/schemas/shop/prod/p"), id="partitioned"),
        pytest.param(("/admin/partitioned-topics/shop/prod/non-persistent/p", "/schemas/shop/prod/p"), id="in memory"),
        pytest.param(("/managed-ledgers/pulsar/h:8080/persistent/healthcheck",), id="a broker's health check"),
        pytest.param(("/managed-ledgers/pulsar/c1/h:8080/persistent/healthcheck",), id="its older name"),
        pytest.param(("/schemas/pulsar/h:8080/healthcheck",), id="the schema of a health check"),
        pytest.param(("/admin/policies/new",), id="a tenant without namespaces"),
        pytest.param(("/admin/policies/shop/empty", "/managed-ledgers/shop/empty/persistent"), id="no topics yet"),
        pytest.param(
            ("/managed-ledgers/shop/prod/segment/s/0000-ffff-0", "/schemas/shop/prod/s"), id="a segment and its schema"
        ),
        pytest.param(("/topics/shop/prod/s-partition-3", "/schemas/shop/prod/s-partition-3"), id="a scalable topic"),
        pytest.param(
            (
                "/admin/policies/old/c1/segment",
                "/managed-ledgers/old/c1/segment/persistent/a",
                "/schemas/old/segment/a",
            ),
            id="a V1 namespace called segment",
        ),
        pytest.param((f"{ROOT}/000/0000/0000/0000/L0001", f"{ROOT}/underreplication"), id="long ids"),
    ],
)
def test_what_is_in_use_is_no_leftover(paths: tuple[str, ...]) -> None:
    assert found(*paths) == []


def test_a_schema_waits_until_its_namespace_is_repaired() -> None:
    paths = ("/managed-ledgers/shop/gone/persistent/__change_events", "/schemas/shop/gone/a")

    assert found(*paths) == [(LeftoverKind.NAMESPACE, "/managed-ledgers/shop/gone")]
    assert found(*paths, "/admin/policies/shop/gone") == [(LeftoverKind.SCHEMA, "/schemas/shop/gone/a")]


@pytest.mark.parametrize(
    ("path", "leftovers"),
    [
        pytest.param("/managed-ledgers/gone", [(LeftoverKind.TENANT, "/managed-ledgers/gone")], id="tenant"),
        pytest.param("/schemas/gone", [(LeftoverKind.TENANT, "/schemas/gone")], id="tenant of schemas"),
        pytest.param(
            "/managed-ledgers/shop/gone/persistent",
            [
                (LeftoverKind.NAMESPACE, "/managed-ledgers/shop/gone/persistent"),
                (LeftoverKind.NAMESPACE, "/managed-ledgers/shop/gone"),
            ],
            id="an empty namespace, its child first",
        ),
        pytest.param(
            "/managed-ledgers/shop/gone", [(LeftoverKind.NAMESPACE, "/managed-ledgers/shop/gone")], id="only its name"
        ),
        pytest.param(
            "/managed-ledgers/old/c1/gone/persistent/a",
            [(LeftoverKind.NAMESPACE, "/managed-ledgers/old/c1/gone")],
            id="a V1 namespace with topics",
        ),
        pytest.param(
            "/schemas/shop/gone", [(LeftoverKind.NAMESPACE, "/schemas/shop/gone")], id="a namespace of schemas"
        ),
        pytest.param("/schemas/shop/prod/gone", [(LeftoverKind.SCHEMA, "/schemas/shop/prod/gone")], id="schema"),
        pytest.param(
            "/schemas/shop/gone/a", [(LeftoverKind.SCHEMA, "/schemas/shop/gone/a")], id="schema without a namespace"
        ),
        pytest.param(f"{ROOT}/00/0007", [(LeftoverKind.LEDGER_FOLDER, f"{ROOT}/00/0007")], id="ledger folder"),
        pytest.param(f"{ROOT}/000/0000/0001", [(LeftoverKind.LEDGER_FOLDER, f"{ROOT}/000/0000/0001")], id="long ids"),
        pytest.param(f"{ROOT}/07", [(LeftoverKind.LEDGER_FOLDER, f"{ROOT}/07")], id="top folder"),
    ],
)
def test_each_kind_is_found(path: str, leftovers: list[tuple[LeftoverKind, str]]) -> None:
    assert found(path) == leftovers


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/managed-ledgers/gone", "bin/pulsar zookeeper-shell -server zk:2181 delete /managed-ledgers/gone"),
        (f"{ROOT}/00/0007", f"bin/pulsar zookeeper-shell -server zk:2181 delete {ROOT}/00/0007"),
        ("/schemas/shop/prod/a%3Bb", "pulsar-admin schemas delete -f 'persistent://shop/prod/a;b'"),
        (
            "/schemas/gone/ns/a",
            "pulsar-admin tenants create gone && pulsar-admin namespaces create gone/ns && "
            "pulsar-admin schemas delete -f persistent://gone/ns/a && pulsar-admin namespaces delete gone/ns && "
            "pulsar-admin tenants delete gone",
        ),
        (
            "/managed-ledgers/shop/gone/persistent/a",
            "pulsar-admin namespaces create shop/gone",
        ),
    ],
)
def test_each_leftover_has_the_command_that_removes_it(path: str, command: str) -> None:
    (leftover,) = search(store_of(path))

    assert leftover.command == command


def test_a_namespace_with_topics_is_named_with_their_number() -> None:
    paths = [f"/managed-ledgers/shop/gone/persistent/{name}" for name in "abc"]
    (leftover,) = search(store_of(*paths))

    assert "3 topics with their data" in leftover.detail


@pytest.mark.parametrize(
    ("path", "used"),
    [
        (f"{ROOT}/00/0007", f"{ROOT}/00/0007/L0001"),
        ("/managed-ledgers/shop/new/persistent", "/admin/policies/shop/new"),
        ("/schemas/shop/prod/new", "/managed-ledgers/shop/prod/persistent/new"),
    ],
)
def test_what_is_used_at_the_second_search_is_no_leftover(path: str, used: str) -> None:
    store = store_of(path)

    assert search(store, lambda: put(store.tree, used)) == []


@pytest.mark.parametrize("starts_later", [False, True])
def test_nothing_is_searched_in_a_store_that_the_cluster_leaves(*, starts_later: bool) -> None:
    store = store_of()

    def start() -> None:
        put(store.tree, MIGRATION_PATH, b'{"phase":"COPYING"}')

    if not starts_later:
        start()
    with pytest.raises(SafetyError, match="has phase COPYING"):
        search(store, start if starts_later else pytest.fail)


def test_what_is_new_at_the_second_search_is_no_leftover() -> None:
    store = store_of()

    assert search(store, lambda: put(store.tree, f"{ROOT}/00/0007")) == []


def test_without_policies_in_this_store_no_namespace_counts_as_deleted() -> None:
    store = MemoryStore()
    for path in ("/managed-ledgers/shop/prod/persistent/a", "/schemas/shop/prod/b", f"{ROOT}/00/0007"):
        put(store.tree, path)

    assert [(leftover.kind, leftover.path) for leftover in search(store)] == [
        (LeftoverKind.LEDGER_FOLDER, f"{ROOT}/00/0007"),
        (LeftoverKind.UNREADABLE, "/admin/policies"),
    ]


@pytest.mark.parametrize(
    "unreadable",
    [
        "/admin/policies",
        "/admin/policies/shop",
        "/managed-ledgers/shop/gone",
        "/managed-ledgers/shop/gone/persistent",
        "/managed-ledgers/shop",
        "/managed-ledgers",
    ],
)
def test_nothing_is_concluded_from_what_could_not_be_read(unreadable: str) -> None:
    store = store_of("/managed-ledgers/shop/gone/persistent/a", store=PartlyUnreadable(unreadable))

    (leftover,) = search(store)
    assert (leftover.kind, leftover.path, leftover.command) == (LeftoverKind.UNREADABLE, unreadable, "")


@pytest.mark.parametrize(
    "unreadable",
    [
        "/managed-ledgers",
        "/managed-ledgers/shop",
        "/managed-ledgers/shop/prod",
        "/managed-ledgers/shop/prod/persistent",
        "/admin/partitioned-topics/shop/prod/persistent",
    ],
)
def test_a_schema_is_no_leftover_unless_all_topics_are_known(unreadable: str) -> None:
    store = store_of("/schemas/shop/prod/gone", store=PartlyUnreadable(unreadable))

    assert [leftover.kind for leftover in search(store)] == [LeftoverKind.UNREADABLE]


@pytest.mark.parametrize("odd", ["/schemas/shop/prod/a b", "/managed-ledgers/shop/prod/persistent/a b"])
def test_a_name_that_pulsar_does_not_write_is_unreadable(odd: str) -> None:
    assert [(leftover.kind, leftover.path) for leftover in search(store_of(odd))] == [(LeftoverKind.UNREADABLE, odd)]
