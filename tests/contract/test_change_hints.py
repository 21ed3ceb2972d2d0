"""Watches report created, changed and deleted znodes below their roots, and gaps."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from streaming.adapters.memory.changes import MemoryChanges
from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.zookeeper.changes import ZooKeeperChanges
from streaming.adapters.zookeeper.store import ZooKeeperStore
from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings
from streaming.clock import SystemClock
from streaming.ports import ChangedPaths, ChangeHints, MetadataStore
from streaming.sandbox.topics import wait_for
from tests.contract.cutting_proxy import cutting_proxy
from tests.contract.zookeeper_server import ZooKeeperServer

QUICK = ZooKeeperClientSettings(
    hosts="", session_timeout_seconds=2.0, operation_timeout_seconds=2.0, connect_timeout_seconds=4.0
)
Scene = tuple[MetadataStore, Callable[[str], ChangeHints], str]


@pytest.fixture(params=["memory", "zookeeper", "chroot"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A store, a function that opens hints below a root, and a root of the test's own."""
    root = f"/hints-{uuid4().hex}"
    opened: list[ChangeHints] = []
    if request.param == "memory":
        tree = MemoryTree(SystemClock())
        store: MetadataStore = MemoryStore(tree)

        def open_hints(path: str) -> ChangeHints:
            opened.append(MemoryChanges(tree, [path]))
            return opened[-1]

    else:
        hosts = request.getfixturevalue("zookeeper_server").hosts
        if request.param == "chroot":
            base = ZooKeeperStore(ZooKeeperClientSettings(hosts=hosts))
            base.create("/below", b"")
            base.close()
            hosts += "/below"
        store = ZooKeeperStore(ZooKeeperClientSettings(hosts=hosts))

        def open_hints(path: str) -> ChangeHints:
            opened.append(ZooKeeperChanges(ZooKeeperClientSettings(hosts=hosts), [path]))
            return opened[-1]

    yield store, open_hints, root
    for hints in opened:
        hints.close()
    store.close()


def reported(hints: ChangeHints, *paths: str) -> set[str]:
    """Take until all of these paths are reported."""
    seen: set[str] = set()

    def are_reported() -> bool:
        seen.update(hints.take().paths)
        return seen.issuperset(paths)

    wait_for(are_reported, f"changes of {paths}", seconds=10)
    return seen


def test_created_changed_and_deleted_znodes_are_reported(scene: Scene) -> None:
    store, open_hints, root = scene
    hints = open_hints(root)  # the root does not exist yet
    first = hints.take()
    assert (first.has_gap, first.is_watching) == (True, True), "nothing is known of the time before the first call"
    assert hints.take() == ChangedPaths(is_watching=True)

    store.create(f"{root}/a/b", b"", parents=True)
    assert reported(hints, root, f"{root}/a", f"{root}/a/b") == {root, f"{root}/a", f"{root}/a/b"}
    for _again in range(3):  # the watch remains
        store.set_data(f"{root}/a/b", b"new")
        assert reported(hints, f"{root}/a/b") == {f"{root}/a/b"}
    store.create(f"{root}-beside", b"")
    store.delete(f"{root}/a/b")
    assert reported(hints, f"{root}/a/b") == {f"{root}/a/b"}
    assert hints.take() == ChangedPaths(is_watching=True)


def test_after_a_lost_connection_a_gap_and_then_changes_are_reported(
    zookeeper_server: ZooKeeperServer,
) -> None:
    root = f"/hints-{uuid4().hex}"
    store = ZooKeeperStore(ZooKeeperClientSettings(hosts=zookeeper_server.hosts))
    with cutting_proxy(zookeeper_server.port) as proxy:
        hints = ZooKeeperChanges(replace(QUICK, hosts=proxy.hosts), [root])
        hints.take()
        proxy.cut_answer = lambda _frame: proxy.cuts == 0
        store.create(root, b"")  # the event of this is lost with the connection
        wait_for(lambda: hints.take().has_gap, "the watches to be set again", seconds=20)
        store.set_data(root, b"new")
        reported(hints, root)
        hints.close()
    store.close()


def test_after_an_expired_session_a_gap_and_then_changes_are_reported(
    zookeeper_server: ZooKeeperServer,
) -> None:
    root = f"/hints-{uuid4().hex}"
    store = ZooKeeperStore(ZooKeeperClientSettings(hosts=zookeeper_server.hosts))
    hints = ZooKeeperChanges(replace(QUICK, hosts=zookeeper_server.hosts), [root])
    hints.take()
    client = hints._session.client()
    _end_session(zookeeper_server.hosts, *client.client_id)
    store.create(root, b"")
    wait_for(lambda: hints.take().has_gap, "the watches to be set again", seconds=20)
    store.set_data(root, b"new")
    reported(hints, root)
    hints.close()
    store.close()


def test_after_a_restart_of_the_server_a_gap_is_reported(
    own_zookeeper_server: ZooKeeperServer,
) -> None:
    root = f"/hints-{uuid4().hex}"
    settings = replace(QUICK, hosts=own_zookeeper_server.hosts)
    store, hints = ZooKeeperStore(settings), ZooKeeperChanges(settings, [root])
    store.create(root, b"")
    hints.take()
    own_zookeeper_server.stop()
    wait_for(lambda: not hints.take().is_watching, "the client to notice that its server is gone", seconds=10)
    own_zookeeper_server.start()
    wait_for(lambda: hints.take().has_gap, "the watches to be set again", seconds=20)
    store.set_data(root, b"new")
    assert reported(hints, root) == {root}
    hints.close()
    store.close()


def test_without_an_answer_no_changes_are_reported() -> None:
    hints = ZooKeeperChanges(replace(QUICK, hosts="127.0.0.1:1", connect_timeout_seconds=0.2), ["/"])
    assert hints.take() == ChangedPaths()
    hints.close()


def test_a_server_without_such_watches_gets_a_single_request(zookeeper_server: ZooKeeperServer) -> None:
    hints = ZooKeeperChanges(ZooKeeperClientSettings(hosts=zookeeper_server.hosts), ["/"], watch_with=99)
    assert [hints.take(), hints.take()] == [ChangedPaths(), ChangedPaths()]
    assert not hints._is_supported
    hints.close()


def test_too_many_changes_are_a_gap(zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.adapters.zookeeper.changes._MOST_PATHS", 3)
    hints = ZooKeeperChanges(ZooKeeperClientSettings(hosts=zookeeper_server.hosts), ["/"])
    hints.take()
    for number in range(4):
        hints._on_event(f"/{number}")
    assert hints.take() == ChangedPaths(frozenset({"/0", "/1", "/2"}), has_gap=True, is_watching=True)
    assert not hints.take().has_gap
    hints.close()


def _end_session(hosts: str, session_id: int, password: bytes) -> None:
    """Take over another client's session and close it, so that it is expired for its owner."""
    thief = KazooClient(hosts=hosts, client_id=(session_id, password))
    thief.start(10)
    thief.stop()
    thief.close()
