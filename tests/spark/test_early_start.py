"""The empty batch before the first batch: it has no messages, and the plan of a real batch."""

import pytest
from pyspark.sql import SparkSession

from streaming.queries.early_start import read_empty_batch

pytestmark = pytest.mark.spark


def test_the_empty_batch_reads_and_keeps_nothing(spark: SparkSession) -> None:
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()

    assert read_empty_batch(spark, 1000) == []

    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
