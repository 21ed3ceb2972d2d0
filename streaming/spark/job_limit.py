"""A limit to how long Spark jobs may run: the connector reads some batches without an end.

Only the time counts in which one of their tasks runs: jobs wait for others' tasks to end, and that is nobody's fault.
What such a batch holds may also fill the JVM's memory. Then the JVM answers slowly, or with an error, and the limit has
to hold all the same: it is what gives the memory back.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession

from streaming.errors import ReaperError

_GROUP = "spark.jobGroup.id"
_LOOK_S = 0.5


@contextlib.contextmanager
def limited(spark: SparkSession, seconds: Callable[[], float], what: str) -> Iterator[None]:
    """Cancel the jobs that this thread runs in the block once they have run so long; then raise ReaperError.

    seconds: is asked again and again, for the limit may change. The error is no UnavailableError: to wait and try again
    would take as long once more.
    """
    context = spark.sparkContext
    group = context.getLocalProperty(_GROUP)  # a streaming query's jobs have one, by which its stop cancels them
    if not group:
        group = str(uuid.uuid4())
        context.setJobGroup(group, what)
    watch = _Watch(spark, group, seconds)
    watch.thread.start()
    try:
        yield
    except Exception as error:
        if watch.is_over:
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
        looked_s = time.monotonic()
        while not self.ended.wait(_LOOK_S):
            is_running = self._may_be_running()
            since_s, looked_s = looked_s, time.monotonic()
            if is_running:
                self._ran_s += looked_s - since_s
            if not self.is_over:
                self.limit_s = self._seconds()
            if self._ran_s >= self.limit_s:
                self.is_over = True
                if self._is_cancelled():
                    return

    def _is_cancelled(self) -> bool:
        try:
            self._context.cancelJobGroup(self._group)
        except Exception:  # a JVM without memory fails of anything; we ask again
            return False
        return True

    def _may_be_running(self) -> bool:
        try:
            return self._is_running()
        except Exception:  # the same; nobody but such a job keeps it from telling
            return True

    def _is_running(self) -> bool:
        jobs = set(self._tracker.getJobIdsForGroup(self._group)) & set(self._tracker.getActiveJobsIds())
        infos = (self._tracker.getJobInfo(job) for job in jobs)
        stages = (self._tracker.getStageInfo(stage) for info in infos if info is not None for stage in info.stageIds)
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)
