"""`follow` with a real Spark: the notes are a stream, and Spark's workers produce the rows."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.rocketmq.convert.backfill import Backfill
from streaming.rocketmq.follow.lag import Lag
from streaming.rocketmq.follow.run import Follow
from tests.rocketmq_store import Store, small_store
from tests.unit.rocketmq.convert.test_backfill import database_of, expected_of
from tests.unit.rocketmq.converted import CLOCK, nothing, paths
from tests.unit.rocketmq.followed_store import grown, written

pytestmark = pytest.mark.spark


def test_a_store_is_followed_while_it_grows_and_then_finished(spark: SparkSession, tmp_path: Path) -> None:
    store, reports = written(small_store(tmp_path)), list[Lag]()

    def report(lag: Lag) -> None:
        if not reports:
            grown_in_place(store)
        if lag.units >= 29:
            follow.is_stopping.set()
        reports.append(lag)

    follow = Follow(paths=paths(tmp_path), clock=CLOCK, say=nothing, rows_per_file=7, report=report)
    too_late = threading.Timer(400, follow.is_stopping.set)
    too_late.start()
    assert follow.run(spark, until_caught_up=False).units == 29
    too_late.cancel()
    written(store)  # a stopped broker has all its units in the file queues
    assert (
        Follow(paths=paths(tmp_path), clock=CLOCK, say=nothing, rows_per_file=7)
        .run(spark, until_caught_up=True)
        .bytes_behind
        == 0
    )
    assert Backfill(paths=paths(tmp_path), clock=CLOCK, say=nothing).run(spark.sparkContext).resumed
    assert database_of(tmp_path) == expected_of(store)


def grown_in_place(store: Store) -> None:
    """Let files grow like a broker: existing files are written in place."""
    before = {path: path.read_bytes() for path in (store.root / "commitlog").iterdir()}
    grown(store, 30)
    size, padded = store.log_file_bytes, bytes(store.log) + bytes(-len(store.log) % store.log_file_bytes)
    for number in range(len(padded) // size):
        path = store.root / "commitlog" / f"{number * size:020d}"
        data = padded[number * size : (number + 1) * size]
        if before.get(path) != data:
            path.write_bytes(data)
