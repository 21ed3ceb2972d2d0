"""Keeps messages of RETRY until they are due, then processes them like a batch of requests.

`Retries` writes them to the waiting table and runs passes over those that are due. `DueLoop` schedules the passes in a
thread that sleeps until the next retry is due.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from streaming.beside import Beside, Work
from streaming.clock import Clock
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.gate import Gate, Outages
from streaming.errors import SafetyError, StopRequestedError
from streaming.metrics import Metrics
from streaming.queries.streams import Describe
from streaming.schemas import RETRY
from streaming.spark.java_errors import one_line
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting
from udfs.backoff import LONG

log = logging.getLogger("ledger-reaper")

_POLL_S = 0.5  # between two checks of stop; new retries wake the loop at once
_PRUNE_MS = 600_000
_NEVER_MS = 1 << 62


@dataclass(slots=True, kw_only=True)
class Retries:
    """One per service."""

    waiting: Waiting
    receipts: Receipts
    lock: FairLock
    gate: Gate
    outages: Outages
    metrics: Metrics
    clock: Clock
    describe: Describe
    on_kept: Callable[[], None] = lambda: None  # called when a batch has been written to the waiting table
    _passes: int = 0
    _may_repeat: bool = True  # an earlier run, or a query that ended, may have received the next batch

    def restart(self) -> None:
        """Expect that the first batch of the restarted query of RETRY may be in the waiting table already."""
        self._may_repeat = True

    def keep(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch of RETRY to the waiting table, except messages that it contains or that have a receipt.

        Raises StopRequestedError, FencedError.
        """
        may_repeat = self._may_repeat

        def append() -> None:
            nonlocal may_repeat
            self.gate.check_stop()
            self.gate.refuse_if_outdated()
            self._take_over()
            fresh = self.waiting.without_held(self.receipts.without_done(rows)) if may_repeat else rows
            may_repeat = True  # for another try: this one may have been stored although its answer was lost
            self.waiting.append(fresh)

        with self.lock:
            self.describe(RETRY, batch_id, "keeping messages until they are due")
            self.outages.wait_through(append)
        self._may_repeat = False
        self._show_how_many_wait()
        self.on_kept()

    def process_due(self, process: Callable[[str, int, DataFrame], None]) -> None:
        """Run a pass: give the retries that are due now to process(query, number of the pass, rows).

        The service passes LedgerDeletionService.process_rows. If `process` raises, the next pass has the same retries,
        except those that have a receipt by then.
        """
        with self.lock:
            self.outages.wait_through(self._take_over)
            is_doubtful = self.waiting.may_have_receipts
            due = self.waiting.start_pass(self.clock.now_ms())
        self._passes += 1
        try:
            rows = (self.receipts.without_done(due) if is_doubtful else due).persist()
            try:
                process(RETRY, self._passes, rows)
            finally:
                rows.unpersist()
        except BaseException:
            self.waiting.abandon_pass()
            raise
        self.waiting.end_pass()
        self._show_how_many_wait()

    def prune(self) -> None:
        """Remove processed retries from the waiting table."""
        with self.lock:
            self.waiting.prune()

    def _take_over(self) -> None:
        self.waiting.take_over(self.gate.coordination.still_mine, self.receipts.without_done)

    def _show_how_many_wait(self) -> None:
        self.metrics.waiting(self.waiting.count())


class DueLoop(Beside):
    """Runs passes over the waiting retries in a thread, until stop is set or a failure ends the service.

    A failed pass is repeated after a pause, and pauses grow. A pass that fails after stop was set was cut short by it.
    """

    def __init__(
        self,
        waiting: Waiting,
        process_due: Callable[[], None],
        prune: Callable[[], None],
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        """Take functions that run a pass, and that remove processed retries."""
        # a thread, because Spark calls a query only for new messages, and a retry that falls due is not new
        super().__init__(Work(name="due-retries", run=self._run), stop)
        self._waiting = waiting
        self._process_due = process_due
        self._prune = prune
        self._clock = clock
        self._woken = threading.Event()
        self._runs_pass = False
        self._pruned_ms = clock.now_ms()
        self._done_since = False
        self._failures = 0
        # called with the reason and the number of failures in a row; None: passes succeed again
        self.show: Callable[[Exception | None, int], None] = lambda _why, _failures: None
        # more failures in a row end the loop; None: only a SafetyError or a stop does
        self.most_failures: int | None = None
        self.passes = 0
        self.was_cut_short = False  # whether a stop interrupted a pass, which the next run repeats

    def wake(self) -> None:
        """Check again now when the next retry is due, because new retries wait."""
        self._woken.set()

    def is_empty(self) -> bool:
        """Whether no retry waits and no pass runs. Raises UnavailableError."""
        return not self._runs_pass and self._waiting.next_ms() is None

    def is_asleep(self) -> bool:
        """Whether no retry is due and no pass runs. Raises UnavailableError."""
        next_ms = self._waiting.next_ms()
        return not self._runs_pass and (next_ms is None or next_ms > self._clock.now_ms())

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                # before the table is read: a retry that arrives in between wakes the loop
                self._woken.clear()
                self._do_next(self._waiting.next_ms())
            except Exception as error:
                self.was_cut_short = self._stop.is_set()
                if self.was_cut_short and not isinstance(error, SafetyError | StopRequestedError):
                    log.info("the stop interrupted a pass over waiting retries: %s", one_line(error))
                    return
                self._failures += 1
                is_too_much = self.most_failures is not None and self._failures > self.most_failures
                if isinstance(error, SafetyError | StopRequestedError) or is_too_much:
                    raise
                self.show(error, self._failures)
                self._stop.wait(LONG.pause_s(self._failures))

    def _do_next(self, next_ms: int | None) -> None:
        now_ms = self._clock.now_ms()
        self._pruned_ms = min(self._pruned_ms, now_ms)  # the clock may be set back
        prune_ms = self._pruned_ms + _PRUNE_MS if self._done_since else _NEVER_MS
        if prune_ms <= now_ms:  # before a pass: under a steady load retries are always due
            self._pruned_ms, self._done_since = now_ms, False  # first: if pruning fails, due retries come next
            self._prune()
        elif next_ms is not None and next_ms <= now_ms:
            self._runs_pass = True
            self.passes += 1
            self._process_due()
            self._done_since = True
            if self._failures:
                self._failures = 0
                self.show(None, 0)
            self._runs_pass = False
        else:
            self._sleep_until(min(prune_ms, _NEVER_MS if next_ms is None else next_ms))

    def _sleep_until(self, until_ms: int) -> None:
        """Sleep until then, or until wake is called, the clock is set back, or the service stops."""
        before_ms = self._clock.now_ms()
        while not self._stop.is_set() and (left_ms := until_ms - before_ms) > 0:
            if self._woken.wait(min(_POLL_S, left_ms / 1000)):
                return
            now_ms = self._clock.now_ms()
            # the clock was set back: what is due is decided again
            if now_ms < before_ms:
                return
            before_ms = now_ms
