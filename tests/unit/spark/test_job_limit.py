"""Jobs that run without an end are given up, also where a JVM without memory answers slowly or not at all."""

import threading
import time
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from streaming.errors import ReaperError
from streaming.spark.job_limit import limited


class PaperSpark:
    """A job that runs until it is cancelled. slow_s: what each question takes. deaf: how many calls raise an error."""

    def __init__(self, slow_s: float = 0.0, deaf: int = 0, tasks: int = 1) -> None:
        self.slow_s = slow_s
        self.deaf = deaf
        self.tasks = tasks
        self.cancelled = threading.Event()

    @property
    def sparkContext(self) -> "PaperSpark":  # noqa: N802 - as Spark names it
        return self

    def statusTracker(self) -> "PaperSpark":  # noqa: N802
        return self

    def getLocalProperty(self, _name: str) -> str:  # noqa: N802
        return "group"

    def getJobIdsForGroup(self, _group: str) -> list[int]:  # noqa: N802
        time.sleep(self.slow_s)
        self._answer()
        return [1]

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802
        return [1]

    def getJobInfo(self, _job: int) -> Any:  # noqa: N802
        return type("Job", (), {"stageIds": [1]})

    def getStageInfo(self, _stage: int) -> Any:  # noqa: N802
        return type("Stage", (), {"numActiveTasks": self.tasks})

    def cancelJobGroup(self, _group: str) -> None:  # noqa: N802
        self._answer()
        self.cancelled.set()

    def _answer(self) -> None:
        if self.deaf > 0:
            self.deaf -= 1
            raise OSError("java.lang.OutOfMemoryError: Java heap space")

    def collect(self, at_most_s: float) -> None:
        """Run the job. Raises as Spark does where it is cancelled."""
        if self.cancelled.wait(at_most_s):
            raise RuntimeError("Job 1 cancelled part of cancelled job group group")


def seconds_to_the_end(spark: PaperSpark, limit_s: float) -> float:
    begun_s = time.monotonic()
    with (
        pytest.raises(ReaperError, match="took longer than"),
        limited(cast("SparkSession", spark), lambda: limit_s, "a batch: reading"),
    ):
        spark.collect(20)
    return time.monotonic() - begun_s


def test_a_job_is_given_up_after_its_time_however_slowly_the_jvm_answers() -> None:
    assert seconds_to_the_end(PaperSpark(slow_s=1.0), 3.0) < 6


def test_a_job_is_given_up_also_where_the_jvm_has_no_memory_to_answer() -> None:
    assert seconds_to_the_end(PaperSpark(deaf=3), 1.0) < 6


def test_a_job_that_waits_for_others_tasks_is_not_given_up() -> None:
    spark = PaperSpark(tasks=0)
    with limited(cast("SparkSession", spark), lambda: 0.1, "a batch: reading"):
        spark.collect(1.5)
    assert not spark.cancelled.is_set()
