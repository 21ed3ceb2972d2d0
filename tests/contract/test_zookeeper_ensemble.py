"""Three real ZooKeepers: what one of them does not know yet, and one that dies."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from streaming.adapters.zookeeper.store import ZooKeeperSettings, ZooKeeperStore
from streaming.errors import UnavailableError
from streaming.ports import Znode
from tests.contract.zookeeper_server import ZooKeeperServer, ensemble_running

pytestmark = pytest.mark.slow  # three servers take their time to find each other

BEHIND = 1_000  # writes that a frozen server has to take in before it is up to date


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ZooKeeperServer]]:
    with ensemble_running(tmp_path_factory.mktemp("ensemble")) as servers:
        yield servers


def test_a_follower_that_was_frozen_answers_with_nothing_older_than_the_question(
    ensemble: list[ZooKeeperServer],
) -> None:
    """Without the sync ahead of each read, it answers at once with what it knew before."""
    follower = next(server for server in ensemble if server.mode == "follower")
    others = ",".join(server.hosts for server in ensemble if server is not follower)
    store, writer = ZooKeeperStore(ZooKeeperSettings(follower.hosts)), KazooClient(others)
    writer.start(30)
    writer.ensure_path("/owners/listed")
    with ThreadPoolExecutor(1) as pool:
        for turn in range(4):
            made = f"/owners/made-{turn}"
            assert store.read_many([made]) == [None]
            follower.freeze()
            try:
                for _ in range(BEHIND):
                    writer.set_async("/owners", b"")
                writer.create(made, b"")
                told = writer.set("/owners/listed", b"")
                looked = pool.submit(store.read_many, ["/owners/listed", made])
                time.sleep(0.3)
            finally:
                follower.thaw()
            listed, found = looked.result(60)
            assert isinstance(listed, Znode)
            assert listed.version >= told.version
            assert isinstance(found, Znode)
    writer.stop()
    writer.close()
    store.close()


def test_a_leader_that_dies_is_missed_no_longer_than_the_others_take_to_elect_one(
    ensemble: list[ZooKeeperServer],
) -> None:
    store = ZooKeeperStore(ZooKeeperSettings(",".join(server.hosts for server in ensemble), session_timeout_seconds=6))
    assert store.create("/survives", b"")
    leader = next(server for server in ensemble if server.mode == "leader")

    leader.stop()
    died = time.monotonic()
    while True:
        try:
            (found,) = store.read_many(["/survives"])
            break
        except UnavailableError:
            assert time.monotonic() - died < 30
    assert isinstance(found, Znode)
    store.close()
