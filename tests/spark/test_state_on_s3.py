"""Spark's tasks read and write state on S3 through pyarrow, without S3A."""

from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.errors import FencedError
from streaming.state import receipts as receipts_table
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting, outstanding
from tests.contract.s3_server import S3Server
from udfs import columns as c

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = "persistent://pulsar/system/d-RETRY-partition-0"


def _receipts_of(spark: SparkSession, chunk: int, *entries: int) -> DataFrame:
    blank = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk, c.SOURCE: SOURCE, c.POSITION_LEDGER: 1}
    blank |= {c.TOPIC_NAME: "persistent://t/n/ü", c.AT_MS: 1_000 + chunk}
    rows = [tuple((blank | {c.POSITION_ENTRY: entry, c.POSITION_BATCH: -1}).values()) for entry in entries]
    return spark.createDataFrame(rows, from_arrow_schema(schemas.RECEIPT)).repartition(2)


def _messages(spark: SparkSession, due: dict[int, int]) -> DataFrame:
    rows: list[tuple[object, ...]] = [
        (SOURCE, 1, entry, -1, 0, ms, 0, None, b"\0{}", {"a": "b"}, None, None, None) for entry, ms in due.items()
    ]
    return spark.createDataFrame(rows, from_arrow_schema(schemas.MESSAGE))


def _entries(rows: Any) -> list[int]:
    return sorted(row[c.POSITION_ENTRY] for row in (rows.collect() if isinstance(rows, DataFrame) else rows))


def test_receipts_are_written_by_tasks_and_read_by_tasks(spark: SparkSession, on_s3: str) -> None:
    table = Receipts(spark, on_s3)
    assert table.read().count() == 0
    table.append(_receipts_of(spark, 1, 1, 2, 3), 1)
    table.append(_receipts_of(spark, 2, 4), 2)
    receipts_table.compact(on_s3)
    table.append(_receipts_of(spark, 3, 5), 3)

    assert _entries(table.read()) == [1, 2, 3, 4, 5]
    assert _entries(table.of_chunk(1)) == [1, 2, 3]
    assert {row[c.TOPIC_NAME] for row in table.read(ds.field(c.CHUNK) == 3).collect()} == {"persistent://t/n/ü"}
    assert _entries(table.without_done(_messages(spark, {3: 0, 7: 0}))) == [7]
    assert Receipts(spark, on_s3).newest_chunk == 3


@pytest.mark.long  # tests/contract/test_state_stores.py has retries on S3 without Spark
def test_retries_wait_and_are_removed_when_they_are_done(spark: SparkSession, on_s3: str) -> None:
    table = Receipts(spark, on_s3)
    waiting = Waiting(spark, on_s3)
    waiting.take_over(lambda: True, table.without_done)
    waiting.append(_messages(spark, {1: 10, 2: 600_000}))
    waiting.append(_messages(spark, {3: 20}))
    rows = waiting.start_pass(100)
    assert _entries(rows) == [1, 3]
    assert [(bytes(row[c.PAYLOAD]), row[c.MESSAGE_PROPERTIES]) for row in rows.collect()] == [(b"\0{}", {"a": "b"})] * 2
    table.append(_receipts_of(spark, 1, 1, 3), 1)
    waiting.end_pass()
    waiting.prune()
    assert _entries(outstanding(on_s3)) == [2]

    after = Waiting(spark, on_s3)
    after.take_over(lambda: True, table.without_done)
    with pytest.raises(FencedError):
        waiting.append(_messages(spark, {4: 10}))
    assert _entries(after.start_pass(600_000)) == [2]


def test_a_file_that_a_task_can_not_read_fails_the_job(spark: SparkSession, on_s3: str, s3_server: S3Server) -> None:
    table = Receipts(spark, on_s3)
    table.append(_receipts_of(spark, 1, 1), 1)
    rows = table.read()
    s3_server.answer("AccessDenied", status="403 Forbidden", times=1000)
    try:
        with pytest.raises(Exception, match="can't be read"):
            rows.collect()
    finally:
        s3_server.heal()
