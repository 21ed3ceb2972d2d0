"""An address of a metadata store names what we can't read, and no address of ZooKeeper is taken for such a store."""

import pytest

from udfs.formats.metadata_url import other_store


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("oxia://oxia1:6648/default", "Oxia"),
        ("metadata-store:oxia://oxia1:6648/bookkeeper", "Oxia"),
        ("OXIA://oxia1", "Oxia"),
        (" oxia://oxia1:6648", "Oxia"),
        ("etcd:http://etcd1:2379,http://etcd2:2379", "etcd"),
        ("etcd+hierarchical:http://etcd1:2379/ledgers", "etcd"),
        ("rocksdb:///pulsar/data/metadata", "RocksDB"),
        ("metadata-store:rocksdb:./data", "RocksDB"),
        ("memory:local", "a broker's memory"),
    ],
)
def test_another_store_is_named(url: str, store: str) -> None:
    assert other_store(url) == store


@pytest.mark.parametrize(
    "url",
    [
        "",
        "zk:zk1:2181,zk2:2181/pulsar",
        "zk1:2181,zk2:2181",
        "127.0.0.1:2181",
        "metadata-store:zk:zk1:2181/ledgers",
        "zk+hierarchical://zk1:2181/ledgers",
        "zk:oxia:2181",
        "oxia:2181",
        "etcd:2181,etcd2:2181/pulsar",
        "memory:2181/oxia",
    ],
)
def test_zookeeper_is_never_taken_for_another_store(url: str) -> None:
    assert other_store(url) == ""
