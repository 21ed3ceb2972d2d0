"""Injected failures of the fakes; tests/contract covers their other behaviour."""

import pytest

from streaming.adapters.memory.store import CrashError, MemoryBroker, MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.coordination.lock import InstanceLock
from streaming.errors import UnavailableError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Unreadable, Znode
from udfs.formats.acl import ALL, DELETE, AclEntry
from udfs.records import BrokerView, Presence

OWNER = "t/ns/persistent/x"


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for path in ("/owner", "/a", "/b", "/c"):
        store.create(path, b"")
    return store


def _batches(*paths: str) -> list[GuardedDelete]:
    return [GuardedDelete((("/owner", 0),), ((path, 0),)) for path in paths]


@pytest.mark.parametrize(
    ("applied", "left"),
    [
        pytest.param(False, ["/", "/b", "/owner"], id="before it took place"),
        pytest.param(True, ["/", "/owner"], id="after it took place"),
    ],
)
def test_only_the_chosen_delete_is_unknown(store: MemoryStore, applied: bool, left: list[str]) -> None:
    store.faults.fail_at(2, applied=applied)

    results = store.delete_guarded(_batches("/a", "/b", "/c"))

    assert [result.status for result in results] == [GuardStatus.DELETED, GuardStatus.UNKNOWN, GuardStatus.DELETED]
    assert store.tree.paths() == left


@pytest.mark.parametrize("applied", [False, True])
def test_an_injected_write_failure_happens_once(store: MemoryStore, applied: bool) -> None:
    store.faults.fail_at(1, applied=applied)

    with pytest.raises(UnavailableError):
        store.create("/d", b"")

    assert store.create("/d", b"") is not applied
    assert store.set_data("/d", b"x") == 1


def test_a_crash_is_not_caught(store: MemoryStore) -> None:
    store.faults.fail_at(2, crash=True)

    with pytest.raises(CrashError):
        store.delete_guarded(_batches("/a", "/b", "/c"))

    assert store.tree.paths() == ["/", "/b", "/c", "/owner"]
    assert not issubclass(CrashError, Exception)


def test_effects_are_counted_so_that_a_test_can_let_each_fail(store: MemoryStore) -> None:
    before = store.faults.effects

    store.read_many(["/a"])
    store.set_data("/owner", b"")
    store.delete_guarded(_batches("/a"))
    store.delete("/b")

    assert store.faults.effects - before == 3


def test_another_actor_runs_between_read_and_delete(store: MemoryStore) -> None:
    broker = MemoryStore(store.tree)
    seen = []

    def interfere(operation: str, paths: object) -> None:
        seen.append((operation, paths))
        if operation == "delete_guarded" and paths == ["/b"]:
            broker.set_data("/owner", b"changed")

    store.faults.before(interfere)
    results = store.delete_guarded(_batches("/a", "/b"))

    assert seen == [("delete_guarded", ["/a"]), ("delete_guarded", ["/b"])]
    assert results == [GuardResult(GuardStatus.DELETED), GuardResult(GuardStatus.CHECK_FAILED, "/owner")]


def test_an_unavailable_service_answers_nothing(store: MemoryStore) -> None:
    store.faults.away = True

    with pytest.raises(UnavailableError):
        store.read_many(["/a"])
    assert store.delete_guarded(_batches("/a")) == [GuardResult(GuardStatus.UNKNOWN)]

    store.faults.away = False
    assert store.delete_guarded(_batches("/a")) == [GuardResult(GuardStatus.DELETED)]


def test_a_single_path_can_be_unreadable(store: MemoryStore) -> None:
    store.unreadable.add("/a")

    unreadable, readable = store.read_many(["/a", "/b"])

    assert isinstance(unreadable, Unreadable)
    assert isinstance(readable, Znode)
    assert isinstance(store.children_many(["/a"])[0], Unreadable)


def test_a_change_of_an_acl_changes_its_version(store: MemoryStore) -> None:
    store.tree.set_acl("/", [AclEntry(ALL & ~DELETE, "world", "anyone")])

    (root,) = store.read_many(["/"])
    assert isinstance(root, Znode)
    assert root.acl_version == 1
    assert store.delete_guarded(_batches("/a")) == [GuardResult(GuardStatus.REFUSED, "/a")]


def test_permissions_of_an_identity_are_its_sessions(store: MemoryStore) -> None:
    tree = store.tree
    tree.set_acl("/a", [AclEntry(ALL, "digest", "reaper:x")])

    assert isinstance(store.read_many(["/a"])[0], Unreadable)
    assert isinstance(MemoryStore(tree, identities=frozenset({("digest", "reaper:x")})).read_many(["/a"])[0], Znode)


def test_times_come_from_the_clock() -> None:
    clock = ManualClock(5_000)
    store = MemoryStore(MemoryTree(clock))
    store.create("/a", b"")
    clock.advance(7)
    store.set_data("/a", b"x")

    assert store.read_many(["/a"]) == [Znode(data=b"x", version=1, ctime_ms=5_000, mtime_ms=5_007)]


def test_an_expired_session_loses_its_lock_and_calls_back(store: MemoryStore) -> None:
    lost = []

    with InstanceLock(store, "/reaper", "main", on_lost=lambda: lost.append(True)):
        store.expire_session()
        assert lost == [True]
        with InstanceLock(MemoryStore(store.tree), "/reaper", "main", on_lost=lambda: None):
            pass


def test_a_released_lock_is_not_lost(store: MemoryStore) -> None:
    lost = []
    with InstanceLock(store, "/reaper", "main", on_lost=lambda: lost.append(True)):
        pass

    store.expire_session()

    assert lost == []


def test_a_broker_returns_its_views_and_is_unreadable_while_unavailable() -> None:
    broker = MemoryBroker()
    view = BrokerView(presence=Presence.PRESENT, ledgers=(1,))
    broker.topics[OWNER] = view

    assert broker.views([OWNER, "persistent://t/ns/x"]) == [view, view]
    assert [each.presence for each in broker.views(["t/ns/persistent/y"])] == [Presence.GONE]
    broker.faults.away = True
    assert [(each.presence, each.is_unavailable) for each in broker.views([OWNER])] == [(Presence.UNREADABLE, True)]
    assert [each.presence for each in broker.schema_views(["t/ns/x"])] == [Presence.UNREADABLE]
