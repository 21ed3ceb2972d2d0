"""The ZooKeeper adapter when the connection, the server or the session fails."""

import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Create, Transaction
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl_credential

from streaming.adapters.zookeeper.reads import Sizes
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore, close_all, store_for
from streaming.coordination.lock import InstanceLock
from streaming.errors import ConfigError, UnavailableError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus, Unreadable, Znode
from tests.contract.cutting_proxy import CuttingProxy, cutting_proxy
from tests.contract.zookeeper_server import ZooKeeperServer, zookeeper_running
from udfs.formats.acl import ALL, AclEntry, acl_bytes

PATIENT = ZooKeeperClientSettings(hosts="", session_timeout_seconds=5.0)
IMPATIENT = ZooKeeperClientSettings(
    hosts="", session_timeout_seconds=1.0, operation_timeout_seconds=0.7, connect_timeout_seconds=1.0
)
UNKNOWN = GuardResult(GuardStatus.UNKNOWN)
Opening = Callable[..., ZooKeeperStore]


@pytest.fixture
def opened() -> Iterator[Opening]:
    stores: list[ZooKeeperStore] = []

    def open_store(
        hosts: str, settings: ZooKeeperClientSettings = PATIENT, *, sizes: Sizes | None = None
    ) -> ZooKeeperStore:
        stores.append(ZooKeeperStore(replace(settings, hosts=hosts), sizes=sizes))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def proxy(zookeeper_server: ZooKeeperServer) -> Iterator[CuttingProxy]:
    with cutting_proxy(zookeeper_server.port) as running:
        yield running


@pytest.fixture
def root(zookeeper_server: ZooKeeperServer, opened: Opening) -> str:
    path = f"/faults-{uuid4().hex}"
    opened(zookeeper_server.hosts).create(path, b"")
    return path


def _read_at_last(store: ZooKeeperStore, paths: list[str], seconds: float = 30.0) -> list[Znode | Unreadable | None]:
    """Read with an impatient store until it succeeds, because a busy machine may be slow."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return store.read_many(paths)
        except UnavailableError:
            if time.monotonic() > deadline:
                raise


def _create(store: ZooKeeperStore, root: str, count: int, data: bytes = b"") -> list[str]:
    paths = [f"{root}/{number:05d}" for number in range(count)]
    session = store._session
    at_once = 4 if len(data) > 10_000 else 50
    for start in range(0, count, at_once):
        creates = [Create(session.absolute(path), data, OPEN_ACL_UNSAFE, 0) for path in paths[start : start + at_once]]
        assert all(isinstance(created, str) for created in session.call(Transaction(creates)))
    return paths


def test_an_absent_server_is_unavailable_and_deletes_are_unknown(opened: Opening) -> None:
    store = ZooKeeperStore(replace(IMPATIENT, hosts="127.0.0.1:1", connect_timeout_seconds=0.2))

    with pytest.raises(UnavailableError, match=r"127.0.0.1:1 can't be reached \(.*Connection refused\). Check that"):
        store.read_many(["/"])
    with pytest.raises(UnavailableError):
        store.create("/x", b"")
    assert store.delete_guarded([GuardedDelete((), (("/x", 0),))] * 3) == [UNKNOWN] * 3
    store.close()


def test_tls_with_a_server_without_tls_is_named(zookeeper_server: ZooKeeperServer, opened: Opening) -> None:
    store = opened(zookeeper_server.hosts, replace(IMPATIENT, use_tls=True))

    with pytest.raises(UnavailableError, match=r"can't be reached \(127.0.0.1:\d+: .*\). .*TLS is on at both ends"):
        store.read_many(["/"])


def test_waits_for_a_frozen_server_end_with_an_unknown_outcome(
    own_zookeeper_server: ZooKeeperServer, opened: Opening
) -> None:
    paths = _create(opened(own_zookeeper_server.hosts), "", 100)
    store = opened(own_zookeeper_server.hosts, IMPATIENT)
    _read_at_last(store, paths)
    batches = [GuardedDelete((), ((path, 0),)) for path in paths]

    own_zookeeper_server.freeze()
    results = store.delete_guarded(batches)
    with pytest.raises(UnavailableError):
        store.read_many(paths)
    own_zookeeper_server.thaw()
    after = opened(own_zookeeper_server.hosts)

    assert results == [UNKNOWN] * 100
    # a window of deletes may have reached the server; the others were not sent
    assert all(after.read_many(paths[32:]))
    assert all(_read_at_last(store, paths[32:]))


def test_deletes_queued_for_a_frozen_server_are_dropped_and_never_happen(
    own_zookeeper_server: ZooKeeperServer, opened: Opening
) -> None:
    store = opened(own_zookeeper_server.hosts, replace(IMPATIENT, session_timeout_seconds=60.0))
    paths = _create(store, "", 32)
    # more than the sockets' buffers hold, so that the last deletes are still queued here when the wait ends
    long = "/" + "x" * 1_000
    store.create(long, b"")
    padding = ((long, -1),) * 500
    batches = [GuardedDelete(padding, ((path, 0),)) for path in paths]

    own_zookeeper_server.freeze()
    started = time.monotonic()
    results = store.delete_guarded(batches)
    took_seconds = time.monotonic() - started
    own_zookeeper_server.thaw()

    assert results == [UNKNOWN] * 32
    assert took_seconds < 30  # one short wait; kazoo would wait for the session's timeout, a minute
    store.close()
    after = opened(own_zookeeper_server.hosts)
    assert isinstance(after.read_many(paths[-1:])[0], Znode)
    assert isinstance(after.read_many(paths[-1:])[0], Znode)


def test_a_server_killed_during_deletes_splits_no_batch_and_a_second_run_completes_them(
    own_zookeeper_server: ZooKeeperServer, opened: Opening
) -> None:
    store = opened(own_zookeeper_server.hosts, IMPATIENT)
    paths = _create(store, "", 2_000)
    pairs = list(zip(paths[::2], paths[1::2], strict=True))
    batches = [GuardedDelete((), ((a, 0), (b, 0))) for a, b in pairs]

    killer = threading.Timer(0.02, own_zookeeper_server.stop)
    killer.start()
    first = store.delete_guarded(batches)
    killer.join()
    own_zookeeper_server.start()
    store = opened(own_zookeeper_server.hosts)
    left = store.read_many(paths)

    assert UNKNOWN in first
    for result, a, b in zip(first, left[::2], left[1::2], strict=True):
        assert (a is None) == (b is None)
        assert a is None or result == UNKNOWN
    second = store.delete_guarded(batches)
    assert {result.status for result in second} <= {GuardStatus.DELETED, GuardStatus.GONE}
    assert set(store.read_many(paths)) == {None}


def test_a_delete_with_a_lost_answer_is_unknown_although_it_happened(
    proxy: CuttingProxy, root: str, opened: Opening
) -> None:
    store = opened(proxy.hosts)
    (path,) = _create(store, root, 1)
    proxy.cut_answer = lambda _frame: True

    assert store.delete_guarded([GuardedDelete((), ((path, 0),))]) == [UNKNOWN]

    proxy.cut_answer = lambda _frame: False
    assert store.read_many([path]) == [None]


def test_a_first_connection_without_an_answer_is_replaced(proxy: CuttingProxy, opened: Opening) -> None:
    proxy.deaf = 1
    store = opened(proxy.hosts, replace(PATIENT, session_timeout_seconds=30.0, connect_timeout_seconds=3.0))

    assert isinstance(store.read_many(["/"])[0], Znode)


def test_reads_survive_broken_connections(proxy: CuttingProxy, root: str, opened: Opening) -> None:
    store = opened(proxy.hosts)
    paths = _create(store, root, 600, b"data")
    answers = iter([False] * 3 + [True] + [False] * 5 + [True])
    proxy.cut_answer = lambda _frame: next(answers, False)

    nodes = store.read_many(paths)

    assert proxy.cuts == 2
    assert all(isinstance(node, Znode) and node.data == b"data" for node in nodes)


def test_only_the_znode_that_breaks_the_connection_is_unreadable(
    proxy: CuttingProxy, root: str, opened: Opening
) -> None:
    store = opened(proxy.hosts)
    paths = _create(store, root, 40, b"small")
    store.set_data(paths[17], b"x" * 200_000)
    proxy.cut_answer = lambda frame: len(frame) > 150_000

    nodes = store.read_many(paths)

    assert isinstance(nodes[17], Unreadable)
    assert [number for number, node in enumerate(nodes) if not isinstance(node, Znode)] == [17]


def test_if_multi_reads_break_the_connection_znodes_are_read_singly(
    proxy: CuttingProxy, root: str, opened: Opening
) -> None:
    store = opened(proxy.hosts)
    paths = _create(store, root, 6, b"data")
    store.read_many(paths)
    proxy.cut_request = lambda frame: int.from_bytes(frame[4:8], "big") == 22

    nodes = store.read_many(paths)

    assert proxy.cuts > len(paths)
    assert all(isinstance(node, Znode) for node in nodes)


def test_each_reconnect_starts_with_a_sync(proxy: CuttingProxy, root: str, opened: Opening) -> None:
    """A new connection may lead to a server that lags."""
    store = opened(proxy.hosts)
    paths = _create(store, root, 400, b"data")
    names = {0: "connect", 9: "sync", 22: "read"}  # a connect has no operation number; its frame contains 0 there
    sent: list[str] = []
    answers = 0

    def record(frame: bytes) -> bool:
        operation = 0 if frame[:4] == bytes(4) else int.from_bytes(frame[4:8], "big")
        sent.extend([names[operation]] if operation in names else [])
        return False

    def cut_some(frame: bytes) -> bool:
        nonlocal answers
        answers += len(frame) > 200  # of reads
        return len(frame) > 200 and answers in (2, 4, 5)

    store.read_many(paths[:1])
    proxy.cut_request, proxy.cut_answer = record, cut_some
    nodes = store.read_many(paths)

    assert all(isinstance(node, Znode) for node in nodes)
    assert sent.count("connect") == proxy.cuts == 3
    first_reads = [sent[at : at + 2] for at, what in enumerate(sent) if what == "connect"]
    assert first_reads == [["connect", "sync"]] * 3
    assert sent[0] == "sync"


def test_a_connection_that_always_breaks_is_unavailable(proxy: CuttingProxy, root: str, opened: Opening) -> None:
    store = opened(proxy.hosts)
    store.read_many(["/"])
    proxy.cut_answer = lambda frame: len(frame) > 60  # longer than the answer to a connect, ping or sync

    with pytest.raises(UnavailableError, match="broke 65 times during one read"):
        store.read_many([root] * 500)


def test_requests_beyond_the_servers_buffer_are_halved_until_they_fit(tmp_path: Path, opened: Opening) -> None:
    with zookeeper_running(tmp_path, "-Djute.maxbuffer=3000") as server:
        store = opened(server.hosts)
        paths = _create(store, "", 300)
        too_long = "/" + "x" * 4_000

        nodes = store.read_many([*paths, too_long, *paths])

        assert isinstance(nodes[300], Unreadable)
        assert all(isinstance(node, Znode) for node in [*nodes[:300], *nodes[301:]])


def test_large_znodes_are_read_in_small_requests(proxy: CuttingProxy, root: str, opened: Opening) -> None:
    store = opened(proxy.hosts)
    paths = _create(store, root, 60, b"x" * 100_000)
    largest = 0

    def watch(frame: bytes) -> bool:
        nonlocal largest
        largest = max(largest, len(frame))
        return False

    store.read_many(paths[:20])
    proxy.cut_answer = watch
    nodes = store.read_many(paths)

    assert all(isinstance(node, Znode) and len(node.data) == 100_000 for node in nodes)
    assert largest < 1_100_000


def test_a_server_without_multi_read_gets_single_reads(
    zookeeper_server: ZooKeeperServer, root: str, opened: Opening
) -> None:
    store = opened(zookeeper_server.hosts, sizes=Sizes(probe_with=99))  # an operation that no server has
    paths = _create(store, root, 250, b"data")
    client = store._session._client

    nodes = store.read_many([*paths, f"{root}/nothing"])

    assert all(isinstance(node, Znode) for node in nodes[:-1])
    assert nodes[-1] is None
    assert store.children_many([root, f"{root}/nothing"])[1] is None
    assert store._session._client is client


def test_an_expired_session_is_reported_and_replaced(
    zookeeper_server: ZooKeeperServer, root: str, opened: Opening
) -> None:
    store = opened(zookeeper_server.hosts)
    ended = threading.Event()
    store.create(f"{root}/ephemeral", b"", ephemeral=True)
    store.when_session_ends(ended.set)

    _expire(store, zookeeper_server)

    assert ended.wait(10)
    assert store.read_many([f"{root}/ephemeral"]) == [None]
    assert store.create(f"{root}/ephemeral", b"", ephemeral=True)


def test_an_instance_learns_that_its_lock_is_lost(
    zookeeper_server: ZooKeeperServer, root: str, opened: Opening
) -> None:
    store = opened(zookeeper_server.hosts)
    lost = threading.Event()

    with InstanceLock(store, root, "main", on_lost=lost.set):
        _expire(store, zookeeper_server)
        assert lost.wait(10)


def test_a_lock_is_lost_if_the_server_is_down_longer_than_the_session_timeout(
    own_zookeeper_server: ZooKeeperServer, opened: Opening
) -> None:
    lost = threading.Event()

    with InstanceLock(opened(own_zookeeper_server.hosts, IMPATIENT), "/reaper", "main", on_lost=lost.set):
        own_zookeeper_server.stop()
        assert lost.wait(10)


def _expire(store: ZooKeeperStore, server: ZooKeeperServer) -> None:
    """Close the session from another connection, as ZooKeeper's own tests do."""
    client = store._session._client
    assert client is not None
    thief = KazooClient(server.hosts, client_id=client.client_id, timeout=1.5)
    thief.start()
    thief.stop()
    thief.close()


@pytest.mark.timeout(20)
def test_a_dead_client_is_replaced_at_once(zookeeper_server: ZooKeeperServer, root: str, opened: Opening) -> None:
    store = opened(zookeeper_server.hosts, replace(PATIENT, connect_timeout_seconds=90.0))
    store.read_many([root])
    client = store._session._client
    assert client is not None
    client.stop()

    assert isinstance(store.read_many([root])[0], Znode)


def test_a_forked_child_opens_a_session_and_leaves_the_parents_alone(
    zookeeper_server: ZooKeeperServer, root: str
) -> None:
    settings = replace(PATIENT, hosts=zookeeper_server.hosts)
    store = store_for(settings)
    assert store.create(f"{root}/ephemeral", b"", ephemeral=True)

    child = os.fork()
    if not child:
        worked = False
        try:
            worked = all(isinstance(used.read_many([root])[0], Znode) for used in (store, store_for(settings)))
            worked = worked and store_for(settings) is not store
        finally:
            os._exit(0 if worked else 1)
    _pid, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert isinstance(store.read_many([f"{root}/ephemeral"])[0], Znode)
    assert store_for(settings) is store
    close_all()
    assert store_for(settings) is not store
    close_all()


def test_settings_can_be_sent_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(PATIENT)) == PATIENT


def test_paths_are_relative_to_the_chroot(zookeeper_server: ZooKeeperServer, root: str, opened: Opening) -> None:
    parent, below = opened(zookeeper_server.hosts), opened(zookeeper_server.hosts + root)

    assert below.create("/inner/x", b"", parents=True)
    (node,) = parent.read_many([f"{root}/inner/x"])

    assert isinstance(node, Znode)
    assert below.children_many(["/"]) == [["inner"]]
    assert below.acl_of("/inner/x") == parent.acl_of(f"{root}/inner/x")
    failing = GuardedDelete((("/inner/x", 9),), (("/inner/x", 0),))
    working = GuardedDelete((("/inner/x", 0),), (("/inner/x", 0),))
    assert below.delete_guarded([failing, working]) == [
        GuardResult(GuardStatus.CHECK_FAILED, "/inner/x"),
        GuardResult(GuardStatus.DELETED),
    ]


def test_the_digest_reads_closed_znodes_and_is_never_logged(
    zookeeper_server: ZooKeeperServer, root: str, opened: Opening, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    digest_file = tmp_path / "digest"
    digest_file.write_text("reaper:s3cret\n")
    entry = AclEntry(ALL, "digest", make_digest_acl_credential("reaper", "s3cret"))
    opened(zookeeper_server.hosts).create(f"{root}/closed", b"data", acl=acl_bytes([entry]))

    store = ZooKeeperStore(replace(PATIENT, hosts=zookeeper_server.hosts, digest_file=str(digest_file)))
    (ours,) = store.read_many([f"{root}/closed"])
    (others,) = opened(zookeeper_server.hosts).read_many([f"{root}/closed"])
    store.close()

    assert isinstance(ours, Znode)
    assert isinstance(others, Unreadable)
    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(store._session._settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        pytest.param(ZooKeeperClientSettings(hosts=":::"), "zookeeper.hosts", id="invalid hosts"),
        pytest.param(
            ZooKeeperClientSettings(hosts="z", digest_file="/no/such"),
            "zookeeper.digest_file: there is no file",
            id="no digest file",
        ),
        pytest.param(
            ZooKeeperClientSettings(hosts="z", sasl_mechanism="DIGEST-MD5", digest_file="/no/such"),
            "zookeeper.digest_file: there is no file",
            id="no file for SASL",
        ),
        pytest.param(
            ZooKeeperClientSettings(hosts="z", use_tls=True, tls_ca_file="/no/such"),
            "zookeeper.tls_ca_file",
            id="no CA file",
        ),
        pytest.param(
            ZooKeeperClientSettings(hosts="z", use_tls=True, tls_ca_file=__file__),
            "no PEM certificate",
            id="a CA file without CA",
        ),
    ],
)
def test_invalid_settings_are_named(settings: ZooKeeperClientSettings, text: str) -> None:
    store = ZooKeeperStore(settings)

    with pytest.raises(ConfigError, match=text):
        store.read_many(["/"])
