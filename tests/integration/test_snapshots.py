"""Transaction-buffer snapshots on a real broker: we decode its snapshots, and find and prevent its faults.

The expected ids are the Java client's own record of its transactions.
"""

import json
import random
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Record, String
from typer.testing import CliRunner

from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD, is_guarded
from streaming.cli.main import app
from streaming.clients import admin_for
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.snapshots.audit.publication import request_of
from streaming.snapshots.parts.topic import PartsTopic, ensure
from streaming.snapshots.repair.wiring import restore_removed
from streaming.snapshots.snapshot_namespaces import snapshot_topics
from tests.integration.conftest import Deployment, _deployment, leak, payload
from tests.integration.java_commands import JavaError
from tests.integration.snapshot_scenes import (
    SEGMENTED,
    SUBSCRIPTION,
    Scene,
    aborted_ids,
    allowing,
    cluster_in,
    consume_all,
    create_scene,
    double_ids,
    end_left_open,
    findings,
    latest,
    ledgers,
    lose_segments,
    namespace,
    reads_committed,
    reasons_for,
    recovered,
    restart,
    run_repair,
    topic_in,
    wait_for,
    wait_for_silence,
    wait_until_sealed,
)
from tests.integration.transactions import Transactions
from udfs.requests.request_format import encode
from udfs.snapshots import sealed_segments
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.codec import Index, Segment, Snapshot, encode_segment
from udfs.snapshots.keys import Capacity, SnapshotKind
from udfs.snapshots.repair_rules import complete_part_of

pytestmark = [pytest.mark.cluster, pytest.mark.long]
SEED = 20261123


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("snapshots")) as running:
        yield running


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return allowing(_deployment(cluster, tmp_path_factory.mktemp("service"), classes=""))


@dataclass(frozen=True)
class Single:
    """A topic with a single snapshot, its aborted ids, and a deleted topic."""

    space: str
    topic: str
    aborted: set[tuple[int, int]]
    gone: str


@pytest.fixture(scope="module")
def single(cluster: Cluster, service: Deployment) -> Single:
    """Topics of a broker that writes single snapshots, as it does until the fixture `segmented`."""
    space = namespace(cluster, "single")
    topic, gone = topic_in(cluster, space, "orders"), topic_in(cluster, space, "gone")
    ends = "a" * 60 + "c" * 20
    with Transactions(cluster.serving.pulsar, pulsar=cluster.pulsar) as transactions:
        truth = aborted_ids(ends, transactions.run(topic, ends))
        transactions.run(gone, "a" * 30)

        def are_complete() -> bool:
            reads = latest(service, space, SnapshotKind.SINGLE)
            value = reads[topic].value if topic in reads else None
            return gone in reads and isinstance(value, Snapshot) and value.aborts.rows == len(truth)

        wait_for(are_complete, "the snapshots of all aborts")
    topics.unload(cluster, gone)
    assert topics.delete_topic(cluster, gone)
    return Single(space, topic, truth, gone)


@pytest.fixture(scope="module")
def segmented(cluster: Cluster, single: Single) -> Cluster:
    """The same cluster with brokers that write segments."""
    restart(cluster, SEGMENTED)
    return cluster


@pytest.fixture(scope="module")
def transactions(segmented: Cluster) -> Iterator[Transactions]:
    with Transactions(segmented.serving.pulsar) as opened:
        yield opened


def test_single_snapshots_hold_the_ids_that_the_client_aborted(single: Single, service: Deployment) -> None:
    value = latest(service, single.space, SnapshotKind.SINGLE)[single.topic].value
    assert isinstance(value, Snapshot)
    assert set(value.aborts.ids.pairs()) == single.aborted


def test_parts_survive_crashes_and_compactions_on_a_real_topic(cluster: Cluster, service: Deployment) -> None:
    space = namespace(cluster, "parts")
    owner = f"persistent://{space}/orders"
    chance = random.Random(SEED)
    with admin_for(service.settings) as admin, snapshot_topics(service.settings) as snapshots:
        topic = ensure(admin, space)
        parts = PartsTopic(topic, lambda: snapshots.compacted(space, SnapshotKind.PARTS))
        with KeyedSender(service.settings.pulsar, topic) as sender:
            first = newest = complete = 0
            for _round in range(30):
                first += chance.randrange(3)
                newest = max(newest, first) + chance.randrange(6)
                aborts = aborts_of((0, number, number, 0) for number in range(first, newest))
                crashing = _Crashing(sender, chance.choice([-1, -1, *range(6)]))
                try:
                    parts.write(crashing, owner, aborts, (newest, 0), Capacity(4, 1_000))
                    complete = newest
                except _CrashError:
                    pass
                if chance.random() < 0.2:
                    topics.compact(cluster, topic)
                recovered_parts = parts.recover(owner, range(first, newest + 1))
                assert recovered_parts.max_read[0] in (-1, *range(newest + 1))
                ids = [least for _most, least in recovered_parts.aborts.ids.pairs()]
                assert (
                    set(range(first, max(complete, recovered_parts.max_read[0])))
                    <= set(ids)
                    <= set(range(first, newest))
                )


class _CrashError(Exception):
    pass


class _Crashing:
    """A writer that dies before its n-th message; it lives if n is -1."""

    def __init__(self, sender: KeyedSender, left: int) -> None:
        self._sender = sender
        self._left = left

    def send(self, key: str, value: bytes | None) -> tuple[int, int]:
        if self._left == 0:
            raise _CrashError
        self._left -= 1
        return self._sender.send(key, value)


@pytest.fixture(scope="module")
def doubled(segmented: Cluster, service: Deployment) -> Scene:
    return double_ids(segmented, service, "doubled")


@pytest.fixture(scope="module")
def well(doubled: Scene, segmented: Cluster, service: Deployment, transactions: Transactions) -> Scene:
    return create_scene(segmented, service, transactions, "well", 100)


@pytest.fixture(scope="module")
def guarded(doubled: Scene, segmented: Cluster, service: Deployment, transactions: Transactions) -> Scene:
    """A topic that would have fault A without its guard."""
    scene = create_scene(segmented, service, transactions, "guarded", 500)
    output = service.call("snapshots", "guard", "--yes", "--namespace", scene.space)
    assert f"{scene.space}: guard created" in output
    before = ledgers(segmented, scene.segments)
    topics.compact(segmented, scene.segments)
    topics.trim(segmented, scene.segments)
    topics.unload(segmented, scene.segments)
    assert ledgers(segmented, scene.segments)[: len(before)] == before
    return scene


@pytest.fixture(scope="module")
def lost(doubled: Scene, segmented: Cluster, service: Deployment) -> Scene:
    """Fault A: the segments topic was compacted and trimmed; no client is left, as repair and undo require."""
    with Transactions(segmented.serving.pulsar) as closed_before:
        scene = create_scene(segmented, service, closed_before, "lost", 500)
    lose_segments(segmented, scene.space)
    return scene


@pytest.fixture(scope="module")
def deleted(doubled: Scene, segmented: Cluster, service: Deployment) -> Scene:
    """Fault E: the topic was unloaded and then deleted; a live producer would create it again at once."""
    with Transactions(segmented.serving.pulsar) as closed_before:
        scene = create_scene(segmented, service, closed_before, "deleted", 100)
        wait_until_sealed(service, scene)
        # an undo restores the segments before the index's maxReadPosition; the broker writes that later
        wait_for(lambda: is_complete(service, scene), f"a maxReadPosition after the segments of {scene.topic}")
    topics.unload(segmented, scene.topic)
    assert topics.delete_topic(segmented, scene.topic)
    return scene


def is_complete(service: Deployment, scene: Scene) -> bool:
    """Return whether the topic's index covers all segments that it names."""
    index = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].value
    assert isinstance(index, Index)
    return complete_part_of(index).entries.rows == index.entries.rows


@pytest.fixture(scope="module")
def refused(doubled: Scene, segmented: Cluster, service: Deployment) -> Scene:
    """Fault D: the deletion of a loaded topic failed."""
    with Transactions(segmented.serving.pulsar) as closed_before:
        scene = create_scene(segmented, service, closed_before, "refused", 100)
    assert not topics.delete_topic(segmented, scene.topic)
    return scene


@pytest.fixture(scope="module")
def hostile(doubled: Scene, segmented: Cluster, service: Deployment, transactions: Transactions) -> Scene:
    """A topic whose segments topic has messages of other producers."""
    scene = create_scene(segmented, service, transactions, "hostile", 100)
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        for number, value in enumerate([b"", b"\x02", b"\xff" * 5_000_000, b"{}"]):
            sender.send(f"multiple-{900 + number}-{scene.topic}", value)
        sender.send("no key of ours", b"x")
        sender.send(f"multiple-1-persistent://{scene.space}/../x", b"x")
        sender.send(f"multiple-950-{scene.topic}", None)
    with closing(pulsar.Client(segmented.serving.pulsar)) as client:  # its schema becomes the topic's latest
        foreign = client.create_producer(scene.segments, schema=AvroSchema(_Foreign))
        foreign.send(_Foreign(text="x"), partition_key=f"multiple-960-{scene.topic}")
    return scene


class _Foreign(Record):  # type: ignore[misc]  # pulsar-client has no types
    text = String()


SCENES = ("doubled", "well", "guarded", "deleted", "refused", "hostile", "lost")


@pytest.fixture(scope="module")
def audited(request: pytest.FixtureRequest, service: Deployment) -> list[dict[str, Any]]:
    """The lines of one audit of the whole cluster with all scenes; a scene that fails, fails its own test."""
    for name in SCENES:
        with suppress(BaseException):
            request.getfixturevalue(name)
    return findings(service)


def test_the_audit_is_complete_and_names_a_remedy_for_each_finding(audited: list[dict[str, Any]]) -> None:
    *lines, last = audited
    assert last["complete"]
    assert all(line["do"] for line in lines)


def test_segments_and_index_hold_the_ids_that_the_client_aborted(
    well: Scene, service: Deployment, audited: list[dict[str, Any]]
) -> None:
    wait_for(lambda: recovered(service, well.space, well.topic) == well.aborted, "the last aborts")
    assert reasons_for(audited, well.topic) == set()
    assert reasons_for(audited, well.segments) == {("DANGER", "NO_GUARD")}


def test_a_single_snapshot_of_a_deleted_topic_is_an_orphan(single: Single, audited: list[dict[str, Any]]) -> None:
    assert reasons_for(audited, single.gone) == {("ORPHAN", "OWNER_GONE")}
    assert reasons_for(audited, single.topic) == set()


def test_segments_and_index_of_a_deleted_topic_are_orphans(deleted: Scene, audited: list[dict[str, Any]]) -> None:
    assert reasons_for(audited, deleted.topic) == {("ORPHAN", "OWNER_GONE")}
    kinds = {line["kind"] for line in audited if line.get("topic") == deleted.topic}
    assert kinds == {str(SnapshotKind.SEGMENT), str(SnapshotKind.INDEX)}


def test_ids_that_a_killed_broker_sealed_twice_are_found(doubled: Scene, audited: list[dict[str, Any]]) -> None:
    assert ("DANGER", "DOUBLED_IDS") in reasons_for(audited, doubled.topic)


def test_a_deletion_that_failed_is_found_by_its_visible_tombstones(
    refused: Scene, audited: list[dict[str, Any]]
) -> None:
    assert ("DANGER", "NULLS_VISIBLE") in reasons_for(audited, refused.segments)


def test_messages_of_other_producers_are_reported_and_hide_nothing(
    hostile: Scene, service: Deployment, audited: list[dict[str, Any]]
) -> None:
    foreign = [
        line["reason"] for line in audited if (line.get("class"), line.get("namespace")) == ("FOREIGN", hostile.space)
    ]
    assert sorted(foreign) == ["FOREIGN_SCHEMA", "FOREIGN_SCHEMA", "ODD_KEY", "ODD_KEY", *["UNREADABLE"] * 4]
    assert ("FOREIGN", "FOREIGN_SCHEMA") in reasons_for(audited, hostile.segments)
    assert ("DANGER", "NULLS_VISIBLE") in reasons_for(audited, hostile.segments)
    assert reasons_for(audited, hostile.topic) == {("FOREIGN", "UNREADABLE"), ("FOREIGN", "FOREIGN_SCHEMA")}
    output = service.call("snapshots", "guard", "--yes", "--namespace", hostile.space)
    assert "guard created" in output


def test_a_topic_whose_segments_were_trimmed_is_found_while_it_is_still_loaded(
    lost: Scene, transactions: Transactions, audited: list[dict[str, Any]]
) -> None:
    assert reasons_for(audited, lost.topic) == {("MISSING", "SEGMENT_LOST")}
    assert reads_committed(transactions, lost)


def test_a_guard_keeps_the_segments_that_the_index_names(
    guarded: Scene, service: Deployment, audited: list[dict[str, Any]]
) -> None:
    assert reasons_for(audited, guarded.topic) | reasons_for(audited, guarded.segments) == set()
    assert recovered(service, guarded.space, guarded.topic) == guarded.aborted
    assert "moved" not in service.call("snapshots", "guard", "--yes", "--namespace", guarded.space)
    output = CliRunner().invoke(app, ["check", "--config", str(service.config)]).output
    assert "guards of snapshots" in output
    assert guarded.space not in output


def test_only_retention_without_limit_replaces_a_guard(doubled: Scene, segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "retained", 500)
    set_retention(service, scene.segments, (-1, -1))
    assert is_called_guarded(service, scene)
    before = ledgers(segmented, scene.segments)
    topics.compact(segmented, scene.segments)
    topics.trim(segmented, scene.segments)
    topics.unload(segmented, scene.segments)
    assert ledgers(segmented, scene.segments)[: len(before)] == before
    topics.unload(segmented, scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene, 90)
    set_retention(service, scene.segments, (60, -1))  # any size, but not for ever
    assert not is_called_guarded(service, scene)
    assert "guard created" in service.call("snapshots", "guard", "--yes", "--namespace", scene.space)
    assert is_called_guarded(service, scene)


def set_retention(service: Deployment, topic: str, retention: tuple[int, int]) -> None:
    """Set a topic's retention (minutes, megabytes), and wait until its broker applies it."""
    with snapshot_topics(service.settings) as snapshots:
        snapshots.admin.set_retention(topic, minutes=retention[0], megabytes=retention[1])

    def is_applied() -> bool:
        with snapshot_topics(service.settings) as snapshots:
            return snapshots.admin.retention(topic) == retention

    wait_for(is_applied, f"retention {retention} of {topic}")


def is_called_guarded(service: Deployment, scene: Scene) -> bool:
    """Return whether a namespace's segments are guarded; the audit and the service must agree."""
    in_audit = ("DANGER", "NO_GUARD") not in reasons_for(findings(service, "--namespace", scene.space), scene.segments)
    with snapshot_topics(service.settings) as snapshots:
        in_service = is_guarded(snapshots, scene.space)
    assert in_audit == in_service
    return in_service


def test_after_a_kill_the_guarded_topic_is_complete_and_the_unguarded_topic_does_not_load(
    segmented: Cluster, guarded: Scene, lost: Scene, well: Scene
) -> None:
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, guarded)
        assert reads_committed(again, well)
        with pytest.raises((JavaError, AssertionError)):
            assert reads_committed(again, lost)


def test_every_audit_exits_with_4_if_a_topic_does_not_load(lost: Scene, service: Deployment) -> None:
    for options in (("--recheck-seconds", "1", "--verify-only"), ("--last",)):
        text = service.run("audit", "--namespace", lost.space, *options, code=4, seconds=600)
        assert re.search(r"snapshots: \d+ findings? of MISSING or DANGER", text), options
    lines = findings(service, "--namespace", lost.space, "--verify-only")
    assert {line["class"] for line in lines[:-1]} <= {"MISSING", "DANGER"}
    assert ("MISSING", "SEGMENT_LOST") in reasons_for(lines, lost.topic)


def test_a_repair_by_replay_completes_the_topic_and_can_be_undone(
    segmented: Cluster, lost: Scene, well: Scene, service: Deployment
) -> None:
    repair = ("snapshots", "repair", "--yes", "--topic")
    undo = ("snapshots", "undo", "--yes", "--topic", lost.topic)
    assert "it works" in service.call(*repair, well.topic, code=4)
    topics.unload(segmented, lost.topic)  # if this test runs alone, the topic is loaded
    first = run_repair(service, lost.topic)
    assert (first["is_verified"], first["not_written"]) == (True, "")
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, lost)
        assert "restored the index" in service.call(*undo)
        with pytest.raises((JavaError, AssertionError)):
            assert reads_committed(again, lost)
        assert run_repair(service, lost.topic)["not_written"] == ""
        wait_until_sealed(service, lost)
        assert reads_committed(again, lost)
        later = {*again.run(lost.topic, "a" * 40)}  # the broker continues from there
        wait_until_sealed(service, replace(lost, aborted=lost.aborted | later))
    topics.unload(segmented, lost.topic)
    before = latest(service, lost.space, SnapshotKind.INDEX)[lost.topic].data
    for is_restored in (False, True):
        assert "another undo restores that" in service.call(*undo)
        assert (latest(service, lost.space, SnapshotKind.INDEX)[lost.topic].data == before) is is_restored
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, lost)
    assert lost.aborted <= recovered(service, lost.space, lost.topic)


def test_a_guard_moves_once_segments_are_not_needed(segmented: Cluster, service: Deployment, guarded: Scene) -> None:
    before = ledgers(segmented, guarded.segments)
    with Transactions(segmented.serving.pulsar) as again:
        consume_all(segmented, guarded.topic)
        assert ("WASTE", "DEAD_IDS") in reasons_for(findings(service, "--namespace", guarded.space), guarded.topic)
        output = service.call("snapshots", "trim", "--yes", "--topic", guarded.topic)  # by ending a transaction
        assert "the broker has dropped" in output
        few = len(guarded.aborted) // 4
        wait_for(lambda: len(recovered(service, guarded.space, guarded.topic)) < few, "dead ids to go")
        assert "no ids" in service.call("snapshots", "trim", "--yes", "--topic", guarded.topic, code=4)
        assert "moved from" in service.call("snapshots", "guard", "--yes", "--namespace", guarded.space)
        topics.compact(segmented, guarded.segments)
        topics.trim(segmented, guarded.segments)
        wait_for(lambda: ledgers(segmented, guarded.segments)[0] > before[0], "the ledgers that the guard released")
        topics.unload(segmented, guarded.topic)
        again.run(guarded.topic, "ac")
        values = again.read(guarded.topic, SUBSCRIPTION)
        assert values[-1:] == ["c1"]
        assert not [value for value in values if value.startswith("a")]


def test_orphans_are_removed_by_the_service_and_can_be_put_back(
    segmented: Cluster, service: Deployment, single: Single, deleted: Scene, well: Scene
) -> None:
    with Transactions(segmented.serving.pulsar) as neighbours:
        neighbour = topic_in(segmented, deleted.space, "neighbour")
        neighbours.run(neighbour, "a" * 100 + "c" * 10)
    service.call("snapshots", "guard", "--yes", "--namespace", deleted.space)
    service.call("snapshots", "guard", "--yes", "--namespace", well.space)
    for space in (deleted.space, single.space):
        findings(service, "--namespace", space, "--publish", "--yes")
    kept = [*latest(service, well.space, SnapshotKind.INDEX).values()][:1]
    kept += [*latest(service, well.space, SnapshotKind.SEGMENT).values()][:1]
    service.request(encode(request_of(well.topic, read.kind, read.key, read.position)) for read in kept)
    service.run("run", "--until-idle", seconds=600)
    outcomes: dict[str, set[tuple[str, str]]] = {}
    for row in service.receipts():
        if row["outcome"] != "RETRY":
            outcomes.setdefault(row["topic"], set()).add((row["outcome"], row["reason"]))
    gone = {("DELETED", "OWNER_GONE")}
    assert outcomes == {deleted.topic: gone, single.gone: gone, well.topic: {("DEAD_LETTER", "IN_USE")}}
    for space, topic in ((deleted.space, deleted.topic), (single.space, single.gone)):
        lines = findings(service, "--namespace", space)
        assert reasons_for(lines, topic) == set()
        assert not [line for line in lines if line.get("reason") == "NULLS_VISIBLE"]
    scene = Scene(deleted.space, neighbour, set(), 10)
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, well)
        assert reads_committed(again, scene)
        again.run(neighbour, "ac", start=200)
    undo = ("snapshots", "undo", "--removed", "--yes", "--topic", deleted.topic)
    topic_in(segmented, deleted.space, "orders")  # the topic is created again, and loaded
    assert "is loaded" in service.call(*undo, code=4)
    topics.unload(segmented, deleted.topic)
    assert topics.delete_topic(segmented, deleted.topic)
    interrupted = list(islice(restore_removed(service.settings, deleted.topic), 2))
    assert all(message.position for message in interrupted)
    output = service.call(*undo)
    assert output.count("was not changed") == 2
    assert output.count("published again") == len(latest_of(service, deleted)) - 2
    assert reasons_for(findings(service, "--namespace", deleted.space), deleted.topic) == {("ORPHAN", "OWNER_GONE")}
    assert recovered(service, deleted.space, deleted.topic) <= deleted.aborted
    assert len(recovered(service, deleted.space, deleted.topic)) >= 60
    assert "published again" not in service.call(*undo)


def latest_of(service: Deployment, scene: Scene) -> list[str]:
    """Return the topic's keys that have values."""
    kinds = (SnapshotKind.SEGMENT, SnapshotKind.INDEX)
    reads = [read for kind in kinds for read in latest(service, scene.space, kind).values()]
    return [read.key for read in reads if read.topic == scene.topic and not read.is_null]


def test_segments_that_are_published_again_complete_the_topic(
    segmented: Cluster, service: Deployment, well: Scene
) -> None:
    repair = ("snapshots", "repair", "--republish", "--yes", "--topic")
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "republished", 500)
    wait_for(lambda: recovered(service, scene.space, scene.topic) == scene.aborted, "the last aborts")
    lose_segments(segmented, scene.space)
    assert "will not load again: disconnect its clients, unload it" in service.call(*repair, scene.topic, code=4)
    topics.unload(segmented, scene.topic)
    key = f"multiple-0-{scene.topic}"
    first = latest(service, scene.space, SnapshotKind.SEGMENT)[key].value
    assert isinstance(first, Segment)
    other = Segment(scene.topic, 0, (first.marker[0], first.marker[1] + 1), ids_of([(0, 1 << 40)]))
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        sender.send(key, encode_segment(other))
        assert "has no segments 0 either" in service.call(*repair, scene.topic, code=4)
        sender.send(key, encode_segment(first))
    output = service.call(*repair, scene.topic)
    assert "loaded again and has 500 aborted ids (its old snapshot had 500)" in output
    assert "gets 10 entries, none of them aborted" in output
    assert reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic) == set(), lines
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
        # our index has no tail: the broker found these ids by its replay, and names them after further transactions
        later = {*again.run(scene.topic, "a" * 25, start=600)}
    wait_until_sealed(service, replace(scene, aborted=scene.aborted | later))
    assert reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic) == set(), lines


def test_ids_aborted_while_a_transaction_was_open_are_sealed_once_after_a_repair(
    segmented: Cluster, service: Deployment
) -> None:
    """The index names segments after its maxReadPosition; a broker that loads it seals their ids again.

    While the transaction is open, it hides all later messages, so that the repair is not verified.
    """
    space = namespace(segmented, "open")
    topic = topic_in(segmented, space, "orders")
    with Transactions(segmented.serving.pulsar) as own:
        before = own.run(topic, "a" * 200)
        (left_open,) = own.run(topic, "o", start=200)
        after = own.run(topic, "a" * 200 + "c" * 5, start=201)
    scene = Scene(space, topic, {*before, *after[:200]}, 5, left_open)

    def index() -> Index:
        value = latest(service, space, SnapshotKind.INDEX)[topic].value
        assert isinstance(value, Index)
        return value

    wait_for(lambda: index().entries.rows >= 400 // 40, f"segments of {topic}")
    markers = [marker for _number, _position, marker in sealed_segments.named_segments(index())]
    assert sum(marker > index().max_read for marker in markers) >= 3
    topics.unload(segmented, topic)
    lose_segments(segmented, space)
    output = service.call("snapshots", "repair", "--republish", "--yes", "--topic", topic, code=4)
    assert "is not verified: the topic was read up to" in output
    assert "an open transaction there hides the later entries" in output
    end_left_open(segmented, scene)
    report = run_repair(service, topic, "--republish")
    assert (report["went_on"], report["is_verified"], report["not_written"]) == (True, True, "")
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
        later = {*again.run(topic, "a" * 40, start=500)}
    wait_until_sealed(service, replace(scene, aborted=scene.aborted | later))
    assert reasons_for(lines := findings(service, "--namespace", space), topic) <= {("WASTE", "NOT_NAMED")}, lines


def test_a_repair_that_can_not_be_verified_reports_the_reason(segmented: Cluster, service: Deployment) -> None:
    """One of the segments is lost, so that the repair can't check whether the broker has found all ids."""
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "unknown", 500)
    lose_segments(segmented, scene.space)
    topics.unload(segmented, scene.topic)
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        sender.send(f"multiple-0-{scene.topic}", None)
    output = service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    assert "is loaded again and has 500 aborted ids" in output
    assert "is not verified: the ids of segments 0 are not known" in output
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)


def test_ids_that_were_sealed_twice_are_sealed_once_after_a_repair(
    segmented: Cluster, service: Deployment, doubled: Scene
) -> None:
    end_left_open(segmented, doubled)
    wait_for_silence(service, doubled)
    assert run_repair(service, doubled.topic)["not_written"] == ""
    assert reasons_for(findings(service, "--namespace", doubled.space), doubled.topic) <= {("WASTE", "NOT_NAMED")}
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, doubled)
        again.run(doubled.topic, "a" * 25, start=200)
    wait_until_sealed(service, doubled)
    assert ("DANGER", "DOUBLED_IDS") not in reasons_for(findings(service, "--namespace", doubled.space), doubled.topic)


def test_run_creates_and_moves_guards_if_configured(
    segmented: Cluster, service: Deployment, tmp_path: Path, well: Scene, refused: Scene
) -> None:
    own = allowing(_deployment(segmented, tmp_path, classes=""))
    own.config.write_text(own.config.read_text() + "[snapshots]\nguard_every_seconds = 1\n")

    def check() -> str:
        return " ".join(CliRunner().invoke(app, ["check", "--config", str(own.config)]).output.split())

    assert "namespaces with segments have no guard: " in check()
    process = own.start("run", log=tmp_path / "run.txt")
    try:  # run creates the guards one after the other
        wait_for(lambda: "namespaces with segments, all guarded" in check(), "all guards")
    finally:
        process.terminate()
        process.wait(180)
    assert GUARD in topics.internal_stats(segmented, refused.segments)["cursors"]
    topics.admin(segmented, "POST", f"{topics.resource(well.segments)}/subscription/{GUARD}/skip_all")
    assert f"is after segments which indexes name: {well.space}" in check()
    assert "moved from" in service.call("snapshots", "guard", "--yes", "--namespace", well.space)
    assert "namespaces with segments, all guarded" in check()


def test_a_deletion_that_failed_is_completed(segmented: Cluster, service: Deployment, refused: Scene) -> None:
    """Fault D: no loaded topic of the namespace can be deleted until the tombstones are gone."""
    with Transactions(segmented.serving.pulsar) as clients:
        neighbour, another = (topic_in(segmented, refused.space, name) for name in ("neighbour", "another"))
        clients.run(neighbour, "ac")
        clients.run(another, "ac")
    assert not topics.delete_topic(segmented, neighbour)
    compact = ("snapshots", "compact", "--yes", "--namespace", refused.space)
    assert "tombstones are gone" in service.call(*compact)
    topics.compact(segmented, refused.segments)  # without our record after them, the tombstones would be back
    assert "no tombstone can be read" in service.call(*compact)
    assert ("DANGER", "NULLS_VISIBLE") not in reasons_for(
        findings(service, "--namespace", refused.space), refused.segments
    )
    assert topics.delete_topic(segmented, another)
    for topic in (refused.topic, neighbour):
        topics.unload(segmented, topic)
        assert topics.delete_topic(segmented, topic)
    lines = findings(service, "--namespace", refused.space, "--publish", "--yes")
    assert reasons_for(lines, refused.topic) == {("ORPHAN", "OWNER_GONE")}
    service.run("run", "--until-idle", seconds=600)
    lines = findings(service, "--namespace", refused.space)
    assert reasons_for(lines, refused.topic) | reasons_for(lines, refused.segments) == set()


def test_topics_whose_ledgers_the_service_deleted_are_trimmed_if_their_namespace_is_allowed(
    segmented: Cluster, service: Deployment, tmp_path: Path, well: Scene
) -> None:
    with Transactions(segmented.serving.pulsar) as closed_before:
        scene = create_scene(segmented, service, closed_before, "trimmed", 100)
        away = create_scene(segmented, service, closed_before, "away", 100)
    own = _deployment(segmented, tmp_path, classes="")
    for topic in (scene.topic, away.topic):
        own.request(payload(topic, ledger_id) for ledger_id in leak(segmented, topic, 2))
    own.run("run", "--until-idle", seconds=600)
    assert own.outcomes() == {("DELETED", "UNREFERENCED"): 4}
    for other in (scene, away):
        consume_all(segmented, other.topic)
        assert ("WASTE", "DEAD_IDS") in reasons_for(findings(own, "--namespace", other.space), other.topic)
    trim = ("snapshots", "trim", "--yes")
    assert "nothing to do" in own.call(*trim)
    allowed = f'"{scene.space}", "{away.space}"'
    own.config.write_text(own.config.read_text() + f"[snapshots]\ntrim_namespaces = [{allowed}]\n")
    with _away(segmented, away.space):
        output = own.call(*trim, code=3)
    assert f"1 of 2 topics were not trimmed, run the command again: {away.topic}" in output
    assert f" segments of {scene.topic}" in output
    assert ("WASTE", "DEAD_IDS") not in reasons_for(findings(own, "--namespace", scene.space), scene.topic)

    def is_trimmed() -> bool:
        output = CliRunner().invoke(app, [*trim, "--config", str(own.config)]).output
        return f" segments of {away.topic}" in output

    wait_for(is_trimmed, f"the trim of {away.topic}, which is back")


def test_an_audit_of_ledgers_shows_snapshots_too(service: Deployment, tmp_path: Path, hostile: Scene) -> None:
    # loads the namespace's snapshot topics; the audit of ledgers leaves out topics that no broker has loaded
    *found, _last = findings(service, "--namespace", hostile.space)
    assert found
    service.run("audit", "--recheck-seconds", "1", "--out", str(tmp_path / "report"), code=4, seconds=600)
    report = (tmp_path / "report" / "report.html").read_text()
    assert "Transaction-buffer snapshots" in report
    assert "Snapshots were not audited" not in report
    assert [line for line in found if line["reason"] not in report] == []


def test_brokers_that_write_single_snapshots_again_are_reported(
    segmented: Cluster, service: Deployment, well: Scene
) -> None:
    restart(segmented, {"transactionBufferSegmentedSnapshotEnabled": "false"})
    assert ("DANGER", "FLAG_OFF") in reasons_for(findings(service, "--namespace", well.space), well.topic)


@pytest.fixture
def complete(segmented: Cluster, service: Deployment, lost: Scene, doubled: Scene, hostile: Scene) -> list[Scene]:
    """Topics that still have all their messages; if the test runs alone, this fixture repairs them."""
    end_left_open(segmented, doubled)
    if ("MISSING", "SEGMENT_LOST") in reasons_for(findings(service, "--namespace", lost.space), lost.topic):
        topics.unload(segmented, lost.topic)
        service.call("snapshots", "repair", "--yes", "--topic", lost.topic)
    return [lost, doubled, hostile]


def test_after_all_scenes_a_killed_broker_gives_readers_the_committed_messages(
    segmented: Cluster, service: Deployment, complete: list[Scene], well: Scene, guarded: Scene
) -> None:
    restart(segmented, SEGMENTED, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        for scene in (*complete, well):
            assert reads_committed(again, scene), scene.topic
        assert not [value for value in again.read(guarded.topic, SUBSCRIPTION) if not value.startswith("c")]
    assert not [line for line in findings(service) if line.get("class") == "MISSING"]


@contextmanager
def _away(cluster: Cluster, space: str) -> Iterator[None]:
    """Let no broker serve a namespace, as if all allowed brokers were down."""
    (name,) = json.loads(topics.admin(cluster, "GET", "clusters"))
    path = f"clusters/{name}/namespaceIsolationPolicies/away"
    failover = {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "100"}}
    policy = {"namespaces": [space], "primary": ["nobody"], "secondary": [], "auto_failover_policy": failover}
    topics.admin(cluster, "POST", path, policy)
    try:
        topics.admin(cluster, "PUT", f"namespaces/{space}/unload")
        yield
    finally:
        topics.admin(cluster, "DELETE", path)
