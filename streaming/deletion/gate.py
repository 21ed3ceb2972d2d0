"""Blocks the work during a pause, a migration to another metadata store and a hold by a limit (Gate), and during an
outage of a service or a disk (Outages).

Both raise when the service is to stop. The gate also raises when another instance has taken over, and Outages records
the failures that must end the service.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from streaming.clock import Clock
from streaming.deletion.instance import Coordination
from streaming.errors import FencedError, SafetyError, StopRequestedError, UnavailableError, WorkersLostError
from streaming.limits.enforcement import BlastRadius
from streaming.metrics import Metrics
from streaming.spark.java_errors import translated
from streaming.state.notes import hold
from udfs.backoff import Backoff
from udfs.blast_radius import Chunk, DryRunPlan, Planned

_BACKOFF = Backoff((1, 2, 5, 10, 30))
PAUSED = "paused: "  # how the reason of a pause starts
_MOST_LOSSES = 3  # Spark tries a task four times itself; more losses are probably caused by the work


@dataclass(slots=True, kw_only=True)
class Gate:
    """One per service. While a chunk waits, a note in state_dir tells `receipts` and `status` the reason."""

    coordination: Coordination
    blast_radius: BlastRadius
    metrics: Metrics
    clock: Clock
    log: Callable[[str], None]
    stop: threading.Event
    state_dir: str
    poll_s: float
    held: str = ""  # why a chunk waits here now; "" while no chunk waits
    _may_be_noted: bool = True  # an earlier run may have left a note
    _logged: str = ""  # the hold that the log named last
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def check_stop(self) -> None:
        """Raise StopRequestedError once the service is to stop."""
        if self.stop.is_set():
            raise StopRequestedError

    def refuse_if_outdated(self) -> None:
        """Raise FencedError if another instance has the epoch."""
        if not self.coordination.still_mine():
            raise FencedError("another instance of this service has taken over; this one stops")

    def wait_until_open(self) -> None:
        """Return once deleting is allowed. Raises StopRequestedError, FencedError, UnavailableError."""
        self.check_stop()
        noted = ""
        try:
            while why := self._held():
                self._log(why)
                if why != noted:
                    self._note(why)
                noted = self.held = why
                if self.stop.wait(self.poll_s):
                    raise StopRequestedError
        finally:
            self.held = ""
        self._log("")
        if self._may_be_noted:
            self._note("")
        self.coordination.await_broker()
        # checked last: another instance may have started while this one waited
        self.refuse_if_outdated()
        self.blast_radius.go_on()

    def log_hold(self) -> None:
        """Log what holds the work now, or that a hold has ended, even if no chunk waits here. Raises UnavailableError.

        Any thread may call it.
        """
        self._log(self._reason(self.blast_radius.breaker.reason()))

    def _log(self, why: str) -> None:
        with self._guard:
            if why != self._logged:
                self.log(why or f"resumed; it was {self._logged}")
            self._logged = why

    def bound(self, chunk: Chunk, asked: Planned, plan: Callable[[], DryRunPlan]) -> tuple[int, ...] | None:
        """Hold a chunk while it would break a limit. Return the most deletes by task (None: as many as requested).

        asked, plan: as BlastRadius.judge takes them. Raises what wait_until_open does.
        """
        why, by_task = self.blast_radius.judge(chunk, asked, plan)
        if why:
            self._hold(why, chunk.query)
        return by_task

    def hold_if_doubted(self, query: str, doubt: str) -> None:
        """Hold a query's chunk whose in-use sets are doubted, unless the operator has resumed exactly this doubt.

        Raises what wait_until_open does.
        """
        if self.blast_radius.doubt(query, doubt):
            self._hold(doubt, query, doubt)

    def _hold(self, why: str, query: str, doubt: str = "") -> None:
        self.blast_radius.trip(why, query, doubt)
        self.metrics.tripped(why)
        self.wait_until_open()

    def _held(self) -> str:
        """Return for the log why nothing may be deleted now; "" if deleting is allowed."""
        limit = self.blast_radius.held()
        self.metrics.tripped(limit)
        return self._reason(limit)

    def _reason(self, limit: str) -> str:
        if paused := self.coordination.paused():
            return f"{PAUSED}{paused}"
        if migration := self.coordination.migration():
            return migration
        if limit:
            return (
                f"LIMIT REACHED, nothing more is deleted: {limit}. Find out why, then `ledger-reaper resume --limit`."
            )
        return ""

    def _note(self, why: str) -> None:
        hold.note(self.state_dir, why, now_ms=self.clock.now_ms())
        self._may_be_noted = bool(why)


@dataclass(slots=True, kw_only=True)
class Outages:
    """Repeats steps during outages, and stops the service if it must end. A service has one, for all threads."""

    stop: threading.Event
    metrics: Metrics
    log: Callable[[str], None]
    backoff: Backoff = _BACKOFF  # between the tries of a step
    # failures that need the operator: they set stop, and the service exits with the first of them
    fatal: list[Exception] = field(default_factory=list)
    _waiting: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def wait_through(self, step: Callable[[], None]) -> None:
        """Repeat a step until no service is unavailable. A step may be repeated after it was partly done.

        Raises StopRequestedError when the service is to stop, and any other failure of the step at once. A step that
        loses its executors _MOST_LOSSES times in a row fails too.
        """
        failures, losses = 0, 0
        try:
            while True:
                try:
                    step()
                    return
                except Exception as error:
                    failure = translated(error)
                    losses = losses + 1 if isinstance(failure, WorkersLostError) else 0
                    # a step that loses its executors again and again blocks all other work
                    if not isinstance(failure, UnavailableError) or losses >= _MOST_LOSSES:
                        self.fail(failure)
                        raise failure from error
                    failures += 1
                    wait_s = self.backoff.pause_s(failures)
                    self.log(f"waiting {wait_s} s: {failure}")
                    self.metrics.outage()
                    if failures == 1:
                        self._show(1)
                    if self.stop.wait(wait_s):
                        raise StopRequestedError from error
        finally:
            # not after each wait: a try that waits for a timeout is part of the outage, and its alert must not end
            if failures:
                self._show(-1)

    def _show(self, change: int) -> None:
        with self._guard:
            self._waiting += change
            self.metrics.outages(self._waiting)

    def fail(self, failure: Exception) -> None:
        """Stop the service if the failure is a SafetyError: to continue could delete live data."""
        if isinstance(failure, SafetyError) and failure not in self.fatal:
            self.fatal.append(failure)
            self.stop.set()
