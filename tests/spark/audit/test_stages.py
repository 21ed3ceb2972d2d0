"""What a phase wrote is counted without reading it."""

from pathlib import Path

import pyarrow.fs as pafs
import pytest
from pyspark.sql import SparkSession

from streaming.audit.place import Place
from streaming.audit.stages import Stages

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("ids", "expected"), [pytest.param([1, None, 3], 2, id="some without a value"), pytest.param([], 0, id="no rows")]
)
def test_what_a_phase_wrote_is_counted_from_its_files(
    spark: SparkSession, tmp_path: Path, ids: list[int | None], expected: int
) -> None:
    rows = spark.createDataFrame([(each,) for each in ids], "ledger_id bigint").repartition(2)

    kept = Stages(spark, Place(str(tmp_path), pafs.LocalFileSystem(), str(tmp_path)), ".work-1").keep("ledgers", rows)

    assert kept.count("ledger_id") == expected
    assert kept.rows.count() == len(ids)
