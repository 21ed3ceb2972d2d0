"""Waiting retries: each is processed once, when it is due, in any order of arrival."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.clock import Clock, ManualClock, SystemClock
from streaming.errors import FencedError, UnavailableError
from streaming.state.delta.delta_tables import Table, opened
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting, outstanding
from tests.builders import DAY_MS, MINUTE_MS, NOW_MS
from udfs import columns as c
from udfs.units import MAX_DELAY_MS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = "persistent://pulsar/system/d-RETRY-partition-0"


def _messages(spark: SparkSession, due: dict[int, int], published_ms: int = 0) -> DataFrame:
    """Return messages with these due times (ms) by entry."""
    rows: list[tuple[object, ...]] = [
        (SOURCE, 1, entry, -1, published_ms, ms, 0, None, b"{}", {}, None, None, None) for entry, ms in due.items()
    ]
    return spark.createDataFrame(rows, from_arrow_schema(schemas.MESSAGE))


def _entries(rows: DataFrame | Iterable[dict[str, Any]]) -> list[int]:
    collected = rows.collect() if isinstance(rows, DataFrame) else rows
    return sorted(row[c.POSITION_ENTRY] for row in collected)


class Disk:
    """Opens tables, or a replacement, unless the disk is down."""

    is_down = False
    replacement: Table | None = None

    def open(self, state_dir: str, table: str) -> Table | None:
        if self.is_down:
            raise UnavailableError("the disk is not available")
        return self.replacement or opened(state_dir, table)


def _run(
    spark: SparkSession,
    state: Path,
    *,
    is_newest: bool = True,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Waiting:
    """Start a run that has taken over the table."""
    waiting = Waiting(spark, str(state), (disk or Disk()).open, clock)
    waiting.take_over(lambda: is_newest, Receipts(spark, str(state)).without_done)
    return waiting


@pytest.fixture
def waiting(spark: SparkSession, tmp_path: Path) -> Waiting:
    return _run(spark, tmp_path)


def _receipts(spark: SparkSession, state: Path, *entries: int) -> Receipts:
    """Write a chunk of receipts for these entries."""
    receipts = Receipts(spark, str(state))
    chunk = receipts.newest_chunk + 1
    blank = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk, c.SOURCE: SOURCE, c.POSITION_LEDGER: 1}
    rows = [tuple((blank | {c.POSITION_ENTRY: entry, c.POSITION_BATCH: -1}).values()) for entry in entries]
    receipts.append(spark.createDataFrame(rows, from_arrow_schema(schemas.RECEIPT)), chunk)
    return receipts


def test_a_shorter_delay_that_came_later_is_due_first(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 600_000}))
    waiting.append(_messages(spark, {2: 5_000}))

    assert waiting.next_ms() == 5_000
    assert _entries(waiting.start_pass(4_999)) == []
    assert _entries(waiting.start_pass(5_000)) == [2]
    waiting.end_pass()
    assert waiting.next_ms() == 600_000
    assert waiting.count() == 1


def test_a_retry_that_arrives_after_its_due_time_is_in_the_next_pass(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10}))
    assert _entries(waiting.start_pass(100)) == [1]
    waiting.append(_messages(spark, {2: 10, 3: 100}))  # while the pass runs
    waiting.end_pass()

    assert waiting.next_ms() == 101
    assert _entries(waiting.start_pass(101)) == [2, 3]
    waiting.end_pass()
    assert waiting.next_ms() is None


def test_a_clock_that_goes_back_neither_loses_nor_repeats_retries(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10}))
    assert _entries(waiting.start_pass(100)) == [1]
    waiting.end_pass()
    waiting.append(_messages(spark, {2: 20}))

    assert _entries(waiting.start_pass(50)) == []
    waiting.end_pass()
    assert _entries(waiting.start_pass(101)) == [2]


def test_rows_of_many_batches_are_numbered_again_by_due_time(spark: SparkSession, waiting: Waiting) -> None:
    for entry, ms in ((1, 30), (2, 20), (3, 10)):
        waiting.append(_messages(spark, {entry: ms}))

    rows = {row[c.POSITION_ENTRY]: row[c.ROW] for row in waiting.start_pass(100).collect()}

    assert rows == {3: 0, 2: 1, 1: 2}


def test_a_batch_that_is_delivered_again_is_kept_once(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20}))
    assert _entries(waiting.without_held(_messages(spark, {1: 10, 2: 20, 3: 30}))) == [3]


def test_pruning_removes_only_retries_of_completed_passes(
    spark: SparkSession, waiting: Waiting, tmp_path: Path
) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20, 3: 30}))
    waiting.prune()
    assert _entries(outstanding(str(tmp_path))) == [1, 2, 3]
    waiting.start_pass(10)
    waiting.end_pass()
    waiting.start_pass(20)
    waiting.prune()

    assert _entries(outstanding(str(tmp_path))) == [2, 3]


def test_an_abandoned_pass_is_repeated_and_may_find_receipts(spark: SparkSession, waiting: Waiting) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20}))
    waiting.start_pass(10)
    waiting.end_pass()
    assert not waiting.may_have_receipts
    assert _entries(waiting.start_pass(20)) == [2]
    waiting.abandon_pass()
    assert waiting.may_have_receipts
    assert waiting.next_ms() == 20
    assert _entries(waiting.start_pass(21)) == [2]


def test_a_publish_time_in_the_far_future_does_not_delay_a_retry_for_ever(
    spark: SparkSession, waiting: Waiting
) -> None:
    before_ms = SystemClock().now_ms()
    waiting.append(_messages(spark, {1: 253_402_300_799_999}))
    next_ms = waiting.next_ms()
    assert next_ms is not None
    assert before_ms + MAX_DELAY_MS <= next_ms <= SystemClock().now_ms() + MAX_DELAY_MS


YEAR_MS = 366 * DAY_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def timed(spark: SparkSession, tmp_path: Path, clock: ManualClock) -> Waiting:
    return _run(spark, tmp_path, clock=clock)


def test_after_a_pass_with_a_clock_a_year_ahead_retries_wait_their_usual_delay(
    spark: SparkSession, timed: Waiting, clock: ManualClock
) -> None:
    timed.append(_messages(spark, {1: NOW_MS - 5}))
    clock.advance(YEAR_MS)
    assert _entries(timed.start_pass(clock.now_ms())) == [1]
    timed.append(_messages(spark, {2: NOW_MS + 600_000}, published_ms=NOW_MS))  # while the pass runs
    timed.end_pass()
    clock.advance(-YEAR_MS + MINUTE_MS)
    timed.append(_messages(spark, {3: NOW_MS + 660_000}, published_ms=NOW_MS + MINUTE_MS))

    next_ms = timed.next_ms()
    assert next_ms is not None
    assert next_ms <= clock.now_ms()
    assert _entries(timed.start_pass(clock.now_ms())) == [2, 3]
    timed.end_pass()
    assert timed.next_ms() is None
    timed.append(_messages(spark, {4: NOW_MS + 900_000}, published_ms=NOW_MS + 300_000))
    assert timed.next_ms() == NOW_MS + MINUTE_MS + 600_000


def test_retries_of_a_run_with_a_clock_a_year_ahead_wait_a_week_at_most_after_a_restart(
    spark: SparkSession, timed: Waiting, clock: ManualClock, tmp_path: Path
) -> None:
    clock.advance(YEAR_MS)
    timed.start_pass(clock.now_ms())
    timed.end_pass()
    timed.append(_messages(spark, {1: 600_000, 2: NOW_MS}))
    _receipts(spark, tmp_path, 2)  # then the run was killed before it pruned
    clock.advance(-YEAR_MS)

    again = _run(spark, tmp_path, clock=clock)

    assert again.next_ms() == NOW_MS
    assert again.may_have_receipts
    due = again.start_pass(NOW_MS)
    assert _entries(Receipts(spark, str(tmp_path)).without_done(due)) == [1]


def test_a_clock_that_goes_back_a_year_strands_no_retry(
    spark: SparkSession, timed: Waiting, clock: ManualClock
) -> None:
    timed.append(_messages(spark, {1: NOW_MS + 600_000}, published_ms=NOW_MS))
    clock.advance(-YEAR_MS)
    assert timed.next_ms() == clock.now_ms()
    assert _entries(timed.start_pass(clock.now_ms())) == [1]
    timed.end_pass()
    timed.append(_messages(spark, {2: NOW_MS + 600_000}, published_ms=NOW_MS))
    assert timed.next_ms() == clock.now_ms() + 600_000


def test_a_pass_that_was_abandoned_while_the_clock_was_ahead_may_find_receipts(
    spark: SparkSession, timed: Waiting, clock: ManualClock
) -> None:
    timed.append(_messages(spark, {1: NOW_MS, 2: NOW_MS + 5}))
    clock.advance(YEAR_MS)
    timed.start_pass(clock.now_ms())
    timed.abandon_pass()
    clock.advance(-YEAR_MS + MINUTE_MS)
    assert timed.may_have_receipts
    assert _entries(timed.start_pass(clock.now_ms())) == [1, 2]


def test_a_table_of_an_older_version_gets_the_missing_columns(spark: SparkSession, tmp_path: Path) -> None:
    older = pa.schema([field for field in schemas.WAITING if field.name != c.NO_REQUEST])
    DeltaTable.create(str(tmp_path / "waiting"), older)
    waiting = _run(spark, tmp_path)
    waiting.append(_messages(spark, {1: 10}))
    assert [row[c.NO_REQUEST] for row in waiting.start_pass(10).collect()] == [None]


def test_after_a_restart_retries_with_a_receipt_wait_no_more(
    spark: SparkSession, waiting: Waiting, tmp_path: Path
) -> None:
    waiting.append(_messages(spark, {1: 10, 2: 20}))
    receipts = _receipts(spark, tmp_path, 1)

    again = _run(spark, tmp_path)

    assert again.may_have_receipts
    assert _entries(receipts.without_done(again.start_pass(100))) == [2]
    assert _entries(outstanding(str(tmp_path))) == [2]


def test_nothing_waits_before_the_first_write(tmp_path: Path) -> None:
    assert list(outstanding(str(tmp_path))) == []


def test_receipts_in_the_future_of_a_slow_clock_count_until_passes_have_reached_them(
    spark: SparkSession, waiting: Waiting, tmp_path: Path
) -> None:
    """A run was killed before it pruned, and was started again on a machine with a slow clock."""
    waiting.append(_messages(spark, {1: 10, 2: 5_000, 3: 9_000}))
    receipts = _receipts(spark, tmp_path, 1, 2)
    again = _run(spark, tmp_path)
    passes = []
    for now_ms in (100, 4_999, 5_000, 9_000):
        is_doubtful = again.may_have_receipts
        due = again.start_pass(now_ms)
        passes.append((is_doubtful, _entries(receipts.without_done(due) if is_doubtful else due)))
        again.end_pass()

    assert passes == [(True, []), (True, []), (True, []), (False, [3])]


def test_a_stalled_run_can_not_add_rows_after_the_passes_of_a_newer_run(
    spark: SparkSession, waiting: Waiting, tmp_path: Path
) -> None:
    waiting.append(_messages(spark, {0: 10}))
    new = _run(spark, tmp_path)
    assert _entries(new.start_pass(1_000)) == [0]
    new.end_pass()

    with pytest.raises(FencedError):
        waiting.append(_messages(spark, {1: 500, 2: 600}))

    new.append(new.without_held(_messages(spark, {1: 500, 2: 600})))
    assert new.count() == 2
    assert _entries(new.start_pass(2_000)) == [1, 2]


def test_a_stalled_run_removes_no_rows_of_a_newer_run(spark: SparkSession, waiting: Waiting, tmp_path: Path) -> None:
    waiting.append(_messages(spark, {0: 10}))
    waiting.start_pass(1_000)
    waiting.end_pass()
    new = _run(spark, tmp_path)
    new.append(_messages(spark, {1: 500}))

    with pytest.raises(FencedError):
        waiting.prune()

    assert _entries(outstanding(str(tmp_path))) == [0, 1]


class Sleeper(Table):
    """A table whose run is suspended once, right before one of its calls."""

    sleeps_before: str
    during_sleep: Callable[[], None] | None = None

    def _sleep(self, call: str) -> None:
        if call == self.sleeps_before and self.during_sleep is not None:
            during_sleep, self.during_sleep = self.during_sleep, None
            during_sleep()

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        self._sleep("delete")
        return super().delete(*args, **kwargs)

    @property
    def optimize(self) -> Any:
        self._sleep("optimize")
        return super().optimize

    def vacuum(self, *args: Any, **kwargs: Any) -> Any:
        self._sleep("vacuum")
        return super().vacuum(*args, **kwargs)

    def create_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._sleep("create_checkpoint")
        super().create_checkpoint(*args, **kwargs)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("delete", marks=pytest.mark.long),
        pytest.param("optimize", marks=pytest.mark.long),
        "vacuum",
        pytest.param("create_checkpoint", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_suspended_for_days_while_it_prunes_removes_no_rows_of_a_newer_run(
    spark: SparkSession, tmp_path: Path, call: str
) -> None:
    waiting = _run(spark, tmp_path, disk=(disk := Disk()))
    waiting.append(_messages(spark, {0: 10, 1: 2_000}))
    waiting.start_pass(1_000)
    waiting.end_pass()
    newer: list[Waiting] = []

    def take_over() -> None:
        _receipts(spark, tmp_path, 0)
        newer.append(_run(spark, tmp_path))
        newer[0].append(_messages(spark, {2: 500}))
        newer[0].start_pass(1_000)
        newer[0].end_pass()
        newer[0].prune()
        newer[0].append(_messages(spark, {3: 500}))
        for file in tmp_path.glob("waiting/*.parquet"):
            os.utime(file, (0, 0))

    sleeper = Sleeper(str(tmp_path / "waiting"))
    sleeper.sleeps_before, sleeper.during_sleep = call, take_over
    disk.replacement = sleeper
    with contextlib.suppress(CommitFailedError):  # the newer run has removed the rows, too
        waiting.prune()

    assert sleeper.during_sleep is None
    assert _entries(outstanding(str(tmp_path))) == [1, 3]
    newer[0].append(_messages(spark, {4: 600}))
    assert _entries(newer[0].start_pass(2_000)) == [1, 3, 4]


def test_of_two_runs_that_take_over_only_the_newer_continues(
    spark: SparkSession, waiting: Waiting, tmp_path: Path
) -> None:
    with pytest.raises(FencedError):
        _run(spark, tmp_path, is_newest=False)
    new = _run(spark, tmp_path)
    new.append(_messages(spark, {1: 10}))
    new.start_pass(10)
    new.end_pass()
    new.prune()  # pruning writes a checkpoint of the table

    with pytest.raises(FencedError):
        waiting.append(_messages(spark, {2: 20}))
    assert _entries(_run(spark, tmp_path).start_pass(100)) == []


def test_an_append_whose_answer_was_lost_is_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    disk = Disk()
    waiting = _run(spark, tmp_path, disk=disk)
    disk.is_down = True
    with pytest.raises(UnavailableError):
        waiting.append(_messages(spark, {1: 10}))
    disk.is_down = False
    waiting.append(_messages(spark, {1: 10}))
    waiting.append(_messages(spark, {2: 10}))

    assert waiting.count() == 2
