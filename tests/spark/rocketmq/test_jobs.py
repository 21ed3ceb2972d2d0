"""The two jobs with a real Spark: the functions of tests/unit/rocketmq in workers, with shuffles."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.errors import SafetyError
from streaming.rocketmq.convert.backfill import Backfill
from streaming.rocketmq.failures import our_errors
from streaming.rocketmq.inspect.check import Check
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.convert.test_backfill import database_of, expected_of
from tests.unit.rocketmq.converted import CLOCK, nothing, paths

pytestmark = pytest.mark.spark


def test_a_store_is_converted_and_checked(spark: SparkSession, tmp_path: Path) -> None:
    store = small_store(tmp_path).write(expired_files=1)
    result = Backfill(paths=paths(tmp_path), clock=CLOCK, say=nothing, rows_per_file=7).run(spark.sparkContext)
    assert result.files > 5
    assert database_of(tmp_path) == expected_of(store)
    assert Check(paths(tmp_path), CLOCK, nothing, rows_per_part=9).run(spark.sparkContext).findings == ()


def test_a_refusal_of_a_task_is_our_error_with_file_and_byte(spark: SparkSession, tmp_path: Path) -> None:
    small_store(tmp_path).write()
    file = tmp_path / "consumequeue" / "Orders" / "0" / ("0" * 20)
    raw = bytearray(file.read_bytes())
    raw[20:40] = bytes(20)
    file.write_bytes(raw)
    with pytest.raises(SafetyError, match=rf"{file}, byte 20"), our_errors():
        Backfill(paths=paths(tmp_path), clock=CLOCK, say=nothing).run(spark.sparkContext)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


@pytest.mark.long
def test_a_refusal_of_a_task_is_reported_without_a_traceback(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    file = tmp_path / "consumequeue" / "Orders" / "0" / ("0" * 20)
    raw = bytearray(file.read_bytes())
    raw[20:40] = bytes(20)
    file.write_bytes(raw)
    command = [sys.executable, "-m", "streaming", "rocketmq", "backfill", "--yes", "--store", str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 4, completed.stderr
    assert f"{file}, byte 20: the unit was not written" in completed.stderr
    assert "Traceback" not in completed.stderr
    assert "TaskSetManager" not in completed.stderr
