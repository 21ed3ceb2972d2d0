"""Transforms on inline rows."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.queries.streams import chunks_of, grouped_by_owner, messages, tasks_for
from streaming.spark.session import batches_of_messages
from udfs import columns as c
from udfs.formats.message_id import MessagePosition, serialize_message_id
from udfs.requests.retry import CUT_FROM, MAX_ABOUT_BYTES, REAL_TOPIC, REASON, RECONSUMETIMES

pytestmark = pytest.mark.spark

TOPIC = "persistent://pulsar/system/__ledger_deletion-partition-1"
SOURCE_SCHEMA = (
    "value binary, __key binary, __topic string, __messageId binary, "
    "__publishTime timestamp, __messageProperties map<string,string>"
)
REQUEST = json.dumps(
    {
        "topicName": "shop/orders/persistent/paid",
        "ledgerComponent": "MANAGED_LEDGER",
        "ledgerType": "LEDGER",
        "ledgerId": 7,
    }
).encode()
AT = datetime(2026, 11, 21, 12, 0, 0, 500_000, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)


def _message_id(entry: int, batch: int = -1) -> bytes:
    return serialize_message_id(MessagePosition(5, entry, 1, batch))


def test_a_message_becomes_a_row_with_position_due_time_and_reference_key(spark: SparkSession) -> None:
    source = spark.createDataFrame(
        [
            (REQUEST, b"k", TOPIC, _message_id(3), AT, {"RECONSUMETIMES": "1", "DELAY_TIME": "5000"}),
            (b"no json", None, TOPIC, _message_id(4, 2), AT, {}),
            (b"", None, TOPIC, _message_id(5), AT, None),
        ],
        SOURCE_SCHEMA,
    ).coalesce(1)

    expected = spark.createDataFrame(
        [
            (
                TOPIC,
                5,
                3,
                -1,
                AT_MS,
                AT_MS + 5000,
                0,
                b"k",
                REQUEST,
                {"RECONSUMETIMES": "1", "DELAY_TIME": "5000"},
                "data:shop/orders/persistent/paid",
                "shop",
                None,
            ),
            (TOPIC, 5, 4, 2, AT_MS, AT_MS, 1, None, b"no json", {}, None, None, None),
            (TOPIC, 5, 5, -1, AT_MS, AT_MS, 2, None, b"", {}, None, None, None),
        ],
        from_arrow_schema(schemas.MESSAGE),
    )
    assert_df_equality(messages(source, 1_024, 1), expected, ignore_nullable=True)


def _annotated(spark: SparkSession, *sent: tuple[bytes | None, bytes | None, dict[str, str] | None]) -> list[Row]:
    """Return rows of messages (payload, key, properties) with a limit of 1,024 bytes for requests."""
    rows = [(value, key, TOPIC, _message_id(n), AT, properties) for n, (value, key, properties) in enumerate(sent)]
    return messages(spark.createDataFrame(rows, SOURCE_SCHEMA), 1_024, 1).collect()


def test_only_the_first_bytes_of_a_payload_that_is_too_large_leave_the_jvm(spark: SparkSession) -> None:
    large = b"x" * 5_000_000
    forged = {"a": "b", CUT_FROM: "7"}
    cut, without_properties, just_too_large, uncut = _annotated(
        spark,
        (large, b"k", forged),
        (large, None, None),
        (b"y" * 1_025, b"k", {}),
        (REQUEST.ljust(1_024), b"k", forged),
    )
    assert (cut[c.PAYLOAD], cut[c.MESSAGE_KEY]) == (b"x" * 1_025, b"k")
    assert cut[c.MESSAGE_PROPERTIES] == {"a": "b", CUT_FROM: "5000000"}
    assert without_properties[c.MESSAGE_PROPERTIES] == {CUT_FROM: "5000000"}
    assert (just_too_large[c.PAYLOAD], just_too_large[c.MESSAGE_PROPERTIES]) == (b"y" * 1_025, {})
    assert (uncut[c.PAYLOAD], uncut[c.MESSAGE_PROPERTIES]) == (REQUEST.ljust(1_024), forged)
    assert [row[c.REFERENCE_KEY] for row in (cut, without_properties, just_too_large)] == [None] * 3
    assert uncut[c.REFERENCE_KEY] == "data:shop/orders/persistent/paid"


def test_of_large_keys_and_properties_only_the_needed_properties_leave_the_jvm(spark: SparkSession) -> None:
    many = {f"name-{n}": "v" for n in range(40_000)}
    ours = {RECONSUMETIMES: "2", REAL_TOPIC: "z" * 4_096}
    by_properties, by_a_key, fitting = _annotated(
        spark,
        (REQUEST, b"k", many | ours | {REASON: "ü" * 2_049}),
        (REQUEST, b"k" * MAX_ABOUT_BYTES, ours),
        (REQUEST, b"k" * (MAX_ABOUT_BYTES - 4), {"ä": "ö"}),
    )
    assert (by_properties[c.MESSAGE_PROPERTIES], by_properties[c.MESSAGE_KEY]) == (ours, None)
    assert (by_a_key[c.MESSAGE_PROPERTIES], by_a_key[c.MESSAGE_KEY]) == (ours, None)
    assert (fitting[c.MESSAGE_PROPERTIES], len(fitting[c.MESSAGE_KEY])) == ({"ä": "ö"}, MAX_ABOUT_BYTES - 4)


def test_a_large_message_counts_as_several_rows_of_a_chunk(spark: SparkSession) -> None:
    sent = [(b"x", None, None), (b"x" * 9_000, None, None), (b"x", b"k" * 5_000, {"a": "b" * 4_000}), (b"x", None, {})]
    rows = [(value, key, TOPIC, _message_id(n), AT, properties) for n, (value, key, properties) in enumerate(sent)]
    read = messages(spark.createDataFrame(rows, SOURCE_SCHEMA), 10_000, 1)
    assert [row[c.ROW] for row in read.collect()] == [0, 3, 6, 7]
    assert [row[0] for row in read.select(F.expr(schemas.ROWS)).collect()] == [1, 3, 3, 1]


def test_rows_of_each_partition_that_a_task_reads_are_numbered_separately(spark: SparkSession) -> None:
    rows: list[tuple[object, ...]] = [
        (REQUEST, None, f"{TOPIC}-{n // 3}", _message_id(n % 3), AT, {}) for n in range(12)
    ]
    source = spark.createDataFrame(rows, SOURCE_SCHEMA).repartitionByRange(4, c.TOPIC)
    read = messages(source, 1_024, 2)
    assert read.rdd.getNumPartitions() == 2
    numbered = sorted((row[c.SOURCE], row[c.POSITION_ENTRY], row[c.ROW]) for row in read.collect())
    assert [row for *_, row in numbered] == [0, 1, 2] * 4


def test_each_row_of_a_batch_is_in_exactly_one_chunk(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(n,) for n in range(10)], f"{c.ROW} long")
    chunks = [[row[0] for row in chunk.collect()] for chunk in chunks_of(rows, [3, 6])]
    assert chunks == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [chunk.count() for chunk in chunks_of(rows, [])] == [10]


def test_requests_of_one_owner_are_adjacent_in_one_partition(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(f"data:{n % 7}", "t", 1, n, -1) for n in range(2100)],
        f"{c.REFERENCE_KEY} string, {c.SOURCE} string, {c.POSITION_LEDGER} long, {c.POSITION_ENTRY} long, "
        f"{c.POSITION_BATCH} int",
    )
    parts = grouped_by_owner(rows, total=2100, parallelism=4).rdd.glom().collect()
    seen: set[str] = set()
    for part in parts:
        keys = [row[c.REFERENCE_KEY] for row in part]
        assert keys == sorted(keys)
        assert not seen & set(keys)
        seen |= set(keys)
    assert len(seen) == 7


@pytest.mark.parametrize(("total", "tasks"), [(0, 1), (500, 1), (501, 2), (2000, 4), (10**6, 4)])
def test_small_work_gets_few_tasks(total: int, tasks: int) -> None:
    assert tasks_for(total, 4) == tasks


def _sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})


def test_a_record_batch_of_messages_is_bounded_whatever_their_senders_wrote(spark: SparkSession) -> None:
    largest, count = 64 * 1024, 300
    session = spark.newSession()
    session.conf.set(*batches_of_messages())
    rows = session.range(0, count, 1, 1).select(F.repeat(F.lit("x"), largest).cast("binary").alias(c.PAYLOAD))
    sizes = rows.mapInArrow(_sizes, "rows bigint, bytes bigint").collect()
    assert sum(size["rows"] for size in sizes) == count
    assert max(size["bytes"] for size in sizes) < 10 * 1024 * 1024
