"""A real ZooKeeper for the contract suites, shared by all their tests; it starts in a second."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.adapters.zookeeper.store import ZooKeeperClientSettings, ZooKeeperStore
from streaming.clock import SystemClock
from streaming.ports import MetadataStore
from tests.contract.zookeeper_server import ZooKeeperServer, zookeeper_running

Stores = Callable[[], MetadataStore]


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_running(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_zookeeper_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that the test may stop, freeze and start."""
    with zookeeper_running(tmp_path) as server:
        yield server


@pytest.fixture(params=["memory", "zookeeper", pytest.param("cluster", marks=pytest.mark.cluster)])
def new_store(request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Return a function that opens sessions on the same store."""
    opened: list[MetadataStore] = []
    if request.param == "memory":
        tree = MemoryTree(SystemClock())

        def make() -> MetadataStore:
            return MemoryStore(tree)

    else:
        if request.param == "cluster":
            hosts = request.getfixturevalue("cluster").addresses.zookeeper
        else:
            hosts = request.getfixturevalue("zookeeper_server").hosts

        def make() -> MetadataStore:
            return ZooKeeperStore(ZooKeeperClientSettings(hosts=hosts))

    def opening() -> MetadataStore:
        opened.append(make())
        return opened[-1]

    yield opening
    for store in opened:
        store.close()


@pytest.fixture
def store(new_store: Stores) -> MetadataStore:
    return new_store()
