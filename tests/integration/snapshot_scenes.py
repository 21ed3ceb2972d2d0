"""A broker that writes small segments, and Pulsar 4.0.8's faults with them, made as operators meet them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streaming.adapters.pulsar.snapshot_topics import system_topic
from streaming.sandbox import clients, topics
from streaming.sandbox.cluster import Cluster, down, up
from streaming.sandbox.home import Part
from tests.integration.conftest import Deployment
from tests.integration.transactions import TxnId, admin
from udfs.snapshots.keys import SnapshotKind

SINGLE = {
    "transactionCoordinatorEnabled": "true",
    "transactionBufferSnapshotMaxTransactionCount": "20",
    "transactionBufferSnapshotMinTimeInMillis": "1000",
    "brokerServiceCompactionMonitorIntervalInSeconds": "3600",  # the scenes say when
}
SEGMENTED = {"transactionBufferSegmentedSnapshotEnabled": "true", "transactionBufferSnapshotSegmentSize": "140"}
SUBSCRIPTION = "s"


def restart(cluster: Cluster, settings: Mapping[str, str] | None = None, *, kill: bool = False) -> None:
    """End the broker, and start it with further settings."""
    (broker,) = cluster.spec.all_of(Part.BROKER)
    if kill:
        found = cluster.process(broker)
        assert found is not None
        found.kill()
        found.wait(30)
    cluster.stop(broker)
    up(cluster.home.root, broker_settings=settings)


@contextmanager
def cluster_in(home: Path) -> Iterator[Cluster]:
    """A cluster with transactions and single snapshots."""
    try:
        yield up(home, broker_settings=SINGLE)
    finally:
        down(home)


def namespace(cluster: Cluster, name: str) -> str:
    """A namespace of its own."""
    admin(cluster, "PUT", f"v2/namespaces/public/{name}", {})
    return f"public/{name}"


def topic_in(cluster: Cluster, space: str, name: str) -> str:
    """A topic of which nothing is trimmed, as it has a subscription that reads nothing."""
    topic = f"persistent://{space}/{name}"
    clients.subscribe(cluster.serving.pulsar, topic, [SUBSCRIPTION])
    return topic


def ledgers(cluster: Cluster, topic: str) -> list[int]:
    return topics.data_ledgers(cluster, topic)


def segments_of(cluster: Cluster, space: str) -> str:
    return system_topic(space, SnapshotKind.SEGMENT)


def lose_segments(cluster: Cluster, space: str) -> None:
    """What brokers do by themselves every minute: compact the segments topic; then its old ledgers are trimmed."""
    segments = segments_of(cluster, space)
    before = ledgers(cluster, segments)
    topics.compact(cluster, segments)
    topics.trim(cluster, segments)
    topics.wait_for(lambda: ledgers(cluster, segments)[0] != before[0], f"trimming of {segments}", seconds=120)


def findings(service: Deployment, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The lines of `snapshots audit --json`; the last one is what it came to."""
    text = service.run("snapshots", "audit", "--json", "--recheck-seconds", "1", *arguments, code=code, seconds=600)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def committed(values: list[str]) -> list[str]:
    return [value for value in values if value.startswith("c")]


def aborted_ids(ends: str, ids: list[TxnId]) -> set[TxnId]:
    return {txn for end, txn in zip(ends, ids, strict=True) if end == "a"}
