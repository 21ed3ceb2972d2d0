"""The empty batch before the first batch: it has no messages, and the plan of a real batch."""

import pytest
from pyspark.sql import SparkSession

from streaming.queries import early_start
from streaming.queries.early_start import read_empty_batch

pytestmark = pytest.mark.spark


def _kept(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


@pytest.mark.parametrize("connector", [True, False], ids=["connector", "our source"])
def test_the_empty_batch_reads_and_keeps_nothing(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, connector: bool
) -> None:
    monkeypatch.setattr(early_start, "has_connector", lambda: connector)
    before = _kept(spark)

    assert read_empty_batch(spark, 1000) == []

    assert _kept(spark) <= before  # Spark may drop what an earlier test has kept, at any time
