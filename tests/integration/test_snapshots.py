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


def aborts_and_commits(
    cluster: Cluster, topic: str, aborts: int, commits: int = 20
) -> tuple[set[tuple[int, int]], int]:
    """Make transactions; returns the aborted ids, and how many were committed."""
    ends = "a" * aborts + "c" * commits
    with Transactions(cluster.serving.pulsar) as transactions:
        return aborted_ids(ends, transactions.run(topic, ends)), commits


def sealed(service: Deployment, space: str, topic: str, count: int) -> None:
    """Wait until the index of a topic names so many segments."""

    def is_there() -> bool:
        read = latest(service, space, SnapshotKind.INDEX).get(topic)
        return read is not None and isinstance(read.value, Index) and read.value.entries.rows >= count

    topics.wait_for(is_there, f"{count} segments of {topic}")


def reads_committed(cluster: Cluster, topic: str, commits: int) -> bool:
    """Whether a new consumer gets every committed message once, and nothing that was aborted."""
    with Transactions(cluster.serving.pulsar) as transactions:
        values = transactions.read(topic, f"reader-{random.randrange(10**9)}", 10)
    return len(committed(values)) == commits == len(set(values)) == len(values)


def test_segments_and_index_hold_the_ids_that_the_client_aborted(segmented: Cluster, service: Deployment) -> None:
    space = namespace(segmented, "segmented")
    topic = topic_in(segmented, space, "orders")
    truth, _commits = aborts_and_commits(segmented, topic, 200)
    sealed(service, space, topic, 4)
    topics.wait_for(lambda: recovered(service, space, topic) == truth, "the tail of the last aborts")
    assert told(findings(service, "--namespace", space), topic) == set()


def test_a_topic_whose_segments_were_trimmed_is_found_while_it_still_works(
    segmented: Cluster, service: Deployment
) -> None:
    space = namespace(segmented, "lost")
    topic = topic_in(segmented, space, "orders")
    _truth, commits = aborts_and_commits(segmented, topic, 500)
    sealed(service, space, topic, 10)
    before = findings(service, "--namespace", space)
    assert told(before, system_topic(space, SnapshotKind.SEGMENT)) == {("DANGER", "NO_GUARD")}
    assert "have none: public/lost" in service.call("check")

    lose_segments(segmented, space)

    assert reads_committed(segmented, topic, commits)  # it still works
    found = findings(service, "--namespace", space)
    assert ("MISSING", "SEGMENT_LOST") in told(found, topic)
    assert found[-1]["complete"]
    findings(service, "--namespace", space, "--verify-only", code=4)
    topics.unload(segmented, topic)
    assert not reads_committed(segmented, topic, commits)  # and now it does not
    assert ("MISSING", "SEGMENT_LOST") in told(findings(service, "--namespace", space), topic)


def test_a_guard_keeps_the_segments_and_moves_on_once_they_are_not_needed(
    segmented: Cluster, service: Deployment
) -> None:
    space = namespace(segmented, "guarded")
    topic = topic_in(segmented, space, "orders")
    truth, commits = aborts_and_commits(segmented, topic, 500)
    sealed(service, space, topic, 10)
    said = service.call("snapshots", "guard", "--namespace", space)
    assert f"{space}: guard made" in said
    segments_topic = system_topic(space, SnapshotKind.SEGMENT)
    before = ledgers(segmented, segments_topic)
    topics.compact(segmented, segments_topic)
    topics.trim(segmented, segments_topic)
    topics.unload(segmented, segments_topic)
    assert ledgers(segmented, segments_topic)[: len(before)] == before
    topics.unload(segmented, topic)
    assert reads_committed(segmented, topic, commits)
    assert recovered(service, space, topic) >= truth
    found = findings(service, "--namespace", space)
    assert told(found, topic) | told(found, segments_topic) == set()
    assert "moved" not in service.call("snapshots", "guard", "--namespace", space)

    _consume_all(segmented, topic)
    aborts_and_commits(segmented, topic, 0, 1)  # only a commit trims ids
    topics.wait_for(lambda: len(recovered(service, space, topic)) < len(truth) // 4, "the trimming of dead ids")
    assert "moved from" in service.call("snapshots", "guard", "--namespace", space)
    topics.compact(segmented, segments_topic)
    topics.trim(segmented, segments_topic)
    topics.wait_for(lambda: ledgers(segmented, segments_topic)[0] > before[0], "what the guard let go")
    topics.unload(segmented, topic)
    assert reads_committed(segmented, topic, 0)


def _consume_all(cluster: Cluster, topic: str) -> None:
    """Let every subscription have read everything, so that the broker trims the topic."""
    before = ledgers(cluster, topic)
    for subscription in topics.internal_stats(cluster, topic)["cursors"]:
        topics.admin(cluster, "POST", f"{topics.resource(topic)}/subscription/{subscription}/skip_all")
    topics.trim(cluster, topic)
    topics.wait_for(lambda: ledgers(cluster, topic)[0] >= before[-1], f"trimming of {topic}")


def test_snapshots_of_deleted_topics_are_orphans(segmented: Cluster, service: Deployment) -> None:
    space = namespace(segmented, "deleted")
    gone, stays = topic_in(segmented, space, "gone"), topic_in(segmented, space, "stays")
    for topic in (gone, stays):
        aborts_and_commits(segmented, topic, 100)
        sealed(service, space, topic, 2)
    topics.unload(segmented, gone)
    assert topics.delete_topic(segmented, gone)
    found = findings(service, "--namespace", space)
    assert told(found, gone) == {("ORPHAN", "OWNER_GONE")}
    assert {line["kind"] for line in found if line.get("topic_name") == gone} == {
        str(SnapshotKind.SEGMENT),
        str(SnapshotKind.INDEX),
    }
    assert told(found, stays) == set()


def test_ids_that_a_killed_broker_sealed_twice_are_found(segmented: Cluster, service: Deployment) -> None:
    space = namespace(segmented, "doubled")
    topic = topic_in(segmented, space, "orders")
    with Transactions(segmented.serving.pulsar) as transactions:
        transactions.run(topic, "o" + "a" * 100)  # one stays open, and all behind it is in memory alone
    restart(segmented, kill=True)
    aborts_and_commits(segmented, topic, 5, 5)
    topics.wait_for(
        lambda: ("DANGER", "DOUBLED_IDS") in told(findings(service, "--namespace", space), topic),
        "doubled ids",
        seconds=120,
    )


def test_what_others_publish_there_is_named_and_hides_nothing(segmented: Cluster, service: Deployment) -> None:
    space = namespace(segmented, "hostile")
    topic = topic_in(segmented, space, "orders")
    aborts_and_commits(segmented, topic, 100)
    sealed(service, space, topic, 2)
    good = latest(service, space, SnapshotKind.SEGMENT)
    pulsar = service.settings.pulsar
    with KeyedSender(pulsar, system_topic(space, SnapshotKind.SEGMENT)) as sender:
        for number, value in enumerate([b"", b"\x02", b"\xff" * 5_000_000, b"{}"]):
            sender.send(f"multiple-{900 + number}-{topic}", value)
        sender.send("no key of ours", b"x")
        sender.send(f"multiple-1-persistent://{space}/../x", b"x")
        sender.send(f"multiple-950-{topic}", None)
    found = findings(service, "--namespace", space)
    assert found[-1]["complete"]
    foreign = [line["reason"] for line in found if line.get("class") == "FOREIGN"]
    assert sorted(foreign) == ["ODD_KEY", "ODD_KEY", *["UNREADABLE"] * 4]
    assert ("DANGER", "NULLS_VISIBLE") in told(found, system_topic(space, SnapshotKind.SEGMENT))
    assert told(found, topic) == {("FOREIGN", "UNREADABLE")}
    assert set(good) <= set(latest(service, space, SnapshotKind.SEGMENT))
    said = service.call("snapshots", "guard", "--namespace", space)
    assert "guard made" in said
    assert GUARD in topics.internal_stats(segmented, system_topic(space, SnapshotKind.SEGMENT))["cursors"]
