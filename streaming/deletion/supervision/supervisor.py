"""Watches all that runs until the service stops, and knows why it stopped."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from streaming.beside import Beside
from streaming.deletion.lanes.reader import LaneReader
from streaming.deletion.retries import DueLoop
from streaming.errors import ReaperError, SafetyError, UnavailableError
from streaming.queries.names import Query
from streaming.queries.running import RunningQueries
from streaming.spark.java_errors import raise_failure

log = logging.getLogger("ledger-reaper")

_POLL_S = 0.5
LEAVE_S = 2.0  # how long a stop lets running work come to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """What is checked again and again while the service runs."""

    is_idle: Callable[[], bool]  # whether the run is to end because nothing waits any more
    stuck: Callable[[], Mapping[Query, Exception]]  # queries that are given up although messages wait for them
    needs_operator: Callable[[], str]  # what the operator must do before any work continues, if the run is to end then
    is_spark_over: Callable[[], bool] = lambda: False  # whether Spark has ended although no stop was requested


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """One per service."""

    queries: RunningQueries
    due: DueLoop
    lanes: LaneReader | None = None
    upkeep: Beside
    find_gaps: Callable[[], Sequence[str]]
    beat: Callable[[], None] = lambda: None  # called at each pass of the loop
    failed: Mapping[Query, Exception] = field(default_factory=dict)
    broken: Exception | None = None
    gaps: list[str] = field(default_factory=list)
    was_idle: bool = False
    for_operator: str = ""

    def watch(self, stop: threading.Event, checks: Checks) -> None:
        """Check all that runs, until stop is set, something fails, or no work is left that continues by itself."""
        try:
            self._watch(stop, checks)
        finally:
            self.upkeep.stop()

    def _watch(self, stop: threading.Event, checks: Checks) -> None:
        while not stop.wait(_POLL_S):
            self.beat()
            if checks.is_spark_over():  # no query could start again, and each would stay parked for ever
                self.broken = UnavailableError(
                    "Spark has ended this application: its master or one of its users removed it; start again"
                )
                return
            self.failed = self.queries.check_once()
            if self.failed or not self.due.is_alive:
                self.broken = self.due.failure
                return
            if checks.is_idle():
                # a topic that the pattern matches since the last look-up may have requests
                if self.queries.look_up():
                    continue
                self.failed = checks.stuck()
                log.info("idle: %s", _idle_text(self.failed))
                self.was_idle = True
                # the run ends only after the accounts were checked once more: `--until-idle` reports lost messages
                # (decision 13)
                self.upkeep.finish(lambda: self.gaps.extend(self.find_gaps()), stop)
                return
            if (for_operator := checks.needs_operator()) and not self.queries.look_up():
                self.for_operator = for_operator
                return
            self.upkeep.check()
            self.upkeep.start()

    def stop(self, spark: SparkSession, *, leave_s: float = LEAVE_S) -> None:
        """Let running work end in a moment; then cancel it. Cancelled work is not committed, and runs again."""
        if self.lanes is not None:
            self.lanes.stop()
        is_over = self.due.join(leave_s)
        self.queries.stop()
        is_over = (self.lanes is None or self.lanes.join(leave_s)) and is_over
        if not (self.queries.join(leave_s) and is_over):
            with contextlib.suppress(Exception):  # if Spark has ended, it has no jobs
                spark.sparkContext.cancelAllJobs()
            self.queries.join()
            self.due.join(leave_s)
            if self.lanes is not None:
                self.lanes.join(leave_s)
        self.upkeep.join(LEAVE_S)

    def raise_failure(self, fatal: Sequence[Exception]) -> None:
        """Raise the failure that ended the service, those that need the operator first; return if nothing failed."""
        if fatal:
            raise fatal[0]
        if self.for_operator:
            raise SafetyError(f"what is left waits for the operator: {self.for_operator}")
        for failure in self.failed.values():
            raise failure
        raise_failure("of waiting retries", self.broken)
        self.upkeep.check()
        if self.gaps:
            raise ReaperError(f"not accounted for: {'; '.join(self.gaps)}")


def _idle_text(given_up: Mapping[Query, Exception]) -> str:
    if not given_up:
        return "no request is waiting"
    topics = ", ".join(query.topics[0] for query in given_up)
    return f"no request is waiting except those of {topics}, which failed too often"
