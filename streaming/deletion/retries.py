"""Retries: messages of RETRY are kept until they are due, and then worked off like a batch of requests.

`Retries` writes them to the waiting table and makes passes over those that are due. `DueLoop` says when: a thread of
its own, which sleeps until the next one is due. Spark would not: it calls a query only when something new arrives, and
what has waited long enough is nothing new.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from streaming.clock import Clock
from streaming.deletion.gate import Gate
from streaming.deletion.outages import Outages
from streaming.deletion.turn import Turn
from streaming.errors import SafetyError, StopRequestedError
from streaming.metrics import Metrics
from streaming.queries.streams import Describe
from streaming.schemas import RETRY
from streaming.spark.failures import one_line
from streaming.state.receipts import Receipts
from streaming.state.waiting import Waiting

log = logging.getLogger("ledger-reaper")

_LOOK_S = 0.5  # between two looks at stop; what arrives cuts a sleep short
_PRUNE_MS = 600_000
_NEVER_MS = 1 << 62
_PAUSES_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # after passes that failed


@dataclass(slots=True)
class Retries:
    """One per service. on_kept is called when a batch has been kept."""

    waiting: Waiting
    receipts: Receipts
    turn: Turn
    gate: Gate
    outages: Outages
    metrics: Metrics
    clock: Clock
    describe: Describe
    on_kept: Callable[[], None] = lambda: None
    _passes: int = 0
    _may_repeat: bool = True  # the next batch may have come to an earlier run, or to a query that ended

    def begin_again(self) -> None:
        """The query of RETRY is started once more: its first batch may be one that is kept already."""
        self._may_repeat = True

    def keep(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch of RETRY to the waiting table, but for what is there already or has a receipt.

        Raises StopRequestedError, FencedError.
        """
        may_repeat = self._may_repeat

        def append() -> None:
            nonlocal may_repeat
            self.gate.check_stop()
            self.gate.refuse_if_outdated()
            self._take_over()
            fresh = self.waiting.without_held(self.receipts.without_done(rows)) if may_repeat else rows
            may_repeat = True  # should it be tried again: this try may have been stored, and only its answer lost
            self.waiting.append(fresh)

        with self.turn:
            self.describe(RETRY, batch_id, "keeping messages until they are due")
            self.outages.wait_through(append)
        self._may_repeat = False
        self._show_how_many_wait()
        self.on_kept()

    def work_off_due(self, work_off: Callable[[str, int, DataFrame], None]) -> None:
        """Make one pass: hand the retries that are due now to work_off(query, number of the pass, rows).

        Where it raises, the next pass has the same retries, but for those that have a receipt by then.
        """
        with self.turn:
            self.outages.wait_through(self._take_over)
            is_doubtful = self.waiting.may_have_receipts
            due = self.waiting.start_pass(self.clock.now_ms())
        self._passes += 1
        try:
            rows = (self.receipts.without_done(due) if is_doubtful else due).persist()
            try:
                work_off(RETRY, self._passes, rows)
            finally:
                rows.unpersist()
        except BaseException:
            self.waiting.abandon_pass()
            raise
        self.waiting.end_pass()
        self._show_how_many_wait()

    def prune(self) -> None:
        """Remove from the waiting table what is worked off."""
        with self.turn:
            self.waiting.prune()

    def _take_over(self) -> None:
        self.waiting.take_over(self.gate.coordination.still_mine, self.receipts.without_done)

    def _show_how_many_wait(self) -> None:
        self.metrics.waiting(self.waiting.count())


class DueLoop:
    """Runs passes over the waiting retries. work_off() makes one pass, and prune() removes what is worked off.

    A pass that fails is made again after a pause, and pauses grow; one that fails once stop is set was cut short by it.
    show(why, failures): is told of failures; why None: it goes on. most_failures: with more of them in a row the loop
    ends; None: only where safety is concerned.
    """

    def __init__(
        self,
        waiting: Waiting,
        work_off: Callable[[], None],
        prune: Callable[[], None],
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        self._waiting = waiting
        self._work_off = work_off
        self._prune = prune
        self._clock = clock
        self._stop = stop
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="due-retries", daemon=True)
        self._is_busy = False
        self._pruned_ms = clock.now_ms()
        self._done_since = False
        self._failures = 0
        self.show: Callable[[Exception | None, int], None] = lambda _why, _failures: None
        self.most_failures: int | None = None
        self.passes = 0
        self.failure: Exception | None = None
        self.was_cut_short = False
        """Whether a stop broke a pass off: the next run makes it again."""

    def start(self) -> None:
        """Begin. The loop ends when stop is set, or where it must not go on; `failure` says why."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end, after stop was set; False where a pass still runs."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Look again now when the next retry is due: something new waits."""
        self._woken.set()

    @property
    def is_alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    def is_empty(self) -> bool:
        """Whether no retry waits, and none is being worked off. Raises UnavailableError."""
        return not self._is_busy and self._waiting.next_ms() is None

    def is_asleep(self) -> bool:
        """Whether no retry is due, and none is being worked off. Raises UnavailableError."""
        next_ms = self._waiting.next_ms()
        return not self._is_busy and (next_ms is None or next_ms > self._clock.now_ms())

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._woken.clear()
                self._do_next(self._waiting.next_ms())
            except Exception as error:
                self.was_cut_short = self._stop.is_set()
                if self.was_cut_short and not isinstance(error, SafetyError | StopRequestedError):
                    log.info("a pass over waiting retries was broken off by the stop: %s", one_line(error))
                    return
                self._failures += 1
                is_too_much = self.most_failures is not None and self._failures > self.most_failures
                if isinstance(error, SafetyError | StopRequestedError) or is_too_much:
                    self.failure = error
                    return
                self.show(error, self._failures)
                self._stop.wait(_PAUSES_S[min(self._failures, len(_PAUSES_S)) - 1])

    def _do_next(self, next_ms: int | None) -> None:
        now_ms = self._clock.now_ms()
        self._pruned_ms = min(self._pruned_ms, now_ms)  # the clock may be set back
        prune_ms = self._pruned_ms + _PRUNE_MS if self._done_since else _NEVER_MS
        if prune_ms <= now_ms:  # before a pass: under a steady load something is always due
            self._pruned_ms, self._done_since = now_ms, False  # first: where it fails, retries that are due come first
            self._prune()
        elif next_ms is not None and next_ms <= now_ms:
            self._is_busy = True
            self.passes += 1
            self._work_off()
            self._done_since = True
            if self._failures:
                self._failures = 0
                self.show(None, 0)
            self._is_busy = False
        else:
            self._sleep_until(min(prune_ms, _NEVER_MS if next_ms is None else next_ms))

    def _sleep_until(self, until_ms: int) -> None:
        """Sleep until then, until wake is called, the clock is set back, or the service stops."""
        before_ms = self._clock.now_ms()
        while not self._stop.is_set() and (left_ms := until_ms - before_ms) > 0:
            if self._woken.wait(min(_LOOK_S, left_ms / 1000)):
                return
            now_ms = self._clock.now_ms()
            if now_ms < before_ms:
                return
            before_ms = now_ms
