"""The completion of a batch: the fallback reads exactly the missing entries, and reading has a time limit."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.queries.delivery import completion, fallback_reads
from streaming.queries.delivery.completion import Completion, allowed_seconds
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.names import checkpoint_of
from streaming.schemas import REQUESTS
from streaming.spark.job_limit import limited
from tests.pulsar_fields import entry
from tests.unit.adapters.pulsar.frame_broker import Partition, serving
from udfs import columns as c
from udfs.entry_ranges import EntrySpan
from udfs.proto.message_id_pb2 import MessageIdData

pytestmark = pytest.mark.spark

TOPIC = "persistent://pulsar/system/__ledger_deletion"
FIRST, SECOND = f"{TOPIC}-partition-0", f"{TOPIC}-partition-1"
Address = tuple[str, int, int, int]


def _rows(spark: SparkSession, addresses: Sequence[Address]) -> DataFrame:
    blank = dict.fromkeys(schemas.MESSAGE.names)
    columns = (c.SOURCE, c.POSITION_LEDGER, c.POSITION_ENTRY, c.POSITION_BATCH)
    rows = [tuple((blank | dict(zip(columns, address, strict=True)) | {c.ROW: 0}).values()) for address in addresses]
    # one task reads a partition, as with the connector
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 1), from_arrow_schema(schemas.MESSAGE))


class World:
    """Batch 1 reads from after 5:1 to 6:1 of the first partition, and to 8:0 of the second."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark = spark
        self.requested: dict[str, list[EntrySpan]] = {}
        pulsar = MemoryPulsar()
        pulsar.known_namespaces.add("pulsar/system")
        pulsar.create_partitioned_topic(TOPIC, 2)
        pulsar.partition(FIRST).ledgers = {5: 4, 6: 3}
        pulsar.partition(SECOND).ledgers = {8: 1}
        checkpoint = Path(checkpoint_of(settings, REQUESTS))
        self._plan_batch(checkpoint, 0, {FIRST: (5, 1)})
        self._plan_batch(checkpoint, 1, {FIRST: (6, 1), SECOND: (8, 0)})
        (checkpoint / "commits").mkdir()
        (checkpoint / "commits" / "0").write_text("v1\n{}")
        self.completion = Completion(
            spark=spark, settings=settings, admin=pulsar, read=self._read, slots=ReadSlots(threading.Event(), lambda: 2)
        )

    def read_beside(self) -> None:
        """Wait for slots like another query, and release them at once."""
        with self.completion.slots.of("another", 1):
            return

    def _plan_batch(self, checkpoint: Path, number: int, upto: Mapping[str, tuple[int, int]]) -> None:
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        offsets = {
            partition: [*MessageIdData(ledgerId=ledger, entryId=last).SerializeToString()]
            for partition, (ledger, last) in upto.items()
        }
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offsets)}")

    def _read(self, _query: str, spans: Mapping[str, Sequence[EntrySpan]], /, *, gives_up: bool = False) -> DataFrame:
        assert not gives_up
        self.requested = {partition: list(of_partition) for partition, of_partition in spans.items()}
        entries = {
            (partition, span.ledger, number)
            for partition, of_partition in spans.items()
            for span in of_partition
            for number in range(span.first, span.last + 1)
        }
        return _rows(self.spark, [address for address in COMPLETE if address[:3] in entries])

    def complete(self, *addresses: Address) -> list[tuple[Any, ...]]:
        completed = self.completion(REQUESTS, 1, _rows(self.spark, addresses))
        self.worked_off = completed.worked_off
        assert completed.extent is None
        return sorted(tuple(row[name] for name in (*c.POSITION, c.ROW)) for row in completed.rows.collect())


@pytest.fixture
def adaptive(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark with adaptive execution, as the service runs it."""
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.adaptive.enabled")


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    file = tmp_path / "config.toml"
    file.write_text(f'[checkpoints]\ndir = "{tmp_path}/checkpoints"\n')
    return World(spark, load(file))


COMPLETE: list[Address] = [
    (FIRST, 5, 2, -1),
    (FIRST, 5, 3, 0),
    (FIRST, 5, 3, 1),
    (FIRST, 5, 3, 2),
    (FIRST, 6, 0, -1),
    (FIRST, 6, 1, -1),
    (SECOND, 8, 0, -1),
]


def test_a_batch_that_was_delivered_completely_is_not_changed(world: World) -> None:
    twice_and_before = [COMPLETE[0], (FIRST, 5, 1, -1)]
    delivered = _rows(world.spark, [*COMPLETE, *twice_and_before])
    completed = world.completion(REQUESTS, 1, delivered)
    assert (completed.rows, completed.worked_off) == (delivered, {})
    assert completed.extent is not None
    assert completed.extent.oldest_ledger == 5
    rows = delivered.groupBy(c.SOURCE).agg(F.max(c.ROW)).collect()
    assert all(row[1] <= completed.extent.last_rows[row[0]] for row in rows)
    assert world.requested == {}


@pytest.mark.parametrize(
    ("missing", "requested"),
    [
        pytest.param([COMPLETE[0]], {FIRST: [EntrySpan(5, 2, 2)]}, id="the first of a ledger", marks=pytest.mark.long),
        pytest.param([COMPLETE[5]], {FIRST: [EntrySpan(6, 1, 1)]}, id="the last of a range"),
        pytest.param([COMPLETE[1]], {FIRST: [EntrySpan(5, 3, 3)]}, id="the first message of a producer's batch"),
        pytest.param(
            [COMPLETE[2]], {FIRST: [EntrySpan(5, 3, 3)]}, id="a message within a batch", marks=pytest.mark.long
        ),
        pytest.param([COMPLETE[6]], {SECOND: [EntrySpan(8, 0, 0)]}, id="all of a partition", marks=pytest.mark.long),
        pytest.param(
            COMPLETE, {FIRST: [EntrySpan(5, 2, 3), EntrySpan(6, 0, 1)], SECOND: [EntrySpan(8, 0, 0)]}, id="everything"
        ),
    ],
)
def test_missing_rows_are_read_by_the_fallback_and_counted_in(
    world: World, missing: list[Address], requested: dict[str, list[EntrySpan]]
) -> None:
    delivered = [address for address in COMPLETE if address not in missing]
    rows = world.complete(*delivered)
    assert world.requested == requested
    assert world.worked_off == {FIRST: [EntrySpan(5, 2, 3), EntrySpan(6, 0, 1)], SECOND: [EntrySpan(8, 0, 0)]}
    assert [row[:4] for row in rows] == COMPLETE
    assert [row[4] for row in rows if row[0] == FIRST] == list(range(6))


def test_an_entry_whose_messages_are_delivered_separately_is_read_again_and_no_message_is_doubled(world: World) -> None:
    separate = [*COMPLETE[:2], COMPLETE[4], *COMPLETE[2:4], *COMPLETE[5:]]
    rows = world.complete(*separate)
    assert world.requested == {FIRST: [EntrySpan(5, 3, 3)]}
    assert [row[:4] for row in rows] == COMPLETE


def test_the_check_of_a_batch_is_one_spark_job_of_one_stage_also_with_entries_outside_of_it(world: World) -> None:
    context = world.spark.sparkContext
    tracker = context.statusTracker()
    context.setJobGroup("the check", "")
    try:
        world.completion(REQUESTS, 1, _rows(world.spark, [*COMPLETE, *((FIRST, 4, n, -1) for n in range(3))]))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("the check")]
    assert [len(job.stageIds) for job in jobs if job is not None] == [1]


def test_rows_outside_of_the_batch_do_not_replace_missing_rows(world: World) -> None:
    world.complete(*COMPLETE[1:], (FIRST, 5, 1, -1), (FIRST, 6, 2, -1))
    assert world.requested == {FIRST: [EntrySpan(5, 2, 2)]}


def test_a_batch_that_is_not_in_the_checkpoint_is_not_complete(world: World) -> None:
    with pytest.raises(ReaperError, match="batch 7"):
        world.completion(REQUESTS, 7, _rows(world.spark, COMPLETE))


def test_reading_that_does_not_end_is_cancelled(spark: SparkSession) -> None:
    def sleeps(batches: Any) -> Any:
        time.sleep(120)
        yield from batches

    start_s = time.monotonic()
    cancelled = pytest.raises(ReaperError, match=r"requests, batch 1: reading took longer than 1 s")
    with cancelled, limited(spark, lambda: 1, "requests, batch 1: reading"):
        spark.range(2).mapInArrow(sleeps, "id long").count()
    assert time.monotonic() - start_s < 100


def test_a_read_that_ends_in_time_or_fails_is_not_cancelled(spark: SparkSession) -> None:
    with limited(spark, lambda: 60, "reading"):
        assert spark.range(3).count() == 3
    with pytest.raises(ValueError, match="a bug"), limited(spark, lambda: 60, "reading"):
        raise ValueError("a bug")


def test_entries_become_rows_in_the_executors_and_a_dead_letter_has_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    request = json.dumps(
        {"topicName": "t/ns/persistent/x", "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER", "ledgerId": 7}
    ).encode()
    odd = entry(request, encryption_keys=[b""], publish_time=1 << 62)
    stored = {(7, number): odd if number == 4500 else entry(request) for number in range(4501)}
    with serving(Partition(stored, (7, 4500))) as partition:
        base = load(None)
        pulsar = base.pulsar.model_copy(update={"service_url": partition.url, "admin_url": "http://127.0.0.1:1"})
        settings = base.model_copy(update={"pulsar": pulsar})
        slots = ReadSlots(threading.Event(), lambda: 2)
        rows = fallback_reads.ReadRows(spark, settings, slots)(REQUESTS, {FIRST: [EntrySpan(7, 0, 4500)], SECOND: []})
        by_entry = {row[c.POSITION_ENTRY]: row.asDict() for row in rows.collect()}
    assert sorted(by_entry) == list(range(4501))
    assert [by_entry[number][c.ROW] for number in range(4501)] == list(range(4501))
    assert (by_entry[0][c.REFERENCE_KEY], by_entry[0][c.NO_REQUEST]) == ("data:t/ns/persistent/x", None)
    last = by_entry[4500]
    assert (last[c.REFERENCE_KEY], last[c.TENANT], last[c.DUE_MS], bytes(last[c.PAYLOAD])) == (None, None, 0, request)
    assert last[c.NO_REQUEST] == "ENCRYPTED: the payload is encrypted"


def test_a_long_fallback_read_releases_its_slots_between_batches(
    adaptive: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback_reads, "_ENTRIES_PER_TASK", 2)
    slots = ReadSlots(threading.Event(), lambda: 8)
    held: list[int] = []
    connections: list[int] = []

    class Watched:
        most_tasks = slots.most_tasks

        @contextmanager
        def of(self, query: str, partitions: int) -> Iterator[Callable[[], bool]]:
            with slots.of(query, partitions) as others_wait:
                held.append(partitions)
                connections.append(len(partition.readers))
                yield others_wait

    stored = {(7, number): entry(b"x") for number in range(9)}
    with serving(Partition(stored, (7, 8))) as partition:
        base = load(None)
        pulsar = base.pulsar.model_copy(update={"service_url": partition.url, "admin_url": "http://127.0.0.1:1"})
        settings = base.model_copy(update={"pulsar": pulsar})
        rows = fallback_reads.ReadRows(adaptive, settings, cast("ReadSlots", Watched()))(
            REQUESTS, {FIRST: [EntrySpan(7, 0, 8)]}
        )
        connections.append(len(partition.readers))
        assert [row[c.ROW] for row in rows.orderBy(c.ROW).collect()] == list(range(9))
    assert held == [2, 2, 1], "a pass takes two of the four slots of reads, each for two entries"
    assert connections == [0, 2, 4, 5], "a batch was read twice, or outside of its slots"
    assert len(partition.readers) == 5, "kept rows were read again"


def test_small_reads_of_several_partitions_share_one_slot() -> None:
    def read_of(partition: str, *spans: tuple[int, int, int]) -> fallback_reads.PartitionRead:
        return (partition, [span[0] for span in spans], [span[1] for span in spans], [span[2] for span in spans])

    small = [read_of(f"p{number}", (7, 0, 9)) for number in range(6)]
    large = read_of("large", (7, 0, 1899), (8, 0, 99))
    tasks = [[read[0] for read in task] for task in fallback_reads._tasks_of([*small, large, small[0]])]
    assert tasks == [["p0", "p1", "p2", "p3"], ["p4", "p5"], ["large"], ["p0"]]


def test_many_requests_in_few_entries_get_more_time_than_a_single_entry() -> None:
    alone = partial(allowed_seconds, least=30, others_wait=False)
    assert alone(1_000, 10_000_000, "local[2]") >= 60, "a million requests in batches of a thousand"
    assert alone(24_000, 5_000_000, "local[2]") >= 120, "many entries"
    assert alone(7, 19_000_000, "local[8]") <= 62, (
        "a few large messages, which compress well and cost their sender little"
    )
    assert alone(10, 105_060, "local[2]") < 35, "twelve million messages without a byte"
    assert alone(101, 500_000_000, "local[8]") <= 150, "a batch that never ends, and holds much"
    assert alone(1, 100, "spark://head:7077") >= 180, "a host may be silent, or its executor not started yet"
    assert allowed_seconds(101, 500_000_000, "local[8]", least=30, others_wait=True) <= 60, "others wait no longer"


def test_a_read_that_others_wait_for_is_cancelled_sooner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleeps(batches: Any) -> Any:
        time.sleep(100)
        yield from batches

    settings = world.completion.settings
    service = settings.service.model_copy(update={"reading_seconds": 0.5})
    world.completion = replace(world.completion, settings=settings.model_copy(update={"service": service}))
    monkeypatch.setattr(completion, "_SECONDS_PER_ENTRY", 100.0)
    monkeypatch.setattr(completion, "MOST_SECONDS_WHILE_OTHERS_WAIT", 1.0)
    waits = threading.Thread(target=world.read_beside, daemon=True)
    # In the JVM: when a task is cancelled, Spark closes the connections of all its Python workers, including a worker
    # that has ended and was returned to the pool; the next task that gets this worker would fail.
    delivered = _rows(world.spark, COMPLETE).localCheckpoint()
    hangs = delivered.mapInArrow(sleeps, delivered.schema)
    threading.Timer(2, waits.start).start()
    start_s = time.monotonic()
    with pytest.raises(ReaperError, match=r"batch 1: reading took longer than 2 s"):
        world.completion(REQUESTS, 1, hangs)
    assert time.monotonic() - start_s < 90, "alone, the read would have 120 s"
    waits.join(10)
    assert not waits.is_alive()


def test_spark_keeps_nothing_of_rows_that_can_not_be_computed(spark: SparkSession) -> None:
    cache = spark._jsparkSession.sharedState().cacheManager()
    spark.catalog.clearCache()
    rows = fallback_reads.kept(spark.range(3))
    assert not cache.isEmpty()
    rows.unpersist()
    assert cache.isEmpty()
    with pytest.raises(Exception, match="no such thing"):
        fallback_reads.kept(spark.sql("SELECT raise_error('no such thing') AS x"))
    assert cache.isEmpty()


@pytest.mark.long
def test_unpersist_does_not_wait_for_a_fallback_read(adaptive: SparkSession) -> None:
    kept = adaptive.range(10).persist()
    assert kept.count() == 10  # before the read: an earlier test's task may hold the other slot for some seconds
    lets_read = threading.Event()
    with serving(Partition({(7, 0): entry(b"x"), (7, 1): None}, (7, 1), lets_subscribe=lets_read)) as partition:
        base = load(None)
        pulsar = {"service_url": partition.url, "admin_url": "http://127.0.0.1:1", "timeout_seconds": 60}
        settings = base.model_copy(update={"pulsar": base.pulsar.model_copy(update=pulsar)})
        read_rows = fallback_reads.ReadRows(adaptive, settings, ReadSlots(threading.Event(), lambda: 2))
        ended = threading.Event()

        def read() -> None:
            with pytest.raises(Exception, match="does not answer"):  # the admin API, the last fallback
                read_rows(REQUESTS, {FIRST: [EntrySpan(7, 0, 1)]})
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        while not partition.readers:
            assert not ended.wait(0.05)
        releaser = threading.Thread(target=kept.unpersist)
        releaser.start()
        releaser.join(30)
        waits = releaser.is_alive()
        lets_read.set()
        reader.join(60)
        releaser.join(60)
        assert ended.is_set()
        assert not waits, "unpersist waited for the end of the read"
