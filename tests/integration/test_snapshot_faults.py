"""Rarer faults of transaction-buffer snapshots on a real broker, and migrations between the forms of a snapshot.

test_snapshots.py has the other faults, on a cluster of its own. The expected ids are the Java client's record.
"""

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.errors import SafetyError, UnavailableError
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from streaming.snapshots.repair.topic_session import ledgers_of
from streaming.snapshots.repair.wiring import migrations_for, repairs_for
from streaming.snapshots.snapshot_namespaces import snapshot_topics
from tests.integration.conftest import Deployment, _deployment
from tests.integration.snapshot_scenes import (
    PATIENCE_SECONDS,
    SEGMENTED,
    SUBSCRIPTION,
    Scene,
    aborted_ids,
    cluster_in,
    create_scene,
    create_silent_scene,
    double_ids,
    end_left_open,
    findings,
    latest,
    ledgers,
    lose_segments,
    namespace,
    publish_index,
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
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots import migration, sealed_segments
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, Segment, Snapshot, encode_index, encode_segment, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.migration import Stored, StoredForm
from udfs.snapshots.values import ReadValue

pytestmark = [pytest.mark.cluster, pytest.mark.long]
MANY = 10_000  # entries in a thousand ledgers: a broker takes some seconds to read them
_COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may ignore the signal
    "from streaming.__main__ import main; main()"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("snapshot-faults")) as running:
        yield running


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return _deployment(cluster, tmp_path_factory.mktemp("service"), classes="")


@pytest.fixture(scope="module")
def single(cluster: Cluster, service: Deployment) -> Scene:
    """An unloaded topic with a single snapshot; brokers write single snapshots until the fixture `segmented`."""
    space = namespace(cluster, "migrated")
    topic = topic_in(cluster, space, "orders")
    ends = "a" * 100 + "c" * 10
    with Transactions(cluster.serving.pulsar) as transactions:
        truth = aborted_ids(ends, transactions.run(topic, ends))

        def is_complete() -> bool:
            read = latest(service, space, SnapshotKind.SINGLE).get(topic)
            value = read.value if read is not None else None
            return isinstance(value, Snapshot) and value.aborts.rows == len(truth)

        wait_for(is_complete, "the snapshot of all aborts")
    topics.unload(cluster, topic)
    return Scene(space, topic, truth, 10)


@pytest.fixture(scope="module")
def migrated(cluster: Cluster, single: Scene, service: Deployment) -> Scene:
    """The same topic after its snapshot was migrated to parts, and from parts to segments."""
    return migrate_through_parts(service, single, SnapshotKind.SEGMENT)


@pytest.fixture(scope="module")
def segmented(cluster: Cluster, migrated: Scene) -> Cluster:
    """The same cluster with brokers that write segments."""
    restart(cluster, SEGMENTED)
    return cluster


def migrate_through_parts(service: Deployment, scene: Scene, kind: SnapshotKind) -> Scene:
    """Migrate the snapshot of an unloaded topic to parts, and from parts to the given form."""
    before = _form(service, scene)
    ids = set(before.aborts.ids.pairs())
    assert "would be converted" in service.call("snapshots", "migrate", "--dry-run", "--to", "parts", scene.topic)
    assert _form(service, scene).kind is before.kind
    _migrate(service, scene, "parts")
    assert _form(service, scene).kind is SnapshotKind.PARTS
    assert set(_form(service, scene).aborts.ids.pairs()) == ids >= scene.aborted
    _migrate(service, scene, "single" if kind is SnapshotKind.SINGLE else "segments")
    after = _form(service, scene)
    assert after.kind is (SnapshotKind.SINGLE if kind is SnapshotKind.SINGLE else SnapshotKind.INDEX)
    if after.max_read == before.max_read:  # else the broker finds the other ids again
        assert set(after.aborts.ids.pairs()) == ids
    return scene


def _migrate(service: Deployment, scene: Scene, to: str) -> None:
    output = service.call("snapshots", "migrate", "--yes", "--to", to, scene.topic)
    assert f"to {to}: " in output
    output = service.call("snapshots", "migrate", "--yes", "--to", to, scene.topic, code=4)
    assert f"in the form {to} already" in output


def _form(service: Deployment, scene: Scene) -> StoredForm:
    """Return the form of a topic's snapshots, as a migration reads them."""
    with repairs_for(service.settings) as repairs:
        own = ledgers_of(repairs.store, scene.topic)
    return migration.current(_stored(service, scene), scene.topic, own, (max(own), 1 << 40))


def _stored(service: Deployment, scene: Scene) -> Stored:
    with snapshot_topics(service.settings) as snapshots:
        present = snapshots.present(scene.space)
        kinds = [kind for kind in SnapshotKind if system_topic(scene.space, kind) in present]
        values = {kind: _values(snapshots.compacted(scene.space, kind, (scene.topic,)), scene.topic) for kind in kinds}
        reads = list(snapshots.stored(scene.space, SnapshotKind.SEGMENT)) if SnapshotKind.SEGMENT in kinds else []
    return Stored(values, {read.position: read.value for read in reads if isinstance(read.value, Segment)})


def _values(reads: Iterable[ReadValue], topic: str) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for read in reads:
        if read.is_null:
            values.pop(read.key, None)
        elif read.topic == topic:
            values[read.key] = encode_segment(read.value) if isinstance(read.value, Segment) else read.data
    return values


def test_a_single_snapshot_is_migrated_to_parts_and_to_segments(
    segmented: Cluster, service: Deployment, migrated: Scene
) -> None:
    with Transactions(segmented.serving.pulsar) as again:
        # right after a restart, a broker may read a snapshot for half a minute (docs/snapshots.md)
        assert reads_committed(again, migrated, 90)
        assert migrated.aborted <= recovered(service, migrated.space, migrated.topic)
        later = set(again.run(migrated.topic, "a" * 40, start=500))  # the broker continues from there
        wait_until_sealed(service, replace(migrated, aborted=migrated.aborted | later))
        assert reads_committed(again, migrated)
    lines = findings(service, "--namespace", migrated.space)
    assert reasons_for(lines, migrated.topic) <= {("WASTE", "NOT_NAMED")}, lines
    output = service.call("snapshots", "migrate", "--yes", "--to", "parts", migrated.topic, code=4)
    assert "is loaded: its broker would write its own snapshot over the new one" in output
    assert _form(service, migrated).kind is SnapshotKind.INDEX


def test_an_undo_restores_the_form_that_a_migration_removed(segmented: Cluster, service: Deployment) -> None:
    """In each direction, the old form is valid again with the same ids, and brokers read it."""
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "undone", 100)
    wait_until_sealed(service, scene)
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    _migrate_and_undo(service, scene, SnapshotKind.INDEX, "parts")
    _migrate_and_undo(service, scene, SnapshotKind.INDEX, "single")
    _check_complete(segmented, service, scene)
    _migrate(service, scene, "parts")
    _migrate_and_undo(service, scene, SnapshotKind.PARTS, "single")
    _migrate_and_undo(service, scene, SnapshotKind.PARTS, "segments")
    _migrate(service, scene, "single")
    _migrate_and_undo(service, scene, SnapshotKind.SINGLE, "parts")
    _migrate_and_undo(service, scene, SnapshotKind.SINGLE, "segments")
    _check_complete(segmented, service, scene)
    # a broker trims consumed messages at any time, and its snapshot has their ids until the next one
    reasons = reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic)
    assert reasons <= {("WASTE", "DEAD_IDS")}, lines


def test_a_migration_that_died_at_any_message_can_be_undone(segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "died", 100)
    wait_until_sealed(service, scene)
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    for to, number in (("parts", 1), ("parts", 2), ("parts", 3), ("single", 1), ("single", 2), ("single", 3)):
        _die_while_migrating(service, scene, to, number)
        service.call("snapshots", "undo", "--migrated", "--yes", "--topic", scene.topic)
        form = _form(service, scene)
        assert form.kind is SnapshotKind.INDEX
        assert form.aborts.rows >= 60
        assert set(form.aborts.ids.pairs()) <= scene.aborted
    _check_complete(segmented, service, scene)


def _die_while_migrating(service: Deployment, scene: Scene, to: str, number: int) -> None:
    """Migrate a topic's snapshot, and fail before the message with that number."""
    left = iter(range(number))

    class Dying(KeyedSender):
        def send(self, key: str, value: bytes | None) -> Position:
            if next(left, None) is None:
                raise UnavailableError("it died")
            return super().send(key, value)

    with migrations_for(service.settings) as migrations:
        dying = replace(migrations, sender=lambda topic: Dying(service.settings.pulsar, topic))
        with pytest.raises(UnavailableError, match="it died"):
            dying.migrate(scene.topic, to)


def _migrate_and_undo(service: Deployment, scene: Scene, old: SnapshotKind, to: str) -> None:
    """Migrate a topic whose snapshot has the form `old`, and undo the migration."""
    values, form = _stored(service, scene).latest[old], _form(service, scene)
    assert form.kind is old
    _migrate(service, scene, to)
    service.call("snapshots", "undo", "--migrated", "--yes", "--topic", scene.topic)
    after = _form(service, scene)
    assert after.kind is old
    if old is SnapshotKind.INDEX:  # its segments may have other positions, and the broker finds the tail again
        assert after.aborts.rows >= 60
        assert set(after.aborts.ids.pairs()) <= set(form.aborts.ids.pairs())
    else:
        assert _stored(service, scene).latest[old] == values
        assert set(after.aborts.ids.pairs()) == set(form.aborts.ids.pairs())


def _check_complete(cluster: Cluster, service: Deployment, scene: Scene) -> None:
    """Check that a broker that loads the topic has all aborted ids, and readers get only committed messages."""
    with Transactions(cluster.serving.pulsar) as again:
        assert reads_committed(again, scene, 90)
        with snapshot_topics(service.settings) as snapshots:
            buffer = snapshots.more.buffer(scene.topic)
        assert buffer is not None
        assert buffer.aborted == len(scene.aborted)
    topics.unload(cluster, scene.topic)


@pytest.fixture(scope="module")
def transactions(segmented: Cluster) -> Iterator[Transactions]:
    with Transactions(segmented.serving.pulsar) as opened:
        yield opened


def test_the_verification_of_a_repair_reads_every_message_of_a_compacted_topic(
    segmented: Cluster, service: Deployment, transactions: Transactions
) -> None:
    """A compacted reader would get only the last message of each key, and leave the others unverified."""
    topic = topic_in(segmented, namespace(segmented, "keyed"), "orders")
    transactions.run(topic, "aacca")
    topics.publish_keyed(segmented, topic, 30, 3)
    topics.compact(segmented, topic)
    with repairs_for(service.settings) as repairs:
        delivered = list(repairs.loader.delivered(topic))
    assert (len(delivered), sum(message is not None for message in delivered)) == (32, 2)


def test_a_repair_that_is_interrupted_is_resumed(segmented: Cluster, service: Deployment, tmp_path: Path) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "interrupted", 500)
    wait_for(lambda: recovered(service, scene.space, scene.topic) == scene.aborted, "the last aborts")
    lose_segments(segmented, scene.space)
    topics.unload(segmented, scene.topic)
    before = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].data
    output = _interrupt_repair(service, scene, signal.SIGINT, 3, tmp_path)
    assert "the repair was interrupted. The repair's index is published" in output
    assert "is not verified: run the same command again" in output
    assert "Traceback" not in output
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)  # the broker replays the topic, which a consumer has loaded
    wait_for_silence(service, scene)
    try:
        report = run_repair(service, scene.topic)
    except AssertionError as refused:
        if "disconnect its clients, and try again" not in str(refused):
            raise
        report = run_repair(service, scene.topic)  # the broker had loaded the topic in the middle of its replay
    else:
        assert report["went_on"]
    assert (report["is_verified"], report["not_written"]) == (True, "")
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
    assert ("DANGER", "DOUBLED_IDS") not in reasons_for(findings(service, "--namespace", scene.space), scene.topic)
    assert "it works" in service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    topics.unload(segmented, scene.topic)
    assert f"restored the index of {report['journal']}" in service.call(
        "snapshots", "undo", "--yes", "--topic", scene.topic
    )
    assert latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].data == before
    topics.unload(segmented, scene.topic)
    assert run_repair(service, scene.topic)["is_verified"]


def _interrupt_repair(service: Deployment, scene: Scene, number: signal.Signals, code: int, path: Path) -> str:
    """Start a repair, and send it a signal once its index is published; return its output."""
    log = path / "repair.txt"
    command = service.command("snapshots", "repair", "--yes", "--topic", scene.topic)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *command[3:]], stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(lambda: "has a new index" in log.read_text(), "the repair's index")
        process.send_signal(number)
        assert process.wait(60) == code, log.read_text()
    finally:
        process.kill()
    return log.read_text()


def _publish_partial_index(service: Deployment, scene: Scene) -> None:
    """Publish the index of a broker that dies during a replay: it names only the segments sealed since the loss.

    A test can't make a broker die at that moment.
    """

    def rows() -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
        with snapshot_topics(service.settings) as snapshots:
            stored = snapshots.stored(scene.space, SnapshotKind.SEGMENT)
            reads = [read for read in stored if read.topic == scene.topic]
        last = {read.sequence: (read.position, read.value) for read in reads if isinstance(read.value, Segment)}
        return [(number, position, value.marker) for number, (position, value) in sorted(last.items())]

    wait_for(lambda: bool(rows()), f"segments of {scene.topic}")
    index = encode_index(Index(scene.topic, entries_of(rows()), BEFORE_ALL, ids_of([])))
    publish_index(service, scene, index)


def test_a_repair_that_was_killed_is_resumed_and_does_not_load_the_topic_from_a_partial_replay(
    segmented: Cluster, service: Deployment, tmp_path: Path
) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "killed", 500)
    wait_for(lambda: recovered(service, scene.space, scene.topic) == scene.aborted, "the last aborts")
    lose_segments(segmented, scene.space)
    topics.unload(segmented, scene.topic)
    _interrupt_repair(service, scene, signal.SIGKILL, -signal.SIGKILL, tmp_path)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)  # the broker replays the topic, which a consumer has loaded
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    _publish_partial_index(service, scene)
    report = run_repair(service, scene.topic)
    assert (report["went_on"], report["is_verified"], report["not_written"]) == (True, True, "")
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
    assert reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic) <= {
        ("WASTE", "NOT_NAMED")
    }, lines


def test_a_repair_leaves_a_topic_to_the_broker_that_is_replaying_it(segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "replaying", 100)
    part_clients.publish(segmented.serving.pulsar, scene.topic, (b"m" for _number in range(MANY)))
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    _publish_partial_index(service, scene)
    with repairs_for(service.settings) as repairs, ThreadPoolExecutor(1) as pool:

        def has(state: str) -> bool:
            buffer = repairs.topics.more.buffer(scene.topic)
            return buffer is not None and buffer.state == state

        load = pool.submit(repairs.loader.load, scene.topic)
        wait_for(lambda: has("Initializing"), "a replay")
        with pytest.raises(SafetyError, match="its broker is replaying it: wait until it is loaded"):
            repairs.repair(scene.topic)
        assert repairs.topics.more.buffer(scene.topic) is not None  # the repair did not unload the topic
        load.result(timeout=PATIENCE_SECONDS)  # the load ends before the replay does
        wait_for(lambda: has("Ready"), "the end of the replay")
    output = service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    # not all old ids are known; or, since the replay ended, the broker has written a whole index
    assert "has 100 aborted ids" in output or "every segment that it needs is readable" in output
    assert reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic) <= {
        ("WASTE", "NOT_NAMED")
    }, lines


def test_an_index_that_was_written_during_a_replay_is_found_and_replaced(
    segmented: Cluster, service: Deployment
) -> None:
    """A broker that stopped during its replay leaves such an index; here the test publishes it."""
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "half", 200)
    wait_until_sealed(service, scene)
    wait_for_silence(service, scene)
    index = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].value
    assert isinstance(index, Index)
    partial = encode_index(Index(scene.topic, index.entries, BEFORE_ALL, ids_of([])))
    publish_index(service, scene, partial)
    lines = findings(service, "--namespace", scene.space)
    assert ("DANGER", "NO_MAX_READ") in reasons_for(lines, scene.topic), lines
    output = service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    assert "has 200 aborted ids" in output
    assert "the replaced index was written during a replay, so not all old ids are known" in output
    assert reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic) <= {
        ("WASTE", "NOT_NAMED")
    }, lines
    assert "holds no repair" in service.call("snapshots", "undo", "--yes", "--topic", scene.topic, code=2)
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
    assert ("DANGER", "DOUBLED_IDS") not in reasons_for(findings(service, "--namespace", scene.space), scene.topic)


def test_a_topic_whose_index_is_lost_is_found_and_gets_a_new_index_with_the_next_transaction(
    segmented: Cluster, service: Deployment
) -> None:
    scene = create_silent_scene(segmented, service, "indexless", 100)
    publish_index(service, scene, None)
    assert ("DANGER", "INDEX_LOST") in reasons_for(findings(service, "--namespace", scene.space), scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        again.run(scene.topic, "c", start=900)

        def is_restored() -> bool:
            return not latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].is_null

        wait_for(is_restored, "another index")
    assert reasons_for(lines := findings(service, "--namespace", scene.space), scene.topic) == set(), lines
    topics.unload(segmented, scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, replace(scene, commits=scene.commits + 1))


def test_a_broker_that_has_fewer_ids_than_the_snapshot_is_found_and_reads_the_snapshot_at_the_next_load(
    segmented: Cluster, service: Deployment
) -> None:
    space = namespace(segmented, "fewer")
    topic = topic_in(segmented, space, "orders")
    with Transactions(segmented.serving.pulsar) as own:
        own.run(topic, "a" * 50 + "c" * 5)
    scene = Scene(space, topic, set(), 5)
    wait_for(lambda: topic in latest(service, space, SnapshotKind.INDEX), "an index")
    wait_for_silence(service, scene)
    index = latest(service, space, SnapshotKind.INDEX)[topic].value
    assert isinstance(index, Index)
    marker = (ledgers(segmented, topic)[0], 1)
    forgotten = Segment(topic, 90, marker, ids_of([(0, (1 << 40) + number) for number in range(200)]))
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        position = sender.send(f"multiple-90-{topic}", encode_segment(forgotten))
    rows = [(90, position, marker), *sealed_segments.named_segments(index)]
    with KeyedSender(service.settings.pulsar, system_topic(space, SnapshotKind.INDEX)) as sender:
        sender.send(topic, encode_index(Index(topic, entries_of(rows), index.max_read, index.tail)))
    lines = [line for line in findings(service, "--namespace", space) if line.get("reason") == "IDS_LOST"]
    assert [(line["class"], line["topic"]) for line in lines] == [("DANGER", topic)]
    topics.unload(segmented, topic)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
        assert ("DANGER", "IDS_LOST") not in reasons_for(findings(service, "--namespace", space), topic)


def test_a_value_close_to_the_size_limit_of_messages_is_found(segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = create_scene(segmented, service, own, "large", 100)
    marker = (ledgers(segmented, scene.topic)[-1], 0)
    large = encode_segment(
        Segment(scene.topic, 99, marker, ids_of([(0, (1 << 34) + number) for number in range(650_000)]))
    )
    assert 4_194_304 < len(large) < 5_200_000
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        sender.send(f"multiple-99-{scene.topic}", large)
    lines = [line for line in findings(service, "--namespace", scene.space) if line.get("reason") == "NEAR_LIMIT"]
    assert [(line["class"], line["key"], line["ids"]) for line in lines] == [
        ("DANGER", f"multiple-99-{scene.topic}", 650_000)
    ]
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)


def test_ids_that_were_sealed_twice_are_found_before_a_trim_makes_the_broker_forget_them(
    segmented: Cluster, service: Deployment
) -> None:
    """Fault F after a trim: aborted messages are readable until the topic is loaded again."""
    scene = double_ids(segmented, service, "forgets")
    end_left_open(segmented, scene)
    assert ("DANGER", "DOUBLED_IDS") in reasons_for(findings(service, "--namespace", scene.space), scene.topic)
    trim = ("snapshots", "trim", "--yes", "--topic", scene.topic)
    assert "a trim can lose them all: repair it first" in service.call(*trim, code=4)
    topics.unload(segmented, scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        again.run(scene.topic, "c", start=3_000)
        first = ledgers(segmented, scene.topic)[-1]
        again.run(scene.topic, "a" * 120, start=4_000)

        def names_live_segments() -> bool:
            index = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].value
            rows = sealed_segments.named_segments(index) if isinstance(index, Index) else ()
            return sum(marker[0] > first for _number, _position, marker in rows) >= 2

        wait_for(names_live_segments, "segments of the last aborts")
        with snapshot_topics(service.settings) as snapshots:
            snapshots.more.reset_cursor(scene.topic, SUBSCRIPTION, (first, 0))
        topics.trim(segmented, scene.topic)
        wait_for(lambda: ledgers(segmented, scene.topic)[0] >= first, f"trimming of {scene.topic}")
        again.run(scene.topic, "c", start=5_000)
        lines = findings(service, "--namespace", scene.space)
        assert ("DANGER", "IDS_LOST") in reasons_for(lines, scene.topic), lines
        values = again.read(scene.topic, "reader-1", 10)
        assert [value for value in values if value.startswith("a")]
    topics.unload(segmented, scene.topic)  # the remedy that the audit names
    with Transactions(segmented.serving.pulsar) as again:
        values = again.read(scene.topic, "reader-2", 10)
        assert values
        assert not [value for value in values if value.startswith("a")]
    assert ("DANGER", "IDS_LOST") not in reasons_for(findings(service, "--namespace", scene.space), scene.topic)


def test_segments_are_migrated_to_parts_and_to_a_single_snapshot(
    segmented: Cluster, service: Deployment, migrated: Scene
) -> None:
    """The last test of the module: brokers write single snapshots from now on."""
    with Transactions(segmented.serving.pulsar) as own:
        own.run(migrated.topic, "a" * 60, start=1_000)
    with snapshot_topics(service.settings) as snapshots:
        buffer = snapshots.more.buffer(migrated.topic)
    assert buffer is not None
    topics.unload(segmented, migrated.topic)
    _migrate(service, migrated, "parts")
    output = service.call("snapshots", "undo", "--yes", "--migrated", "--topic", migrated.topic)
    assert f"{migrated.topic}: published again in {SnapshotKind.INDEX}" in output
    with Transactions(segmented.serving.pulsar) as again:  # the broker reads the restored index
        assert reads_committed(again, migrated, 90)
        with snapshot_topics(service.settings) as snapshots:
            restored = snapshots.more.buffer(migrated.topic)
        assert restored is not None
        assert restored.aborted == buffer.aborted
    topics.unload(segmented, migrated.topic)
    migrate_through_parts(service, migrated, SnapshotKind.SINGLE)
    restart(segmented, {"transactionBufferSegmentedSnapshotEnabled": "false"}, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        values = again.read(migrated.topic, "reader-back", 90)  # a broker reads the snapshot for half a minute or less
        with snapshot_topics(service.settings) as snapshots:
            after = snapshots.more.buffer(migrated.topic)
        assert after is not None
        assert (after.snapshot_type, after.aborted) == ("Single", buffer.aborted), values
        assert sorted(values) == sorted(f"c{number}" for number in range(100, 110))
    lines = findings(service, "--namespace", migrated.space)
    # a ledger that no subscription holds may be trimmed by now, and its ids with it
    assert reasons_for(lines, migrated.topic) <= {("WASTE", "DEAD_IDS")}, lines
