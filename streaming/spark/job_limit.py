"""Limits how long Spark jobs may run, because the connector never finishes some batches.

The content of such a batch may fill the JVM's memory. Then the JVM answers slowly or with an error, and the limit must
work even so: only the end of the jobs frees the memory.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession

from streaming.errors import ReaperError

_GROUP = "spark.jobGroup.id"
_POLL_S = 0.5


@contextlib.contextmanager
def limited(spark: SparkSession, seconds: Callable[[], float], what: str) -> Iterator[None]:
    """Cancel the jobs that this thread starts in the block once they have run for seconds(); raise ReaperError then.

    seconds: is called repeatedly, because the limit may change.
    """
    context = spark.sparkContext
    group = context.getLocalProperty(_GROUP)  # a streaming query's jobs have a group, which query.stop() cancels
    if not group:
        group = str(uuid.uuid4())
        context.setJobGroup(group, what)
    watch = _Watch(spark, group, seconds)
    watch.thread.start()
    try:
        yield
    except Exception as error:
        if watch.is_over:
            # not an UnavailableError: another try would take as long again
            raise ReaperError(f"{what} took longer than {watch.limit_s:.0f} s and was given up") from error
        raise
    finally:
        watch.ended.set()
        watch.thread.join()


class _Watch:
    def __init__(self, spark: SparkSession, group: str, seconds: Callable[[], float]) -> None:
        self._context = spark.sparkContext
        self._tracker = self._context.statusTracker()
        self._group = group
        self._seconds = seconds
        self._ran_s = 0.0
        self.limit_s = seconds()
        self.ended = threading.Event()
        self.is_over = False
        self.thread = threading.Thread(target=self._run, name="job-limit", daemon=True)

    def _run(self) -> None:
        checked_s = time.monotonic()
        while not self.ended.wait(_POLL_S):
            is_running = self._may_be_running()
            since_s, checked_s = checked_s, time.monotonic()
            # jobs without a running task wait for tasks of other jobs, and that time does not count
            if is_running:
                self._ran_s += checked_s - since_s
            if not self.is_over:
                self.limit_s = self._seconds()
            if self._ran_s >= self.limit_s:
                self.is_over = True
                if self._is_cancelled():
                    return

    def _is_cancelled(self) -> bool:
        try:
            self._context.cancelJobGroup(self._group)
        except Exception:  # a JVM without memory may fail at anything; the next check tries again
            return False
        return True

    def _may_be_running(self) -> bool:
        try:
            return self._is_running()
        except Exception:  # only a job that fills the memory makes this call fail, so it is running
            return True

    def _is_running(self) -> bool:
        jobs = set(self._tracker.getJobIdsForGroup(self._group)) & set(self._tracker.getActiveJobsIds())
        infos = (self._tracker.getJobInfo(job) for job in jobs)
        stages = (self._tracker.getStageInfo(stage) for info in infos if info is not None for stage in info.stageIds)
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)
