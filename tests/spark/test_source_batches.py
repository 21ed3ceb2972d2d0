"""A batch of our own source: its messages, its bounds, and what Pulsar deleted."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.adapters.pulsar.readers.admin_entries import WITHHELD
from streaming.errors import UnavailableError
from streaming.queries.delivery import source_batches
from streaming.queries.delivery.completion import MOST_SECONDS_WHILE_OTHERS_WAIT, Extent
from streaming.queries.delivery.read_end import ReadEnd, end_row
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.delivery.source_batches import Losses, SourceBatches
from streaming.queries.delivery.withheld import GIVES_UP_S
from streaming.queries.streams import coalesced
from streaming.state.notes.lost_entries import Loss
from udfs import columns as c
from udfs.entry_ranges import EntrySpan

pytestmark = pytest.mark.spark

QUERY = "requests-1"
LOSS = Loss((3, 0), True, "gone")
ENDS = {
    "a": ReadEnd((7, 1), last_row=1, oldest_ledger=6),
    "b": ReadEnd((9, 0), empty=(EntrySpan(9, 0, 0),), oldest_ledger=9),
    "c": ReadEnd(None, lost=(LOSS,)),
}
MESSAGES = {"a": 2, "b": 0, "c": 0}


class PaperSlots:
    """Grants slots at once, and records how many partitions each read has."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.others_wait = self.has_failed = False

    @contextmanager
    def of(self, _query: str, partitions: int) -> Iterator[Callable[[], bool]]:
        self.held.append(partitions)
        yield lambda: self.others_wait

    def is_slow(self, _query: str) -> bool:
        return self.has_failed


class Batches:
    """SourceBatches with a clock, and what it reported."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.reported: list[Losses] = []
        self.slots = PaperSlots()
        self.batches = SourceBatches(
            slots=cast("ReadSlots", self.slots),
            reading_seconds=5,
            report=self.reported.append,
            monotonic=lambda: self.now_s,
        )


def _rows(batches: Iterator[pa.RecordBatch], failure: str, deleted: Path | None) -> Iterator[pa.RecordBatch]:
    blank = dict.fromkeys(schemas.MESSAGE.names)
    for batch in batches:
        for name in batch.column(0).to_pylist():
            if failure:
                raise UnavailableError(failure)
            rows = [
                blank | {c.SOURCE: name, c.POSITION_LEDGER: 7, c.POSITION_ENTRY: n, c.POSITION_BATCH: -1, c.ROW: n}
                for n in range(MESSAGES[name])
            ]
            end = ENDS[name]
            if deleted is not None and deleted.exists():
                end = replace(end, lost=(LOSS,))
            yield pa.RecordBatch.from_pylist([*rows, end_row(name, end)], schema=schemas.MESSAGE)


def _source(spark: SparkSession, failure: str = "", deleted: Path | None = None) -> DataFrame:
    names = spark.createDataFrame([(name,) for name in ENDS], "name string").coalesce(1)
    return names.mapInArrow(partial(_rows, failure=failure, deleted=deleted), from_arrow_schema(schemas.MESSAGE))


def test_a_batch_is_its_messages_with_bounds_and_losses(spark: SparkSession) -> None:
    batches = Batches()
    delivered = coalesced(_source(spark), 1000, 2).persist()
    try:
        completed = batches.batches(QUERY, 1, delivered)
        assert [(row[c.SOURCE], row[c.ROW]) for row in completed.rows.collect()] == [("a", 0), ("a", 1)]
    finally:
        delivered.unpersist()
    assert completed.extent == Extent({"a": 1}, 6)
    assert completed.worked_off == {"b": (EntrySpan(9, 0, 0),)}
    assert batches.reported == [{"c": (LOSS,)}]
    assert batches.slots.held == [1]


@pytest.mark.parametrize("is_cluster", [True, False])
def test_a_batch_whose_rows_change_while_it_is_processed_runs_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_cluster: bool
) -> None:
    monkeypatch.setattr(source_batches, "is_local", lambda _master: not is_cluster)
    batches, deleted = Batches(), tmp_path / "deleted"
    completed = batches.batches(QUERY, 1, _source(spark, deleted=deleted))  # not persisted, so it is read each time
    completed.confirm()
    deleted.touch()
    if not is_cluster:  # an executor on this machine is lost with the driver
        completed.confirm()
        return
    with pytest.raises(UnavailableError, match="other entries than before"):
        completed.confirm()


def test_entries_are_given_up_after_ten_minutes_in_which_each_batch_failed_for_them(spark: SparkSession) -> None:
    batches = Batches()
    for now_s, failure, gives_up in (
        (0.0, WITHHELD, False),
        (GIVES_UP_S - 1, WITHHELD, False),
        (GIVES_UP_S, "its bookies are away", False),
        (GIVES_UP_S, WITHHELD, False),
        (2 * GIVES_UP_S, WITHHELD, True),
    ):
        batches.now_s = now_s
        with pytest.raises(Exception, match=failure):
            batches.batches(QUERY, 1, _source(spark, failure))
        assert batches.batches.gives_up(QUERY) is gives_up
    batches.batches.forget(QUERY)
    assert not batches.batches.gives_up(QUERY)


@pytest.mark.parametrize(
    ("others_wait", "has_failed", "seconds"),
    [
        pytest.param(False, False, math.inf, id="alone"),
        pytest.param(True, False, 5 + MOST_SECONDS_WHILE_OTHERS_WAIT, id="others wait"),
        pytest.param(True, True, math.inf, id="in the slots of queries that have failed"),
    ],
)
def test_a_read_that_others_wait_for_has_a_limit_until_its_query_has_failed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, others_wait: bool, has_failed: bool, seconds: float
) -> None:
    batches = Batches()
    limits: list[float] = []

    @contextmanager
    def limited(_spark: SparkSession, seconds: Callable[[], float], _what: str) -> Iterator[None]:
        batches.slots.others_wait, batches.slots.has_failed = others_wait, has_failed
        limits.append(seconds())
        yield

    monkeypatch.setattr(source_batches, "limited", limited)
    batches.batches(QUERY, 1, _source(spark))
    assert limits == [seconds]
