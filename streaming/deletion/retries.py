"""When waiting retries are worked off: in a thread of its own, which sleeps until the next one is due.

Spark calls a query only when something new arrives; what has waited long enough is nothing new.
"""

import threading
from collections.abc import Callable

from streaming.clock import Clock
from streaming.state.waiting import Waiting

_LOOK_S = 0.5  # between two looks at stop; a sleep is cut short by what arrives
_PRUNE_MS = 600_000
_NEVER_MS = 1 << 62


class DueLoop:
    """Runs passes over the waiting retries. work_off() does one pass, to its end or to an exception."""

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
        self.passes = 0
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin. Until the stop event is set, or work_off raises: that is kept in failure."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end, after the stop event was set; False where a pass still runs."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Something new waits."""
        self._woken.set()

    @property
    def is_alive(self) -> bool:
        """Whether it still works off what is due."""
        return self._thread.is_alive()

    def is_empty(self) -> bool:
        """Whether nothing waits, and nothing is being worked off. Raises UnavailableError."""
        return not self._is_busy and self._waiting.next_ms() is None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._woken.clear()
                self._turn(self._waiting.next_ms())
        except Exception as error:
            self.failure = error

    def _turn(self, next_ms: int | None) -> None:
        now_ms = self._clock.now_ms()
        prune_ms = self._pruned_ms + _PRUNE_MS if self._done_since else _NEVER_MS
        if prune_ms <= now_ms:  # first: under a steady load something is always due
            self._prune()
            self._pruned_ms, self._done_since = now_ms, False
        elif next_ms is not None and next_ms <= now_ms:
            self._is_busy = True
            self.passes += 1
            self._work_off()
            self._done_since = True
            self._is_busy = False
        else:
            self._sleep_until(min(prune_ms, _NEVER_MS if next_ms is None else next_ms))

    def _sleep_until(self, until_ms: int) -> None:
        """Or until something arrives, or the service stops."""
        while not self._stop.is_set() and (left_ms := until_ms - self._clock.now_ms()) > 0:
            if self._woken.wait(min(_LOOK_S, left_ms / 1000)):
                return
