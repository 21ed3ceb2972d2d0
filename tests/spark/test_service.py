"""The division of a batch into chunks: each message is in one chunk; a message with a receipt is in none."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.deletion.service import LedgerDeletionService, bounds_of
from streaming.errors import SafetyError, UnavailableError
from streaming.queries.delivery.completion import Completed, Extent
from streaming.schemas import REQUESTS
from streaming.state.receipts import ChunkSummary
from tests.services import EPOCH, service_of
from tests.spark.test_streams import SOURCE_SCHEMA
from udfs import columns as c
from udfs.formats.message_id import MessagePosition, serialize_message_id

pytestmark = pytest.mark.spark

AT = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TOPIC = "persistent://pulsar/system/__ledger_deletion"


class Receipts:
    """Records the swept chunks; entry 0 of each partition has a receipt of an earlier run."""

    table_id = "T"
    newest_chunk = 0

    def __init__(self) -> None:
        self.swept: list[tuple[int, list[tuple[str, int]]]] = []
        self.queries = 0

    def sweep(self, _query: str, _batch_id: int, rows: DataFrame, chunk: int) -> None:
        entries = sorted((row[c.SOURCE][-1], row[c.POSITION_ENTRY]) for row in rows.collect())
        if entries:
            self.swept.append((chunk, entries))
            self.newest_chunk = chunk

    def without_done(self, rows: DataFrame, _oldest: int | None = None) -> DataFrame:
        self.queries += 1
        return rows.where(F.col(c.POSITION_ENTRY) > 0)

    def summary(self, _chunk: int) -> ChunkSummary:
        return ChunkSummary(by_type={}, copies={}, deleted_bytes=0, has_refreshed=False, epochs=frozenset({EPOCH}))

    def sync(self) -> None: ...

    def catch_up(self) -> None: ...

    def deleted_by_owner(self, _chunk: int) -> dict[Any, int]:
        return {}


def _service(receipts: Receipts, chunk_rows: int) -> LedgerDeletionService:
    published = [""]
    service = service_of(
        receipts=receipts,
        sweep=receipts.sweep,
        copies=SimpleNamespace(remembered=lambda _table_id: {}),
        coordination=SimpleNamespace(published=lambda: published[-1], mark_published=published.append),
        blast_radius=SimpleNamespace(count=lambda _deleted, **_: None),
        watch=SimpleNamespace(after=lambda _chunk: None),
    )
    service.chunk_rows = chunk_rows
    service.outbox.publish_again()
    return service


def _source(spark: SparkSession, entries: int, *, again: int = 0) -> DataFrame:
    """Return rows like the connector, in a Spark partition for each partition of the topic.

    The rows are kept in the JVM, as with the connector: otherwise a task with several of these partitions would read
    each through a Python worker, and Spark sometimes closes a worker's connection too early.

    Args:
        entries: of each partition.
        again: the number of last entries that are delivered a second time.
    """
    parts, delivered = [], [*range(entries), *range(entries - again, entries)]
    for partition in range(2):
        source, positions = f"{TOPIC}-partition-{partition}", (MessagePosition(5, n, partition) for n in delivered)
        rows: list[tuple[Any, ...]] = [
            (b"{}", b"k", source, serialize_message_id(position), AT, {}) for position in positions
        ]
        parts.append(spark.createDataFrame(rows, SOURCE_SCHEMA).coalesce(1).localCheckpoint())
    return parts[0].union(parts[1])


def test_a_small_batch_is_one_chunk_and_the_first_batch_leaves_out_messages_with_a_receipt(spark: SparkSession) -> None:
    receipts = Receipts()
    service = _service(receipts, chunk_rows=10)
    for batch_id in range(2):
        service.process(REQUESTS, _source(spark, 2), batch_id)
    service.restart(REQUESTS)
    service.process(REQUESTS, _source(spark, 1), 2)
    assert receipts.swept == [(1, [("0", 1), ("1", 1)]), (2, [("0", 0), ("0", 1), ("1", 0), ("1", 1)])]
    assert receipts.queries == 2


def test_a_batch_that_was_not_processed_whole_is_not_committed(spark: SparkSession) -> None:
    service = _service(Receipts(), chunk_rows=10)
    processed: list[int] = []

    def confirm() -> None:
        processed.append(service.receipts.newest_chunk)
        raise UnavailableError("changed")

    service.completed = lambda _query, _batch_id, delivered: Completed(delivered, confirm=confirm)
    with pytest.raises(UnavailableError, match="changed"):
        service.process(REQUESTS, _source(spark, 2), 0)
    assert processed == [1]


def test_a_replayed_batch_without_rows_publishes_the_chunk_that_was_interrupted(spark: SparkSession) -> None:
    receipts = Receipts()
    service = _service(receipts, chunk_rows=10)
    receipts.newest_chunk = 1  # the query's batch was committed, and its publication failed
    service.process(REQUESTS, _source(spark, 1), 0)
    assert not receipts.swept
    assert service.outbox.oldest_unfinished == 0


def test_a_large_batch_is_divided_so_that_each_message_is_in_one_chunk(spark: SparkSession) -> None:
    receipts = Receipts()
    _service(receipts, chunk_rows=4).process(REQUESTS, _source(spark, 6), 0)
    assert [chunk for chunk, _ in receipts.swept] == list(range(1, len(receipts.swept) + 1))
    assert [len(entries) for _, entries in receipts.swept] == [2, 4, 4]  # entry 0 has a receipt
    assert sorted(entry for _, entries in receipts.swept for entry in entries) == [
        (partition, n) for partition in "01" for n in range(1, 6)
    ]


def test_a_message_that_is_delivered_twice_is_swept_in_one_chunk(spark: SparkSession) -> None:
    receipts = Receipts()
    _service(receipts, chunk_rows=50).process(REQUESTS, _source(spark, 60, again=20), 0)
    assert len(receipts.swept) > 1
    assert sorted(entry for _, entries in receipts.swept for entry in entries) == [
        (partition, n) for partition in "01" for n in range(1, 60)
    ]


@pytest.mark.parametrize(
    ("last_rows", "bounds"),
    [
        pytest.param([99], [], id="one chunk"),
        pytest.param([62, 61], [], id="one chunk and a remainder of a quarter"),
        pytest.param([62, 62], [32], id="one chunk and more than a quarter"),
        pytest.param([499], [125, 250, 375], id="many equal chunks"),
        pytest.param([497, 0, 0], [123, 248, 373], id="with sources of one row"),
        pytest.param([0] * 300, [], id="more sources than a chunk has rows: one message of each source"),
    ],
)
def test_chunks_have_about_the_same_size_and_a_small_remainder_is_no_chunk(
    last_rows: list[int], bounds: list[int]
) -> None:
    assert bounds_of(last_rows, 100) == bounds


def test_a_range_without_a_message_is_no_chunk(spark: SparkSession) -> None:
    receipts = Receipts()
    service = _service(receipts, chunk_rows=4)
    far = Extent({f"{TOPIC}-partition-0": 99}, 5)
    service.completed = lambda _query, _batch_id, rows: Completed(rows, far)
    service.process(REQUESTS, _source(spark, 3), 0)
    assert receipts.swept == [(1, [("0", 1), ("0", 2), ("1", 1), ("1", 2)])]


def test_a_batch_of_large_messages_is_divided_by_their_bytes(spark: SparkSession) -> None:
    receipts = Receipts()
    source = (
        _source(spark, 6).withColumn("value", F.lit(b"x" * 4_000).cast("binary")).withColumn("__key", F.col("value"))
    )
    _service(receipts, chunk_rows=8).process(REQUESTS, source, 0)
    assert all(len(entries) <= 4 for _, entries in receipts.swept)  # 8,000 bytes each: two rows
    assert sorted(entry for _, entries in receipts.swept for entry in entries) == [
        (partition, n) for partition in "01" for n in range(1, 6)
    ]


def test_a_safety_error_stops_the_service_before_its_query_fails(spark: SparkSession) -> None:
    class Vanished(Receipts):
        def without_done(self, rows: DataFrame, _oldest: int | None = None) -> DataFrame:
            raise SafetyError("the receipts vanished")

    service = _service(Vanished(), chunk_rows=10)
    with pytest.raises(SafetyError):
        service.process(REQUESTS, _source(spark, 1), 0)
    assert [str(error) for error in service.outages.fatal] == ["the receipts vanished"]
    assert service.outages.stop.is_set()
