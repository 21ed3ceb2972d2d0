"""Pulsar's addresses of metadata stores: `zk:host:port/chroot`, `oxia://host:port/namespace`, `metadata-store:…`."""

import re

_OTHERS = {"oxia": "Oxia", "etcd": "etcd", "rocksdb": "RocksDB", "memory": "a broker's memory"}
# `etcd:2181` is a host and port of ZooKeeper: Pulsar accepts addresses of ZooKeeper without `zk:`
_OTHER = re.compile(rf"\s*(?:metadata-store:)?({'|'.join(_OTHERS)})(?:\+\w+)?:(?!\d+(?:[,/]|\s*$))", re.IGNORECASE)


def other_store(url: str) -> str:
    """Return the name of the metadata store at this address if it is not ZooKeeper; "" if it is."""
    found = _OTHER.match(url)
    return _OTHERS[found[1].lower()] if found else ""
