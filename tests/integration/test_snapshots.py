"""Snapshots of transaction buffers on a real broker: what it writes is decoded, and its faults are found and prevented.

The Java client's own record of its transactions is the truth.
"""

import random
from collections.abc import Iterator

import pytest

from streaming.adapters.pulsar.keyed import KeyedSender
from streaming.clients import admin_for
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.snapshots.guard import GUARD
from streaming.snapshots.parts import PartsTopic, ensure
from streaming.snapshots.read import snapshot_topics, system_topic
from tests.integration.conftest import Deployment, _deployment
from tests.integration.snapshot_scenes import (
    SEGMENTED,
    aborted_ids,
    cluster_in,
    committed,
    findings,
    ledgers,
    lose_segments,
    namespace,
    restart,
    topic_in,
)
from tests.integration.transactions import Transactions
from udfs.snapshots import segments
from udfs.snapshots.aborts import aborts_of
from udfs.snapshots.codec import Index, Segment, Snapshot
from udfs.snapshots.keys import Capacity
from udfs.snapshots.schemas import SnapshotKind
from udfs.snapshots.values import Read

pytestmark = [pytest.mark.cluster, pytest.mark.long]
SEED = 20261123


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("snapshots")) as made:
        yield made


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return _deployment(cluster, tmp_path_factory.mktemp("service"), classes="")


@pytest.fixture(scope="module")
def segmented(cluster: Cluster) -> Cluster:
    """The same cluster once its brokers write segments; tests before it met single snapshots."""
    restart(cluster, SEGMENTED)
    return cluster


def latest(service: Deployment, space: str, kind: SnapshotKind) -> dict[str, Read]:
    with snapshot_topics(service.settings) as found:
        return {read.key: read for read in found.compacted(space, kind)}


def recovered(service: Deployment, space: str, topic: str) -> set[tuple[int, int]]:
    """What a broker would recover of the index and the segments at their places."""
    index = latest(service, space, SnapshotKind.INDEX)[topic].value
    with snapshot_topics(service.settings) as found:
        stored = list(found.stored(space, SnapshotKind.SEGMENT))
    at = {read.position: read.value for read in stored if isinstance(read.value, Segment)}
    assert isinstance(index, Index)
    return set(segments.recover(index, at, (1 << 60, 0)).ids.pairs())


def told(found: list[dict[str, str]], topic: str) -> set[tuple[str, str]]:
    return {(line["class"], line["reason"]) for line in found if line.get("topic_name") == topic}


def test_single_snapshots_hold_the_ids_that_the_client_aborted(cluster: Cluster, service: Deployment) -> None:
    space = namespace(cluster, "single")
    topic = topic_in(cluster, space, "orders")
    ends = "a" * 60 + "c" * 20
    with Transactions(cluster.serving.pulsar) as transactions:
        ids = transactions.run(topic, ends)
        truth = aborted_ids(ends, ids)

        def is_whole() -> bool:
            read = latest(service, space, SnapshotKind.SINGLE).get(topic)
            return read is not None and isinstance(read.value, Snapshot) and read.value.aborts.rows == len(truth)

        topics.wait_for(is_whole, "the snapshot of all aborts")
        value = latest(service, space, SnapshotKind.SINGLE)[topic].value
    assert isinstance(value, Snapshot)
    assert set(value.aborts.ids.pairs()) == truth


def test_parts_survive_crashes_and_compactions_on_a_real_topic(cluster: Cluster, service: Deployment) -> None:
    space = namespace(cluster, "parts")
    owner = f"persistent://{space}/orders"
    chance = random.Random(SEED)
    with admin_for(service.settings) as admin, snapshot_topics(service.settings) as found:
        topic = ensure(admin, space)
        ours = PartsTopic(topic, lambda: found.compacted(space, SnapshotKind.PARTS))
        with KeyedSender(service.settings.pulsar, topic) as sender:
            first = newest = complete = 0
            for _round in range(30):
                first += chance.randrange(3)
                newest = max(newest, first) + chance.randrange(6)
                aborts = aborts_of((0, number, number, 0) for number in range(first, newest))
                crashing = _Crashing(sender, chance.choice([-1, -1, *range(6)]))
                try:
                    ours.write(crashing, owner, aborts, (newest, 0), Capacity(4, 1_000))
                    complete = newest
                except _CrashError:
                    pass
                if chance.random() < 0.2:
                    topics.compact(cluster, topic)
                back = ours.recover(owner, range(first, newest + 1))
                assert back.max_read[0] in (-1, *range(newest + 1))
                got = [least for _most, least in back.aborts.ids.pairs()]
                assert set(range(first, max(complete, back.max_read[0]))) <= set(got) <= set(range(first, newest))


class _CrashError(Exception):
    pass


class _Crashing:
    """A writer that dies before its n-th message; -1: it lives."""

    def __init__(self, sender: KeyedSender, left: int) -> None:
        self._sender = sender
        self._left = left

    def send(self, key: str, value: bytes | None) -> tuple[int, int]:
        if self._left == 0:
            raise _CrashError
        self._left -= 1
        return self._sender.send(key, value)
