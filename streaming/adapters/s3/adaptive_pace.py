"""Limits the rate of requests to an object store after it answers SlowDown, and then raises the rate again."""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

_WINDOW_S = 1.0  # over which the rate is measured; all 503s within it count as one
_CUT = 0.7
# The rate first grows slowly, because requests at the limit are wasted; after a time without 503s it grows fast.
_GROWTH_A_SECOND, _FAST_GROWTH_A_SECOND = 0.05, 1.0
_FAST_AFTER_S = 10.0
_FLOOR = 100.0  # a store that can't serve this rate has other faults; at a lower rate the recovery is noticed late


class AdaptivePace:
    """Limits units (keys or requests) per second. Thread-safe."""

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.rate: float | None = None  # units per second; None: the store has not throttled yet
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = Lock()
        self._taken: deque[tuple[float, int]] = deque()
        self._next_s = 0.0
        self._changed_s = self._cut_s = 0.0

    def take(self, units: int = 1) -> None:
        """Wait until this many units may be requested."""
        with self._lock:
            now_s = self._monotonic()
            start_s = now_s if self.rate is None else max(now_s, self._next_s)
            self._forget(now_s)
            self._taken.append((start_s, units))
            if self.rate is not None:
                is_calm = now_s - self._cut_s > _FAST_AFTER_S
                growth = _FAST_GROWTH_A_SECOND if is_calm else _GROWTH_A_SECOND
                self.rate *= 1 + growth * min(_WINDOW_S, now_s - self._changed_s)
                self._changed_s = now_s
                self._next_s = start_s + units / self.rate
        if start_s > now_s:
            self._sleep(start_s - now_s)

    def slow_down(self) -> None:
        """Reduce the rate because the store throttles. Further calls within the window have no effect."""
        with self._lock:
            now_s = self._monotonic()
            if self.rate is not None and now_s - self._cut_s < _WINDOW_S:
                return
            self._forget(now_s)
            observed = sum(units for start_s, units in self._taken if start_s <= now_s) / _WINDOW_S
            # the rate is that of all threads of the process together: more concurrent requests make a throttled store
            # slower (measured: 64% of the limit with 8 batches in flight, 98% with 2)
            self.rate = max(_FLOOR, _CUT * (observed if self.rate is None else min(observed, self.rate)))
            self._cut_s = self._changed_s = now_s
            self._next_s = max(self._next_s, now_s)

    def _forget(self, now_s: float) -> None:
        while self._taken and self._taken[0][0] < now_s - _WINDOW_S:
            self._taken.popleft()
