"""Records what each version of Pulsar writes, so that unit tests can decode it without a broker.

`python -m tests.version_bytes 5.0.0-M1` starts a cluster of the version, and replaces its file in tests/data/versions.
Each value is in base64. A list and a cursor have properties that are longer than the 16 KiB from which 5.0 compresses.
"""

import base64
import json
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.sandbox.home import LEDGERS_ROOT
from streaming.sandbox.offloaded_ledgers import attempts
from streaming.sandbox.parts import part_clients
from udfs.paths import cursor_path, managed_ledger_name, managed_ledger_path, schema_id_of, schema_path

FOLDER = Path(__file__).parent / "data" / "versions"
LISTED, COMPACTED, DELAYED, LONG, OFFLOADED = (
    f"persistent://public/default/{name}" for name in ("listed", "compacted", "delayed", "long", "offloaded")
)
CURSORS = {LISTED: ("reader", "holes"), COMPACTED: ("reader", "__compaction"), DELAYED: ("later",), LONG: ("reader",)}
NOTE = {"note": "0123456789" * 2000}
_LARGEST = 2048  # bytes: longer values only show that a version does not compress


def record(cluster: Cluster) -> dict[str, Any]:
    """Create topics with each kind of owner; return what the broker reports about them, and what it wrote."""
    topics.post_schema_versions(cluster, LISTED, 2)
    topics.fill(cluster, LISTED, 3, CURSORS[LISTED])
    topics.consume(cluster, LISTED, "reader", 15)
    _acknowledge_every_second(cluster, LISTED, "holes", 20)
    topics.fill(cluster, COMPACTED, 1, ["reader"])
    topics.publish_keyed(cluster, COMPACTED, 20, keys=4)
    topics.compact(cluster, COMPACTED)
    topics.fill_buckets(cluster, DELAYED, "later", 120)
    topics.fill(cluster, LONG, 1, ["reader"])
    topics.admin(cluster, "PUT", f"{topics.resource(LONG)}/properties", NOTE)
    topics.admin(cluster, "PUT", f"{topics.resource(LONG)}/subscription/reader/properties", NOTE)
    index: dict[str, str] = {}
    if (cluster.pulsar / "offloaders").is_dir():
        topics.fill(cluster, OFFLOADED, 2, ["reader"])
        topics.offload(cluster, OFFLOADED)
        index = _index_objects(cluster)
    for topic in CURSORS:  # all are full of full ledgers: the next ledger is created before the lists are read
        topics.wait_for(partial(_has_an_empty_ledger, cluster, topic), f"a new ledger of {topic}")
    stats = {topic: topics.internal_stats(cluster, topic) for topic in CURSORS}
    loaded = _znodes(cluster)
    for topic in CURSORS:
        topics.unload(cluster, topic)
    return {
        "stats": stats,
        "loaded": loaded,
        "unloaded": _znodes(cluster),
        "ledgers": _ledgers(cluster),
        "bookie": _text(_read(cluster, [f"{LEDGERS_ROOT}/available/bookie-0"]).popitem()[1]),
        "offloaded": {**_encoded(_read(cluster, [_list(OFFLOADED)])), **index},
    }


def _has_an_empty_ledger(cluster: Cluster, topic: str) -> bool:
    return bool(topics.internal_stats(cluster, topic)["currentLedgerEntries"] == 0)


def _acknowledge_every_second(cluster: Cluster, topic: str, subscription: str, entries: int) -> None:
    with part_clients.shared_consumer(cluster.serving.pulsar, topic, subscription) as consumer:
        for number in range(entries):
            message = consumer.receive(timeout_millis=10_000)
            if number % 2:
                consumer.acknowledge(message)
        topics.wait_for(
            lambda: len(_acknowledged(cluster, topic, subscription).split(",")) >= entries // 2, "acknowledgements"
        )


def _acknowledged(cluster: Cluster, topic: str, subscription: str) -> str:
    return str(topics.internal_stats(cluster, topic)["cursors"][subscription]["individuallyDeletedMessages"])


def _list(topic: str) -> str:
    return managed_ledger_path(managed_ledger_name(topic))


def _znodes(cluster: Cluster) -> dict[str, str]:
    """Return path -> value of the lists, the cursors and the locator of schemas."""
    cursors = [cursor_path(managed_ledger_name(topic), name) for topic, names in CURSORS.items() for name in names]
    return _encoded(_read(cluster, [*map(_list, CURSORS), *cursors, schema_path(schema_id_of(LISTED))]))


def _ledgers(cluster: Cluster) -> dict[str, str]:
    """Return path -> value of the metadata of every ledger of the topics."""
    names = {managed_ledger_name(topic) for topic in (*CURSORS, OFFLOADED)}
    return {
        path: _text(data)
        for path, data in part_clients.ledger_znodes(
            cluster.addresses.zookeeper, LEDGERS_ROOT, lambda path: path.rpartition("/")[2].startswith("L")
        ).items()
        if any(name.rpartition("/")[2].encode() in data for name in names)
    }


def _index_objects(cluster: Cluster) -> dict[str, str]:
    s3 = part_clients.s3(cluster.addresses.s3, cluster.region)
    keys = [key for attempt in attempts(cluster, OFFLOADED) for key in attempt.keys if key.endswith("-index")]
    return {key: _text(s3.get_object(Bucket=cluster.bucket, Key=key)["Body"].read()) for key in keys}


def _read(cluster: Cluster, paths: list[str]) -> dict[str, bytes]:
    return part_clients.read_znodes(cluster.addresses.zookeeper, paths)


def _encoded(values: dict[str, bytes]) -> dict[str, str]:
    return {path: _text(data) for path, data in values.items() if len(data) <= _LARGEST}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def main(versions: Iterable[str]) -> None:
    """Record versions."""
    FOLDER.mkdir(exist_ok=True)
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            try:
                recorded = record(up(home, pulsar=version))
            finally:
                down(home)
        (FOLDER / f"{version}.json").write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
