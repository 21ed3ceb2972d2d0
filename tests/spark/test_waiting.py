"""Waiting retries: each is worked off once, when it is due, whatever came before or after it."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import columns as c
from streaming.receipts import Receipts
from streaming.waiting import Waiting, outstanding

SOURCE = "persistent://pulsar/system/d-RETRY-partition-0"


def _messages(spark: SparkSession, due: dict[int, int]) -> DataFrame:
    """Entry -> due ms."""
    rows = [(SOURCE, 1, entry, -1, 0, ms, 0, None, b"{}", {}, None, None) for entry, ms in due.items()]
    return spark.createDataFrame(rows, from_arrow_schema(c.MESSAGE))


def _entries(rows: DataFrame | Iterable[dict[str, object]]) -> list[object]:
    found = rows.collect() if isinstance(rows, DataFrame) else rows
    return sorted(row[c.POSITION_ENTRY] for row in found)


@pytest.fixture
def waiting(spark: SparkSession, tmp_path: Path) -> Waiting:
    return Waiting(spark, str(tmp_path))


def test_a_shorter_delay_that_came_later_is_due_first(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 600_000}))
    waiting.append(_messages(spark, {2: 5_000}))

    assert waiting.next_ms() == 5_000
    assert _entries(waiting.begin(4_999)) == []
    assert _entries(waiting.begin(5_000)) == [2]
    waiting.end()
    assert waiting.next_ms() == 600_000
    assert waiting.count() == 1


def test_what_arrives_after_its_due_time_is_in_the_next_pass(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10}))
    assert _entries(waiting.begin(100)) == [1]
    waiting.append(_messages(spark, {2: 10, 3: 100}))  # while the pass runs
    waiting.end()

    assert waiting.next_ms() == 101
    assert _entries(waiting.begin(101)) == [2, 3]
    waiting.end()
    assert waiting.next_ms() is None


def test_a_clock_that_goes_back_neither_loses_nor_repeats(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10}))
    assert _entries(waiting.begin(100)) == [1]
    waiting.end()
    waiting.append(_messages(spark, {2: 20}))

    assert _entries(waiting.begin(50)) == []
    waiting.end()
    assert _entries(waiting.begin(101)) == [2]


def test_rows_of_many_batches_are_numbered_anew_by_due_time(spark: SparkSession, waiting: Waiting) -> None:
    for entry, ms in ((1, 30), (2, 20), (3, 10)):
        waiting.append(_messages(spark, {entry: ms}))

    rows = {row[c.POSITION_ENTRY]: row[c.ROW] for row in waiting.begin(100).collect()}

    assert rows == {3: 0, 2: 1, 1: 2}


def test_a_batch_that_comes_again_is_kept_once(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20}))
    assert _entries(waiting.without_held(_messages(spark, {1: 10, 2: 20, 3: 30}))) == [3]


def test_pruning_takes_only_what_a_pass_has_done(spark: SparkSession, waiting: Waiting, tmp_path: Path) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20, 3: 30}))
    waiting.prune()
    assert _entries(outstanding(str(tmp_path))) == [1, 2, 3]
    waiting.begin(10)
    waiting.end()
    waiting.begin(20)
    waiting.prune()

    assert _entries(outstanding(str(tmp_path))) == [2, 3]


def test_after_a_restart_what_has_a_receipt_waits_no_more(
    spark: SparkSession, waiting: Waiting, tmp_path: Path
) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20}))
    receipts = Receipts(spark, str(tmp_path))
    blank = dict.fromkeys(c.RECEIPT.names) | {c.CHUNK: 1, c.SOURCE: SOURCE, c.POSITION_LEDGER: 1}
    receipt = blank | {c.POSITION_ENTRY: 1, c.POSITION_BATCH: -1}
    receipts.append(spark.createDataFrame([tuple(receipt.values())], receipts.schema), 1)

    again = Waiting(spark, str(tmp_path))

    assert _entries(receipts.without_done(again.begin(100))) == [2]
    assert _entries(outstanding(str(tmp_path))) == [2]


def test_nothing_waits_where_nothing_was_ever_written(tmp_path: Path) -> None:
    assert list(outstanding(str(tmp_path))) == []
