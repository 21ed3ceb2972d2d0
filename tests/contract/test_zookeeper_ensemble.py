"""An ensemble of three ZooKeeper servers, with a server that lags and a server that dies."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.errors import UnavailableError
from streaming.ports import Znode
from tests.contract.zookeeper_server import ZooKeeperServer, ensemble_running

pytestmark = pytest.mark.slow  # three servers take long to elect a leader

MISSED_WRITES = 1_000  # by a frozen server


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ZooKeeperServer]]:
    with ensemble_running(tmp_path_factory.mktemp("ensemble")) as servers:
        yield servers


def test_a_follower_that_was_frozen_answers_with_nothing_older_than_the_read(
    ensemble: list[ZooKeeperServer],
) -> None:
    """Without a sync before each read, the follower would answer at once with old data."""
    follower = next(server for server in ensemble if server.mode == "follower")
    others = ",".join(server.hosts for server in ensemble if server is not follower)
    store, writer = ZooKeeperStore(ZooKeeperClientSettings(hosts=follower.hosts)), KazooClient(others)
    writer.start(30)
    writer.ensure_path("/owners/listed")
    with ThreadPoolExecutor(1) as pool:
        for attempt in range(4):
            created = f"/owners/created-{attempt}"
            assert store.read_many([created]) == [None]
            follower.freeze()
            try:
                for _ in range(MISSED_WRITES):
                    writer.set_async("/owners", b"")
                writer.create(created, b"")
                written = writer.set("/owners/listed", b"")
                reading = pool.submit(store.read_many, ["/owners/listed", created])
                time.sleep(0.3)
            finally:
                follower.thaw()
            listed, node = reading.result(60)
            assert isinstance(listed, Znode)
            assert listed.version >= written.version
            assert isinstance(node, Znode)
    writer.stop()
    writer.close()
    store.close()


def test_after_the_leaders_death_reads_work_once_another_leader_is_elected(
    ensemble: list[ZooKeeperServer],
) -> None:
    store = ZooKeeperStore(
        ZooKeeperClientSettings(hosts=",".join(server.hosts for server in ensemble), session_timeout_seconds=6)
    )
    assert store.create("/survives", b"")
    leader = next(server for server in ensemble if server.mode == "leader")

    leader.stop()
    died = time.monotonic()
    while True:
        try:
            (node,) = store.read_many(["/survives"])
            break
        except UnavailableError:
            assert time.monotonic() - died < 30
    assert isinstance(node, Znode)
    store.close()
