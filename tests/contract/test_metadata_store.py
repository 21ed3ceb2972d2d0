"""The contract of MetadataStore, for the fake and for ZooKeeper."""

from uuid import uuid4

import pytest

from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, MetadataStore, Unreadable, Znode
from tests.contract.conftest import Stores
from udfs.formats.acl import ALL, CREATE, DELETE, READ, AclEntry, acl_bytes, acl_entries


def _world(perms: int) -> bytes:
    return acl_bytes([AclEntry(perms, "world", "anyone")])


@pytest.fixture
def root(store: MetadataStore) -> str:
    path = f"/contract-{uuid4().hex}"
    assert store.create(path, b"")
    return path


@pytest.fixture
def owner(store: MetadataStore, root: str) -> str:
    assert store.create(f"{root}/owner", b"list")
    return f"{root}/owner"


@pytest.fixture
def ledgers(store: MetadataStore, root: str) -> list[str]:
    paths = [f"{root}/00/0000/L{number:04d}" for number in range(5)]
    for path in paths:
        assert store.create(path, b"metadata", parents=True)
    return paths


def _present(store: MetadataStore, paths: list[str]) -> list[bool]:
    return [isinstance(node, Znode) for node in store.read_many(paths)]


def test_reads_return_in_order_and_a_missing_znode_is_none(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/b", b"second")
    store.create(f"{root}/a", b"")

    first, missing, second = store.read_many([f"{root}/a", f"{root}/nothing/below", f"{root}/b"])

    assert missing is None
    assert isinstance(first, Znode)
    assert isinstance(second, Znode)
    assert (first.data, second.data) == (b"", b"second")
    assert (first.version, first.acl_version) == (0, 0)


def test_reading_nothing_is_allowed(store: MetadataStore) -> None:
    assert store.read_many([]) == []
    assert store.children_many([]) == []
    assert store.delete_guarded([]) == []


def test_writes_change_the_version_and_mtime_but_not_ctime(store: MetadataStore, root: str) -> None:
    (before,) = store.read_many([root])

    assert store.set_data(root, b"one") == 1
    assert store.set_data(root, b"two", version=1) == 2

    (after,) = store.read_many([root])
    assert isinstance(before, Znode)
    assert isinstance(after, Znode)
    assert (after.data, after.version) == (b"two", 2)
    assert after.ctime_ms == before.ctime_ms
    assert after.mtime_ms >= before.mtime_ms


def test_five_thousand_paths_are_read_in_one_call(store: MetadataStore, root: str) -> None:
    existing = [f"{root}/{number}" for number in range(50)]
    for number, path in enumerate(existing):
        store.create(path, str(number).encode())
    paths = [f"{root}/{number % 100}" for number in range(5_000)]

    answers = store.read_many(paths)

    assert [node.data if isinstance(node, Znode) else node for node in answers] == [
        str(number % 100).encode() if number % 100 < 50 else None for number in range(5_000)
    ]


def test_children_are_listed_by_name_and_a_missing_parent_is_none(store: MetadataStore, root: str) -> None:
    for name in ("b", "a", "ü"):
        store.create(f"{root}/{name}", b"")

    some, none, missing = store.children_many([root, f"{root}/a", f"{root}/nothing"])

    assert isinstance(some, list)
    assert sorted(some) == ["a", "b", "ü"]
    assert none == []
    assert missing is None


def test_only_the_znode_without_read_permission_is_unreadable(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/closed", b"", acl=_world(ALL & ~READ))

    closed, open_ = store.read_many([f"{root}/closed", root])
    closed_children, open_children = store.children_many([f"{root}/closed", root])

    assert isinstance(closed, Unreadable)
    assert isinstance(closed_children, Unreadable)
    assert isinstance(open_, Znode)
    assert open_children == ["closed"]


def test_a_guarded_delete_removes_all_if_every_check_holds(
    store: MetadataStore, owner: str, ledgers: list[str]
) -> None:
    result = store.delete_guarded([GuardedDelete(((owner, 0),), tuple((path, 0) for path in ledgers[:3]))])

    assert result == [GuardResult(GuardStatus.DELETED)]
    assert _present(store, ledgers) == [False, False, False, True, True]
    assert _present(store, [owner]) == [True]


@pytest.mark.parametrize(
    ("checks", "deletes", "expected"),
    [
        pytest.param(
            [("owner", 1)], [("L0", 0)], (GuardStatus.CHECK_FAILED, "owner"), id="the owner has another version"
        ),
        pytest.param([("absent", 0)], [("L0", 0)], (GuardStatus.CHECK_FAILED, "absent"), id="the owner is gone"),
        pytest.param(
            [("owner", 0), ("L1", 7)],
            [("L0", 0)],
            (GuardStatus.CHECK_FAILED, "L1"),
            id="the second check does not hold",
        ),
        pytest.param([("owner", 0)], [("L0", 0), ("absent", 0)], (GuardStatus.GONE, "absent"), id="a znode is gone"),
        pytest.param([("owner", 0)], [("L0", 0), ("L1", 3)], (GuardStatus.CHANGED, "L1"), id="a znode has changed"),
        pytest.param([("owner", 0)], [("L0", 0), ("", 0)], (GuardStatus.NOT_EMPTY, ""), id="a znode has children"),
        pytest.param([("owner", 0)], [("L0", 0), ("L0", 0)], (GuardStatus.GONE, "L0"), id="a znode is named twice"),
        pytest.param([], [("absent", 0), ("L0", 9)], (GuardStatus.GONE, "absent"), id="the first failure is named"),
        pytest.param([("owner", 1)], [("absent", 0)], (GuardStatus.CHECK_FAILED, "owner"), id="checks come first"),
    ],
)
def test_a_guarded_delete_changes_nothing_unless_every_check_holds(
    store: MetadataStore,
    root: str,
    checks: list[tuple[str, int]],
    deletes: list[tuple[str, int]],
    expected: tuple[GuardStatus, str],
) -> None:
    def full(name: str) -> str:
        return f"{root}/{name}" if name else root

    for name in ("owner", "L0", "L1"):
        store.create(full(name), b"")
    batch = GuardedDelete(
        tuple((full(name), version) for name, version in checks),
        tuple((full(name), version) for name, version in deletes),
    )

    status, at = expected
    assert store.delete_guarded([batch]) == [GuardResult(status, full(at))]
    assert _present(store, [full("owner"), full("L0"), full("L1")]) == [True, True, True]


def test_a_batch_that_fails_does_not_stop_the_next(store: MetadataStore, owner: str, ledgers: list[str]) -> None:
    stale = GuardedDelete(((owner, 5),), ((ledgers[0], 0),))
    good = GuardedDelete(((owner, 0),), ((ledgers[1], 0),))

    results = store.delete_guarded([stale, good, stale])

    assert [result.status for result in results] == [
        GuardStatus.CHECK_FAILED,
        GuardStatus.DELETED,
        GuardStatus.CHECK_FAILED,
    ]
    assert _present(store, ledgers) == [True, False, True, True, True]


def test_a_batch_deletes_parents_after_their_children(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/a/b", b"", parents=True)

    wrong = GuardedDelete((), ((f"{root}/a", 0), (f"{root}/a/b", 0)))
    right = GuardedDelete((), ((f"{root}/a/b", 0), (f"{root}/a", 0)))

    assert store.delete_guarded([wrong, right]) == [
        GuardResult(GuardStatus.NOT_EMPTY, f"{root}/a"),
        GuardResult(GuardStatus.DELETED),
    ]


def test_a_batch_of_checks_reports_whether_they_hold(store: MetadataStore, owner: str) -> None:
    holding = GuardedDelete(((owner, 0),), ())
    failing = GuardedDelete(((owner, 1),), ())

    assert store.delete_guarded([holding, failing, GuardedDelete((), ())]) == [
        GuardResult(GuardStatus.DELETED),
        GuardResult(GuardStatus.CHECK_FAILED, owner),
        GuardResult(GuardStatus.DELETED),
    ]


@pytest.mark.parametrize("name", ["present", "absent"])
def test_the_parents_acl_decides_who_may_delete_even_absent_znodes(store: MetadataStore, root: str, name: str) -> None:
    store.create(f"{root}/parent", b"")
    store.create(f"{root}/parent/there", b"")
    store.create(f"{root}/locked", b"", acl=_world(ALL & ~DELETE))
    store.create(f"{root}/locked/there", b"")
    free, denied = f"{root}/parent/there", f"{root}/locked/{name}"

    result = store.delete_guarded([GuardedDelete((), ((free, 0), (denied, 0)))])

    assert result == [GuardResult(GuardStatus.REFUSED, denied)]
    assert _present(store, [free, f"{root}/locked/there"]) == [True, True]


def test_a_check_without_read_permission_is_refused(store: MetadataStore, root: str, ledgers: list[str]) -> None:
    closed = f"{root}/closed"
    store.create(closed, b"", acl=_world(ALL & ~READ))

    assert store.delete_guarded([GuardedDelete(((closed, 0),), ((ledgers[0], 0),))]) == [
        GuardResult(GuardStatus.REFUSED, closed)
    ]


def test_a_session_whose_owner_changed_deletes_nothing(
    store: MetadataStore, new_store: Stores, owner: str, ledgers: list[str]
) -> None:
    broker = new_store()
    (seen,) = store.read_many([owner])
    assert isinstance(seen, Znode)

    broker.set_data(owner, b"list with another ledger")
    result = store.delete_guarded([GuardedDelete(((owner, seen.version),), ((ledgers[0], 0),))])

    assert result == [GuardResult(GuardStatus.CHECK_FAILED, owner)]
    assert _present(broker, ledgers[:1]) == [True]


def test_two_sessions_that_delete_the_same_ledger_succeed_once(
    store: MetadataStore, new_store: Stores, owner: str, ledgers: list[str]
) -> None:
    batch = GuardedDelete(((owner, 0),), ((ledgers[0], 0),))

    results = [session.delete_guarded([batch])[0] for session in (store, new_store())]

    assert results == [GuardResult(GuardStatus.DELETED), GuardResult(GuardStatus.GONE, ledgers[0])]


def test_deletes_of_an_earlier_epoch_do_nothing(
    store: MetadataStore, new_store: Stores, root: str, owner: str, ledgers: list[str]
) -> None:
    epoch = f"{root}/epoch"
    store.create(epoch, b"")
    zombie_batch = GuardedDelete(((owner, 0), (epoch, 0)), ((ledgers[0], 0),))

    new_store().set_data(epoch, b"another instance")

    assert store.delete_guarded([zombie_batch]) == [GuardResult(GuardStatus.CHECK_FAILED, epoch)]


def test_create_reports_whether_it_created_the_znode_and_never_overwrites(store: MetadataStore, root: str) -> None:
    assert store.create(f"{root}/x", b"first")
    assert not store.create(f"{root}/x", b"second")

    (node,) = store.read_many([f"{root}/x"])
    assert isinstance(node, Znode)
    assert node.data == b"first"


def test_create_below_a_missing_parent_needs_the_parents_option(store: MetadataStore, root: str) -> None:
    with pytest.raises(RefusedError):
        store.create(f"{root}/a/b/c", b"")

    assert store.create(f"{root}/a/b/c", b"leaf", parents=True)
    assert not store.create(f"{root}/a/b/c", b"leaf", parents=True)
    assert store.create(f"{root}/a/b/d", b"leaf", parents=True)


def test_create_without_permission_is_refused(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/locked", b"", acl=_world(ALL & ~CREATE))

    with pytest.raises(RefusedError):
        store.create(f"{root}/locked/x", b"")


def test_an_acl_that_was_read_can_be_used_to_create(store: MetadataStore, root: str) -> None:
    acl_to_copy = acl_bytes(
        [AclEntry(READ | DELETE, "world", "anyone"), AclEntry(ALL, "digest", "u:0123456789abcdef=")]
    )
    store.create(f"{root}/x", b"", acl=acl_to_copy)

    acl = store.acl_of(f"{root}/x")
    assert acl is not None
    store.create(f"{root}/y", b"", acl=acl)

    assert store.acl_of(f"{root}/y") == acl
    # a server may hide the digest from clients without permission to change the ACL
    assert [(entry.perms, entry.scheme) for entry in acl_entries(acl)] == [(READ | DELETE, "world"), (ALL, "digest")]
    assert store.acl_of(f"{root}/nothing") is None


def test_a_write_needs_the_version_and_the_znode(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/x", b"")

    assert store.set_data(f"{root}/x", b"1", version=1) is None
    assert store.set_data(f"{root}/x", b"1", version=0) == 1
    assert store.set_data(f"{root}/nothing", b"1") is None


def test_a_write_without_permission_is_refused(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/x", b"", acl=_world(READ))

    with pytest.raises(RefusedError):
        store.set_data(f"{root}/x", b"1")


def test_an_own_znode_without_children_is_deleted_once(store: MetadataStore, root: str) -> None:
    store.create(f"{root}/x", b"")

    with pytest.raises(RefusedError):
        store.delete(root)
    assert store.delete(f"{root}/x")
    assert not store.delete(f"{root}/x")


def test_a_ledger_is_never_deleted_without_a_guard(store: MetadataStore, ledgers: list[str]) -> None:
    with pytest.raises(SafetyError):
        store.delete(ledgers[0])
    assert _present(store, ledgers[:1]) == [True]


def test_an_ephemeral_znode_ends_with_its_session_and_has_no_children(
    store: MetadataStore, new_store: Stores, root: str
) -> None:
    other = new_store()
    assert other.create(f"{root}/lock", b"mine", ephemeral=True)

    assert not store.create(f"{root}/lock", b"theirs", ephemeral=True)
    with pytest.raises(RefusedError):
        store.create(f"{root}/lock/child", b"")
    other.close()

    assert store.create(f"{root}/lock", b"theirs", ephemeral=True)


def test_a_closed_store_is_unavailable(store: MetadataStore, root: str) -> None:
    store.close()
    store.close()

    with pytest.raises(UnavailableError):
        store.read_many([root])
    with pytest.raises(UnavailableError):
        store.create(f"{root}/x", b"")
    assert store.delete_guarded([GuardedDelete((), ((root, 0),))]) == [GuardResult(GuardStatus.UNKNOWN)]
