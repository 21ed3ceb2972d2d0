"""Tables read by Spark, including those that an older version of this program wrote with Spark's Delta."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.state import receipts as receipts_table
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting, outstanding
from udfs import columns as c

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Twelve chunks of one receipt each, and six retries of two appends; written by Delta 3.3.2 in Spark 3.5.
OLDER = Path(__file__).parents[1] / "data" / "state-of-delta-spark"


@pytest.fixture
def state(tmp_path: Path) -> str:
    shutil.copytree(OLDER, tmp_path / "state")
    return str(tmp_path / "state")


def _receipt(spark: SparkSession, chunk: int) -> object:
    row = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk, c.TOPIC_NAME: "persistent://t/n/new"}
    return spark.createDataFrame([tuple(row.values())], from_arrow_schema(schemas.RECEIPT))


def test_receipts_of_an_older_version_continue_with_the_next_chunk(spark: SparkSession, state: str) -> None:
    receipts = Receipts(spark, state)
    assert receipts.newest_chunk == 12
    receipts.append(_receipt(spark, 12), 12)  # type: ignore[arg-type]
    receipts.append(_receipt(spark, 13), 13)  # type: ignore[arg-type]
    receipts.sync()
    assert sorted(row[c.CHUNK] for row in receipts.read().collect()) == list(range(1, 14))
    assert [row[c.TOPIC_NAME] for row in receipts.of_chunk(12).collect()] == ["persistent://t/n/topic-12"]
    assert Receipts(spark, state).newest_chunk == 13


def test_receipts_of_an_older_version_are_merged_and_expire(spark: SparkSession, state: str) -> None:
    receipts = Receipts(spark, state)
    receipts.append(_receipt(spark, 13), 13)  # type: ignore[arg-type]
    receipts_table.expire(state, 1_700_000_000_005, now_ms=1_700_000_000_100)
    receipts_table.compact(state)
    receipts.sync()
    assert sorted(row[c.CHUNK] for row in receipts.read().collect()) == list(range(5, 14))
    assert sorted(row[c.CHUNK] for row in receipts_table.rows(state)) == list(range(5, 14))
    receipts.append(_receipt(spark, 14), 14)  # type: ignore[arg-type]
    assert Receipts(spark, state).newest_chunk == 14


def test_retries_of_an_older_version_still_wait_and_others_can_be_added(spark: SparkSession, state: str) -> None:
    waiting = Waiting(spark, state)
    waiting.take_over(lambda: True, Receipts(spark, state).without_done)
    rows = waiting.start_pass(1_700_000_000_010).collect()
    assert sorted(row[c.POSITION_ENTRY] for row in rows) == [0, 1, 2, 100, 101, 102]
    assert {bytes(row[c.PAYLOAD]) for row in rows} == {b"{}"}
    waiting.end_pass()
    (first,) = spark.createDataFrame(rows[:1], from_arrow_schema(schemas.MESSAGE)).collect()
    later = first.asDict() | {c.POSITION_ENTRY: 77, c.DUE_MS: 1_700_000_000_100}
    waiting.append(spark.createDataFrame([tuple(later.values())], from_arrow_schema(schemas.MESSAGE)))
    waiting.prune()
    assert [row[c.POSITION_ENTRY] for row in outstanding(state)] == [77]


def test_the_state_directory_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    state = str(tmp_path / "a [b] {c,d} 100 ä*?")
    receipts = Receipts(spark, state)
    receipts.append(_receipt(spark, 1), 1)  # type: ignore[arg-type]
    receipts.sync()
    assert receipts.read().count() == receipts.of_chunk(1).count() == 1
    assert Receipts(spark, state).newest_chunk == 1


def test_messages_of_an_entry_with_a_receipt_for_the_whole_entry_are_done(spark: SparkSession, tmp_path: Path) -> None:
    def rows_at(schema: pa.Schema, chunk: int, *addresses: tuple[int, int]) -> DataFrame:
        rows = [
            dict.fromkeys(schema.names)
            | {c.SOURCE: "requests", c.POSITION_LEDGER: 7, c.POSITION_ENTRY: entry, c.POSITION_BATCH: index}
            | ({c.CHUNK: chunk} if c.CHUNK in schema.names else {})
            for entry, index in addresses
        ]
        return spark.createDataFrame([tuple(row.values()) for row in rows], from_arrow_schema(schema))

    receipts = Receipts(spark, str(tmp_path))
    receipts.append(rows_at(schemas.RECEIPT, 1, (1, -1), (2, 0), (3, -1)), 1)
    left = receipts.without_done(rows_at(schemas.MESSAGE, 1, (1, 0), (1, 1), (2, 0), (2, 1), (3, -1), (4, -1), (4, 0)))
    assert left.columns == schemas.MESSAGE.names
    assert sorted((row[c.POSITION_ENTRY], row[c.POSITION_BATCH]) for row in left.collect()) == [(2, 1), (4, -1), (4, 0)]
