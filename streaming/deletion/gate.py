"""Blocks the work while it is paused or a limit holds it.

Raises when the service is to stop, or when another instance has taken over.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from streaming.clock import Clock
from streaming.deletion.instance import Coordination
from streaming.errors import FencedError, StopRequestedError
from streaming.limits.enforcement import BlastRadius
from streaming.metrics import Metrics
from streaming.state.notes import hold
from udfs.blast_radius import Chunk, DryRunPlan, Planned


@dataclass(slots=True, kw_only=True)
class Gate:
    """One per service. While nothing is deleted, a note in state_dir names the reason for `ledger-reaper receipts`."""

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
        # checked last: another instance may have started while this one waited
        self.refuse_if_outdated()
        self.blast_radius.go_on()

    def log_hold(self) -> None:
        """Log what holds the work now, and when the hold ends, even if no chunk waits here. Raises UnavailableError.

        Any thread may call it.
        """
        self._log(_reason(self.coordination.paused(), self.blast_radius.breaker.reason()))

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
        self.metrics.tripped(True)
        self.wait_until_open()

    def _held(self) -> str:
        """Return for the log why nothing may be deleted now; "" if deleting is allowed."""
        limit = self.blast_radius.held()
        self.metrics.tripped(bool(limit))
        return _reason(self.coordination.paused(), limit)

    def _note(self, why: str) -> None:
        hold.note(self.state_dir, why, now_ms=self.clock.now_ms())
        self._may_be_noted = bool(why)


def _reason(paused: str, limit: str) -> str:
    if paused:
        return f"paused: {paused}"
    return (
        f"LIMIT REACHED, nothing more is deleted: {limit}. Find out why, then `ledger-reaper resume --limit`."
        if limit
        else ""
    )
