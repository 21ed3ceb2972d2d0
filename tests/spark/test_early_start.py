"""The batch that is read before the first one: it has no messages, and its plan is that of a real one."""

import pytest
from pyspark.sql import SparkSession

from streaming.queries.early_start import read_empty_batch

pytestmark = pytest.mark.spark


def test_before_the_first_batch_nothing_is_read_and_nothing_kept(spark: SparkSession) -> None:
    kept = spark.sparkContext._jsc.getPersistentRDDs().size()

    assert read_empty_batch(spark, 1000) == []

    assert spark.sparkContext._jsc.getPersistentRDDs().size() == kept
