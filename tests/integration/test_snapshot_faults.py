"""Rarer faults of transaction-buffer snapshots on a real broker, and what stands between the forms of a snapshot.

test_snapshots.py has the others; both make clusters of their own. The Java client's record is the truth here, too.
"""

import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from streaming.adapters.pulsar.keyed import KeyedSender
from streaming.adapters.pulsar.snapshot_topics import system_topic
from streaming.errors import SafetyError, UnavailableError
from streaming.sandbox import clients, topics
from streaming.sandbox.cluster import Cluster
from streaming.snapshots.audit.messages import snapshot_topics
from streaming.snapshots.repair.wiring import migrations_for, repairs_for
from tests.integration.conftest import Deployment, _deployment
from tests.integration.snapshot_scenes import (
    PATIENCE_SECONDS,
    SEGMENTED,
    SUBSCRIPTION,
    Scene,
    aborted_ids,
    cluster_in,
    double_ids,
    end_left_open,
    findings,
    latest,
    ledgers,
    lose_segments,
    made,
    made_and_silent,
    namespace,
    publish_index,
    reads_committed,
    recovered,
    repaired,
    restart,
    told,
    topic_in,
    wait_for,
    wait_for_silence,
    wait_until_sealed,
)
from tests.integration.transactions import Transactions
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots import migration, segments
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, Segment, Snapshot, encode_index, encode_segment, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.migration import Stored, StoredForm
from udfs.snapshots.values import ReadValue

pytestmark = [pytest.mark.cluster, pytest.mark.long]
MANY = 10_000  # entries in a thousand ledgers, which a broker reads for some seconds
_COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell may have it ignored
    "from streaming.__main__ import main; main()"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("snapshot-faults")) as made_one:
        yield made_one


@pytest.fixture(scope="module")
def service(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return _deployment(cluster, tmp_path_factory.mktemp("service"), classes="")


@pytest.fixture(scope="module")
def single(cluster: Cluster, service: Deployment) -> Scene:
    """A topic with a single snapshot, and not loaded; brokers write single ones until `segmented`."""
    space = namespace(cluster, "migrated")
    topic = topic_in(cluster, space, "orders")
    ends = "a" * 100 + "c" * 10
    with Transactions(cluster.serving.pulsar) as transactions:
        truth = aborted_ids(ends, transactions.run(topic, ends))

        def is_whole() -> bool:
            read = latest(service, space, SnapshotKind.SINGLE).get(topic)
            value = read.value if read is not None else None
            return isinstance(value, Snapshot) and value.aborts.rows == len(truth)

        wait_for(is_whole, "the snapshot of all aborts")
    topics.unload(cluster, topic)
    return Scene(space, topic, truth, 10)


@pytest.fixture(scope="module")
def migrated(cluster: Cluster, single: Scene, service: Deployment) -> Scene:
    """The same topic once its snapshot went from a single one to parts, and from these to segments."""
    return migrated_to(service, single, SnapshotKind.SEGMENT)


@pytest.fixture(scope="module")
def segmented(cluster: Cluster, migrated: Scene) -> Cluster:
    """The same cluster once its brokers write segments."""
    restart(cluster, SEGMENTED)
    return cluster


def migrated_to(service: Deployment, scene: Scene, kind: SnapshotKind) -> Scene:
    """Bring the snapshot of a topic that is not loaded into parts, and from there into that form."""
    before = _form(service, scene)
    ids = set(before.aborts.ids.pairs())
    assert "would go" in service.call("snapshots", "migrate", "--dry-run", "--to", "parts", scene.topic)
    assert _form(service, scene).kind is before.kind
    _migrate(service, scene, "parts")
    assert _form(service, scene).kind is SnapshotKind.PARTS
    assert set(_form(service, scene).aborts.ids.pairs()) == ids >= scene.aborted
    _migrate(service, scene, "single" if kind is SnapshotKind.SINGLE else "segments")
    after = _form(service, scene)
    assert after.kind is (SnapshotKind.SINGLE if kind is SnapshotKind.SINGLE else SnapshotKind.INDEX)
    if after.max_read == before.max_read:  # else its broker finds the others again
        assert set(after.aborts.ids.pairs()) == ids
    return scene


def _migrate(service: Deployment, scene: Scene, to: str) -> None:
    said = service.call("snapshots", "migrate", "--yes", "--to", to, scene.topic)
    assert f"to {to}: " in said
    again = service.call("snapshots", "migrate", "--yes", "--to", to, scene.topic, code=4)
    assert f"in the form {to} already" in again


def _form(service: Deployment, scene: Scene) -> StoredForm:
    """What a topic's snapshots say now, as a migration reads them."""
    with repairs_for(service.settings) as repairs:
        own = repairs.reader.ledgers(scene.topic)
    return migration.current(_stored(service, scene), scene.topic, own, (max(own), 1 << 40))


def _stored(service: Deployment, scene: Scene) -> Stored:
    with snapshot_topics(service.settings) as found:
        present = found.present(scene.space)
        kinds = [kind for kind in SnapshotKind if system_topic(scene.space, kind) in present]
        values = {kind: _values(found.compacted(scene.space, kind, (scene.topic,)), scene.topic) for kind in kinds}
        reads = list(found.stored(scene.space, SnapshotKind.SEGMENT)) if SnapshotKind.SEGMENT in kinds else []
    return Stored(values, {read.position: read.value for read in reads if isinstance(read.value, Segment)})


def _values(reads: Iterable[ReadValue], topic: str) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for read in reads:
        if read.is_null:
            values.pop(read.key, None)
        elif read.topic == topic:
            values[read.key] = encode_segment(read.value) if isinstance(read.value, Segment) else read.data
    return values


def test_a_snapshot_goes_from_a_single_one_to_parts_to_segments(
    segmented: Cluster, service: Deployment, migrated: Scene
) -> None:
    with Transactions(segmented.serving.pulsar) as again:
        # right after a restart, a broker may read a snapshot for half a minute (docs/snapshots.md)
        assert reads_committed(again, migrated, 90)
        assert migrated.aborted <= recovered(service, migrated.space, migrated.topic)
        later = set(again.run(migrated.topic, "a" * 40, start=500))  # and its broker goes on from there
        wait_until_sealed(service, replace(migrated, aborted=migrated.aborted | later))
        assert reads_committed(again, migrated)
    found = findings(service, "--namespace", migrated.space)
    assert told(found, migrated.topic) <= {("WASTE", "NOT_NAMED")}, found
    said = service.call("snapshots", "migrate", "--yes", "--to", "parts", migrated.topic, code=4)
    assert "is loaded: its broker would write its own snapshot over the new one" in said
    assert _form(service, migrated).kind is SnapshotKind.INDEX


def test_an_undo_restores_the_form_that_a_migration_removed(segmented: Cluster, service: Deployment) -> None:
    """Each direction: the old form counts again with the same ids, and brokers read it."""
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "undone", 100)
    wait_until_sealed(service, scene)
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    _undone(service, scene, SnapshotKind.INDEX, "parts")
    _undone(service, scene, SnapshotKind.INDEX, "single")
    _is_read_whole(segmented, service, scene)
    _migrate(service, scene, "parts")
    _undone(service, scene, SnapshotKind.PARTS, "single")
    _undone(service, scene, SnapshotKind.PARTS, "segments")
    _migrate(service, scene, "single")
    _undone(service, scene, SnapshotKind.SINGLE, "parts")
    _undone(service, scene, SnapshotKind.SINGLE, "segments")
    _is_read_whole(segmented, service, scene)
    assert told(found := findings(service, "--namespace", scene.space), scene.topic) == set(), found


def test_a_migration_that_died_at_any_message_can_be_undone(segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "died", 100)
    wait_until_sealed(service, scene)
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    for to, number in (("parts", 1), ("parts", 2), ("parts", 3), ("single", 1), ("single", 2), ("single", 3)):
        _dies(service, scene, to, number)
        service.call("snapshots", "undo", "--migrated", "--yes", "--topic", scene.topic)
        form = _form(service, scene)
        assert form.kind is SnapshotKind.INDEX
        assert form.aborts.rows >= 60
        assert set(form.aborts.ids.pairs()) <= scene.aborted
    _is_read_whole(segmented, service, scene)


def _dies(service: Deployment, scene: Scene, to: str, number: int) -> None:
    """Migrate a topic's snapshot, and end at the message of that number."""
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


def _undone(service: Deployment, scene: Scene, old: SnapshotKind, to: str) -> None:
    """Migrate a topic whose snapshot has the form `old`, and undo that."""
    values, form = _stored(service, scene).latest[old], _form(service, scene)
    assert form.kind is old
    _migrate(service, scene, to)
    service.call("snapshots", "undo", "--migrated", "--yes", "--topic", scene.topic)
    after = _form(service, scene)
    assert after.kind is old
    if old is SnapshotKind.INDEX:  # its segments may be elsewhere, and the broker finds the tail again
        assert after.aborts.rows >= 60
        assert set(after.aborts.ids.pairs()) <= set(form.aborts.ids.pairs())
    else:
        assert _stored(service, scene).latest[old] == values
        assert set(after.aborts.ids.pairs()) == set(form.aborts.ids.pairs())


def _is_read_whole(cluster: Cluster, service: Deployment, scene: Scene) -> None:
    """Whether a broker that loads the topic has all aborted ids, and readers get what was committed alone."""
    with Transactions(cluster.serving.pulsar) as again:
        assert reads_committed(again, scene, 90)
        with snapshot_topics(service.settings) as found:
            buffer = found.more.buffer(scene.topic)
        assert buffer is not None
        assert buffer.aborted == len(scene.aborted)
    topics.unload(cluster, scene.topic)


@pytest.fixture(scope="module")
def transactions(segmented: Cluster) -> Iterator[Transactions]:
    with Transactions(segmented.serving.pulsar) as opened:
        yield opened


def test_a_reader_of_a_compacted_topic_is_given_every_message_where_a_repair_is_verified(
    segmented: Cluster, service: Deployment, transactions: Transactions
) -> None:
    """A compacted reader would get the last message of each key, and nobody would have looked at the others."""
    topic = topic_in(segmented, namespace(segmented, "keyed"), "orders")
    transactions.run(topic, "aacca")
    topics.publish_keyed(segmented, topic, 30, 3)
    topics.compact(segmented, topic)
    with repairs_for(service.settings) as repairs:
        found = list(repairs.loader.delivered(topic))
    assert (len(found), sum(each is not None for each in found)) == (32, 2)


def test_a_repair_that_is_interrupted_is_gone_on_with(segmented: Cluster, service: Deployment, tmp_path: Path) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "interrupted", 500)
    wait_for(lambda: recovered(service, scene.space, scene.topic) == scene.aborted, "the last aborts")
    lose_segments(segmented, scene.space)
    topics.unload(segmented, scene.topic)
    before = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].data
    said = _cut_short(service, scene, signal.SIGINT, 3, tmp_path)
    assert "the repair was interrupted. The repair's index is published" in said
    assert "is not verified: run the same command again" in said
    assert "Traceback" not in said
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)  # the broker replays it, whoever loads it
    wait_for_silence(service, scene)
    done = repaired(service, scene.topic)
    assert (done["went_on"], done["is_verified"], done["not_written"]) == (True, True, "")
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
    assert ("DANGER", "DOUBLED_IDS") not in told(findings(service, "--namespace", scene.space), scene.topic)
    assert "it works" in service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    topics.unload(segmented, scene.topic)
    assert f"restored the index of {done['journal']}" in service.call(
        "snapshots", "undo", "--yes", "--topic", scene.topic
    )
    assert latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].data == before
    topics.unload(segmented, scene.topic)
    assert repaired(service, scene.topic)["is_verified"]


def _cut_short(service: Deployment, scene: Scene, by: signal.Signals, code: int, path: Path) -> str:
    """Begin a repair, and end it once its index is published; returns what it said."""
    log = path / "repair.txt"
    command = service.command("snapshots", "repair", "--yes", "--topic", scene.topic)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *command[3:]], stdout=out, stderr=out, start_new_session=True
        )
    try:
        wait_for(lambda: "has a new index" in log.read_text(), "the repair's index")
        process.send_signal(by)
        assert process.wait(60) == code, log.read_text()
    finally:
        process.kill()
    return log.read_text()


def _publish_half(service: Deployment, scene: Scene) -> None:
    """Publish what a broker leaves that dies in the midst of a replay: an index of what it has sealed since the loss.

    No broker does so on demand. It names what lies there of the topic's segments.
    """

    def rows() -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
        with snapshot_topics(service.settings) as found:
            reads = [each for each in found.stored(scene.space, SnapshotKind.SEGMENT) if each.topic == scene.topic]
        last = {each.sequence: (each.position, each.value) for each in reads if isinstance(each.value, Segment)}
        return [(number, place, value.marker) for number, (place, value) in sorted(last.items())]

    wait_for(lambda: bool(rows()), f"segments of {scene.topic}")
    half = encode_index(Index(scene.topic, entries_of(rows()), BEFORE_ALL, ids_of([])))
    publish_index(service, scene, half)


def test_a_repair_that_was_killed_is_gone_on_with_and_its_topic_not_loaded_from_half_a_replay(
    segmented: Cluster, service: Deployment, tmp_path: Path
) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "killed", 500)
    wait_for(lambda: recovered(service, scene.space, scene.topic) == scene.aborted, "the last aborts")
    lose_segments(segmented, scene.space)
    topics.unload(segmented, scene.topic)
    _cut_short(service, scene, signal.SIGKILL, -signal.SIGKILL, tmp_path)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)  # the broker replays it, whoever loads it
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    _publish_half(service, scene)
    done = repaired(service, scene.topic)
    assert (done["went_on"], done["is_verified"], done["not_written"]) == (True, True, "")
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
    assert told(found := findings(service, "--namespace", scene.space), scene.topic) <= {("WASTE", "NOT_NAMED")}, found


def test_a_repair_leaves_a_topic_to_the_broker_that_is_replaying_it(segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "replaying", 100)
    clients.publish(segmented.serving.pulsar, scene.topic, (b"m" for _number in range(MANY)))
    wait_for_silence(service, scene)
    topics.unload(segmented, scene.topic)
    _publish_half(service, scene)
    with repairs_for(service.settings) as repairs, ThreadPoolExecutor(1) as pool:

        def has(state: str) -> bool:
            buffer = repairs.topics.more.buffer(scene.topic)
            return buffer is not None and buffer.state == state

        loads = pool.submit(repairs.loader.load, scene.topic)
        wait_for(lambda: has("Initializing"), "a replay")
        with pytest.raises(SafetyError, match="its broker is replaying it: wait until it is loaded"):
            repairs.repair(scene.topic)
        assert repairs.topics.more.buffer(scene.topic) is not None  # nobody unloaded it
        loads.result(timeout=PATIENCE_SECONDS)  # which ends before the replay does
        wait_for(lambda: has("Ready"), "the end of the replay")
    said = service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)  # not all old ids are known
    assert "has 100 aborted ids" in said
    assert told(found := findings(service, "--namespace", scene.space), scene.topic) <= {("WASTE", "NOT_NAMED")}, found


def test_an_index_that_was_written_in_the_midst_of_a_replay_is_found_and_replaced(
    segmented: Cluster, service: Deployment
) -> None:
    """A broker that stopped in its replay leaves such a one; none does so on demand, so it is published here."""
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "half", 200)
    wait_until_sealed(service, scene)
    wait_for_silence(service, scene)
    index = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].value
    assert isinstance(index, Index)
    half = encode_index(Index(scene.topic, index.entries, BEFORE_ALL, ids_of([])))
    publish_index(service, scene, half)
    found = findings(service, "--namespace", scene.space)
    assert ("DANGER", "NO_MAX_READ") in told(found, scene.topic), found
    said = service.call("snapshots", "repair", "--yes", "--topic", scene.topic, code=4)
    assert "has 200 aborted ids" in said
    assert "not verified: what was replaced was written in the midst of a replay" in said
    assert told(found := findings(service, "--namespace", scene.space), scene.topic) <= {("WASTE", "NOT_NAMED")}, found
    assert "holds no repair" in service.call("snapshots", "undo", "--yes", "--topic", scene.topic, code=2)
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
    assert ("DANGER", "DOUBLED_IDS") not in told(findings(service, "--namespace", scene.space), scene.topic)


def test_a_topic_whose_index_is_lost_is_found_and_gets_another_with_the_next_transaction(
    segmented: Cluster, service: Deployment
) -> None:
    scene = made_and_silent(segmented, service, "indexless", 100)
    publish_index(service, scene, None)
    assert ("DANGER", "INDEX_LOST") in told(findings(service, "--namespace", scene.space), scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        again.run(scene.topic, "c", start=900)

        def is_back() -> bool:
            return not latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].is_null

        wait_for(is_back, "another index")
    assert told(found := findings(service, "--namespace", scene.space), scene.topic) == set(), found
    topics.unload(segmented, scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, replace(scene, commits=scene.commits + 1))


def test_a_broker_that_has_fewer_ids_than_the_snapshot_is_found_and_reads_it_when_it_loads_the_topic(
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
    forgotten = Segment(topic, 90, marker, ids_of([(0, (1 << 40) + each) for each in range(200)]))
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        place = sender.send(f"multiple-90-{topic}", encode_segment(forgotten))
    rows = [(90, place, marker), *segments.named_segments(index)]
    with KeyedSender(service.settings.pulsar, system_topic(space, SnapshotKind.INDEX)) as sender:
        sender.send(topic, encode_index(Index(topic, entries_of(rows), index.max_read, index.tail)))
    lines = [each for each in findings(service, "--namespace", space) if each.get("reason") == "IDS_LOST"]
    assert [(each["class"], each["topic"]) for each in lines] == [("DANGER", topic)]
    topics.unload(segmented, topic)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)
        assert ("DANGER", "IDS_LOST") not in told(findings(service, "--namespace", space), topic)


def test_a_value_that_is_close_to_what_a_message_may_have_is_found(segmented: Cluster, service: Deployment) -> None:
    with Transactions(segmented.serving.pulsar) as own:
        scene = made(segmented, service, own, "large", 100)
    marker = (ledgers(segmented, scene.topic)[-1], 0)
    large = encode_segment(Segment(scene.topic, 99, marker, ids_of([(0, (1 << 34) + each) for each in range(650_000)])))
    assert 4_194_304 < len(large) < 5_200_000
    with KeyedSender(service.settings.pulsar, scene.segments) as sender:
        sender.send(f"multiple-99-{scene.topic}", large)
    lines = [each for each in findings(service, "--namespace", scene.space) if each.get("reason") == "NEAR_LIMIT"]
    assert [(each["class"], each["key"], each["ids"]) for each in lines] == [
        ("DANGER", f"multiple-99-{scene.topic}", 650_000)
    ]
    restart(segmented, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        assert reads_committed(again, scene)


def test_ids_that_were_sealed_twice_are_told_before_a_trim_makes_the_broker_forget_all(
    segmented: Cluster, service: Deployment
) -> None:
    """Fault F to its end: aborted messages are readable until the topic is loaded again."""
    scene = double_ids(segmented, service, "forgets")
    end_left_open(segmented, scene)
    assert ("DANGER", "DOUBLED_IDS") in told(findings(service, "--namespace", scene.space), scene.topic)
    trim = ("snapshots", "trim", "--yes", "--topic", scene.topic)
    assert "a trim can lose them all: repair it first" in service.call(*trim, code=4)
    topics.unload(segmented, scene.topic)
    with Transactions(segmented.serving.pulsar) as again:
        again.run(scene.topic, "c", start=3_000)
        first = ledgers(segmented, scene.topic)[-1]
        again.run(scene.topic, "a" * 120, start=4_000)

        def names_live_ones() -> bool:
            index = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].value
            markers = [marker for _n, _at, marker in segments.named_segments(index)] if isinstance(index, Index) else []
            return sum(marker[0] > first for marker in markers) >= 2

        wait_for(names_live_ones, "segments of the last aborts")
        with snapshot_topics(service.settings) as found:
            found.more.reset_cursor(scene.topic, SUBSCRIPTION, (first, 0))
        topics.trim(segmented, scene.topic)
        wait_for(lambda: ledgers(segmented, scene.topic)[0] >= first, f"trimming of {scene.topic}")
        again.run(scene.topic, "c", start=5_000)
        found_now = findings(service, "--namespace", scene.space)
        assert ("DANGER", "IDS_LOST") in told(found_now, scene.topic), found_now
        values = again.read(scene.topic, "reader-1", 10)
        assert [value for value in values if value.startswith("a")]
    topics.unload(segmented, scene.topic)  # what the audit says is to be done
    with Transactions(segmented.serving.pulsar) as again:
        values = again.read(scene.topic, "reader-2", 10)
        assert values
        assert not [value for value in values if value.startswith("a")]
    assert ("DANGER", "IDS_LOST") not in told(findings(service, "--namespace", scene.space), scene.topic)


def test_a_snapshot_goes_back_from_segments_to_parts_to_a_single_one(
    segmented: Cluster, service: Deployment, migrated: Scene
) -> None:
    """The last of all: brokers write single snapshots from now on."""
    with Transactions(segmented.serving.pulsar) as own:
        own.run(migrated.topic, "a" * 60, start=1_000)
    with snapshot_topics(service.settings) as found:
        buffer = found.more.buffer(migrated.topic)
    assert buffer is not None
    topics.unload(segmented, migrated.topic)
    _migrate(service, migrated, "parts")
    said = service.call("snapshots", "undo", "--yes", "--migrated", "--topic", migrated.topic)
    assert f"{migrated.topic}: published again in {SnapshotKind.INDEX}" in said
    with Transactions(segmented.serving.pulsar) as again:  # whose broker reads what was put back
        assert reads_committed(again, migrated, 90)
        with snapshot_topics(service.settings) as found:
            put_back = found.more.buffer(migrated.topic)
        assert put_back is not None
        assert put_back.aborted == buffer.aborted
    topics.unload(segmented, migrated.topic)
    migrated_to(service, migrated, SnapshotKind.SINGLE)
    restart(segmented, {"transactionBufferSegmentedSnapshotEnabled": "false"}, kill=True)
    with Transactions(segmented.serving.pulsar) as again:
        values = again.read(migrated.topic, "reader-back", 90)  # a broker reads the snapshot for half a minute or less
        with snapshot_topics(service.settings) as found:
            after = found.more.buffer(migrated.topic)
        assert after is not None
        assert (after.snapshot_type, after.aborted) == ("Single", buffer.aborted), values
        assert sorted(values) == sorted(f"c{number}" for number in range(100, 110))
    found_now = findings(service, "--namespace", migrated.space)
    # a ledger that no subscription holds may be trimmed by now, and its ids with it
    assert told(found_now, migrated.topic) <= {("WASTE", "DEAD_IDS")}, found_now
