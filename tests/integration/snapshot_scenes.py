"""Topics whose snapshots have Pulsar 4.0.8's faults, on a broker that writes small segments."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from streaming.adapters.pulsar.snapshots.keyed import KeyedSender
from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.errors import UnavailableError
from streaming.sandbox import topics
from streaming.sandbox.cluster import Cluster, up
from streaming.sandbox.home import Part
from streaming.sandbox.parts import part_clients
from streaming.snapshots.snapshot_namespaces import snapshot_topics
from tests.integration.conftest import Deployment, running_cluster
from tests.integration.transactions import Transactions, TxnId, admin
from udfs.records import LedgerComponent
from udfs.snapshots import sealed_segments
from udfs.snapshots.codec import Index, Segment
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue

SINGLE = {
    "transactionCoordinatorEnabled": "true",
    "transactionBufferSnapshotMaxTransactionCount": "20",
    "transactionBufferSnapshotMinTimeInMillis": "1000",
    "brokerServiceCompactionMonitorIntervalInSeconds": "3600",  # the scenes compact at fixed moments
}
SEGMENTED = {"transactionBufferSegmentedSnapshotEnabled": "true", "transactionBufferSnapshotSegmentSize": "140"}
SUBSCRIPTION = "s"
PATIENCE_SECONDS = 120


def restart(cluster: Cluster, settings: Mapping[str, str] | None = None, *, kill: bool = False) -> None:
    """Stop or kill the broker, and start it with further settings."""
    (broker,) = cluster.spec.all_of(Part.BROKER)
    if kill:
        process = cluster.process(broker)
        assert process is not None
        process.kill()
        process.wait(30)
    cluster.stop(broker)
    up(cluster.home.root, broker_settings=settings)


@contextmanager
def cluster_in(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Run a cluster with transactions and single snapshots, and with further settings of its brokers."""
    with running_cluster(home, broker_settings={**SINGLE, **(settings or {})}) as running:
        yield running


def namespace(cluster: Cluster, name: str) -> str:
    """Create a namespace."""
    admin(cluster, "PUT", f"v2/namespaces/public/{name}", {})
    return f"public/{name}"


def topic_in(cluster: Cluster, space: str, name: str) -> str:
    """Create a topic whose subscription reads nothing, so that no ledger is trimmed."""
    topic = f"persistent://{space}/{name}"
    part_clients.subscribe(cluster.serving.pulsar, topic, [SUBSCRIPTION])
    return topic


def ledgers(cluster: Cluster, topic: str) -> list[int]:
    return topics.data_ledgers(cluster, topic)


def segments_of(cluster: Cluster, space: str) -> str:
    return system_topic(space, SnapshotKind.SEGMENT)


def lose_segments(cluster: Cluster, space: str) -> None:
    """Compact the segments topic, as brokers do every minute, and trim its old ledgers."""
    topic = segments_of(cluster, space)
    before = ledgers(cluster, topic)
    topics.compact(cluster, topic)
    topics.trim(cluster, topic)
    topics.wait_for(lambda: ledgers(cluster, topic)[0] != before[0], f"trimming of {topic}", seconds=120)


def findings(service: Deployment, *arguments: str) -> list[dict[str, Any]]:
    """Return the lines of `snapshots audit --json`, the last with the totals; check that the exit code fits them."""
    command = ("snapshots", "audit", "--json", "--recheck-seconds", "1", *arguments)
    return _lines(service.run(*command, code=_code_of, seconds=600))


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def _code_of(text: str) -> int:
    lines = _lines(text)
    is_grave = any(line.get("class") in ("MISSING", "DANGER") for line in lines)
    return 4 if not lines or is_grave or not lines[-1]["complete"] else 0


def committed(values: list[str]) -> list[str]:
    return [value for value in values if value.startswith("c")]


def aborted_ids(ends: str, ids: list[TxnId]) -> set[TxnId]:
    return {txn for end, txn in zip(ends, ids, strict=True) if end == "a"}


def allowing(service: Deployment) -> Deployment:
    """Allow the service to remove snapshots, too."""
    components = ", ".join(f'"{component}"' for component in LedgerComponent)
    text = service.config.read_text().replace("[safety]\n", f"[safety]\nallowed_components = [{components}]\n")
    service.config.write_text(text)
    return service


def wait_for(condition: Callable[[], bool], what: str) -> None:
    topics.wait_for(condition, what, seconds=PATIENCE_SECONDS)


def latest(service: Deployment, space: str, kind: SnapshotKind) -> dict[str, ReadValue]:
    with snapshot_topics(service.settings) as snapshots:
        return {read.key: read for read in snapshots.compacted(space, kind)}


def recovered(service: Deployment, space: str, topic: str) -> set[tuple[int, int]]:
    """Return the ids that a broker would recover from the index and the segments at their positions."""
    index = latest(service, space, SnapshotKind.INDEX)[topic].value
    with snapshot_topics(service.settings) as snapshots:
        stored = list(snapshots.stored(space, SnapshotKind.SEGMENT))
    values = {read.position: read.value for read in stored if isinstance(read.value, Segment)}
    assert isinstance(index, Index)
    return set(sealed_segments.recover(index, values, (1 << 60, 0)).ids.pairs())


def reasons_for(lines: list[dict[str, Any]], topic: str) -> set[tuple[str, str]]:
    return {(line["class"], line["reason"]) for line in lines if line.get("topic") == topic}


@dataclass(frozen=True)
class Scene:
    """A topic in its own namespace, its aborted ids, and the number of its committed messages."""

    space: str
    topic: str
    aborted: set[tuple[int, int]]
    commits: int
    left_open: tuple[int, int] = (-1, -1)

    @property
    def segments(self) -> str:
        return system_topic(self.space, SnapshotKind.SEGMENT)


def create_scene(
    cluster: Cluster, service: Deployment, transactions: Transactions, name: str, aborts: int, *, commits: int = 10
) -> Scene:
    """Run transactions on a topic that keeps all messages, until its index names the full segments."""
    space = namespace(cluster, name)
    topic = topic_in(cluster, space, "orders")
    ends = "a" * aborts + "c" * commits
    ids = aborted_ids(ends, transactions.run(topic, ends))

    def is_sealed() -> bool:
        read = latest(service, space, SnapshotKind.INDEX).get(topic)
        rows = read.value.entries.rows if read is not None and isinstance(read.value, Index) else 0
        return rows >= aborts // 40

    wait_for(is_sealed, f"segments of {topic}")
    return Scene(space, topic, ids, commits)


def create_silent_scene(cluster: Cluster, service: Deployment, name: str, aborts: int) -> Scene:
    """Create a scene with a client that is closed, and wait until its broker has nothing more to write."""
    with Transactions(cluster.serving.pulsar) as own:
        scene = create_scene(cluster, service, own, name, aborts)
    wait_for_silence(service, scene)
    return scene


def publish_index(service: Deployment, scene: Scene, value: bytes | None) -> None:
    """Publish a value as the index of the scene's topic."""
    with KeyedSender(service.settings.pulsar, system_topic(scene.space, SnapshotKind.INDEX)) as sender:
        sender.send(scene.topic, value)


def wait_until_sealed(service: Deployment, scene: Scene) -> None:
    """Wait until index and segments hold all ids; a failure shows both and the broker's buffer."""
    try:
        wait_for(lambda: recovered(service, scene.space, scene.topic) >= scene.aborted, "all ids sealed again")
    except UnavailableError as error:
        index = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic]
        with snapshot_topics(service.settings) as snapshots:
            buffer = snapshots.more.buffer(scene.topic)
        count = len(recovered(service, scene.space, scene.topic))
        raise AssertionError(f"{count} of {len(scene.aborted)} ids; {index}; {buffer}") from error


def reads_committed(transactions: Transactions, scene: Scene, patience_seconds: int = 10) -> bool:
    """Return whether a new consumer gets every committed message once, and no aborted message.

    Args:
        patience_seconds: the longest wait for the next message.
    """
    values = transactions.read(scene.topic, f"reader-{uuid4().hex}", patience_seconds)
    print(f"{scene.topic}: {len(values)} messages, {len(committed(values))} committed")  # noqa: T201  shown with a failure
    return len(committed(values)) == scene.commits == len(set(values)) == len(values)


def double_ids(cluster: Cluster, service: Deployment, name: str) -> Scene:
    """Fault F: a broker is killed while a transaction is open after whose start it has sealed segments."""
    space = namespace(cluster, name)
    topic = topic_in(cluster, space, "orders")
    with Transactions(cluster.serving.pulsar) as ends_open:
        left_open, *aborted = ends_open.run(topic, "o" + "a" * 100)
    restart(cluster, kill=True)
    with Transactions(cluster.serving.pulsar) as again:
        again.run(topic, "a" * 5 + "c" * 5)
        for attempt in range(10):
            if sealed_twice(service, space, topic):
                break
            # a broker that stopped during its replay continues when further segments are sealed
            again.run(topic, "a" * 40, start=1_000 * (attempt + 1))
            time.sleep(2)
    return Scene(space, topic, set(aborted), 5, left_open)


def sealed_twice(service: Deployment, space: str, topic: str) -> bool:
    """Return whether an id is in more than one of the segments that the topic's index names."""
    index = latest(service, space, SnapshotKind.INDEX)[topic].value
    named = sealed_segments.named_segments(index) if isinstance(index, Index) else []
    positions = {position for _number, position, _marker in named}
    with snapshot_topics(service.settings) as snapshots:
        stored = [read for read in snapshots.stored(space, SnapshotKind.SEGMENT) if read.position in positions]
    ids = [pair for read in stored if isinstance(read.value, Segment) for pair in read.value.ids.pairs()]
    return len(set(ids)) < len(ids)


def wait_for_silence(service: Deployment, scene: Scene) -> None:
    """Wait until the broker has written no index for three seconds: a new index would end a repair."""

    def is_silent() -> bool:
        before = latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].position
        time.sleep(3)
        return latest(service, scene.space, SnapshotKind.INDEX)[scene.topic].position == before

    wait_for(is_silent, f"the last index of {scene.topic}")


def run_repair(service: Deployment, topic: str, *options: str) -> dict[str, Any]:
    """Repair a topic; return the command's JSON."""
    output = service.call("snapshots", "repair", "--yes", "--json", *options, "--topic", topic)
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(f"repaired: {report}")  # noqa: T201  shows how often the topic was loaded
    return report


def end_left_open(cluster: Cluster, scene: Scene) -> None:
    """Abort the transaction that was left open: it hides all later messages."""
    most, least = scene.left_open
    with suppress(AssertionError):  # it has ended
        admin(cluster, "POST", f"v3/transactions/abortTransaction/{most}/{least}")


def consume_all(cluster: Cluster, topic: str) -> None:
    """Move every subscription to the end, so that the broker trims all ledgers but the last, which is new.

    The broker never trims the last ledger, and a busy broker may have put all entries into one ledger: so the topic is
    unloaded first.
    """
    topics.unload(cluster, topic)
    before = ledgers(cluster, topic)
    for subscription in topics.internal_stats(cluster, topic)["cursors"]:
        topics.admin(cluster, "POST", f"{topics.resource(topic)}/subscription/{subscription}/skip_all")
    topics.trim(cluster, topic)
    wait_for(lambda: ledgers(cluster, topic)[0] >= before[-1], f"trimming of {topic}")
