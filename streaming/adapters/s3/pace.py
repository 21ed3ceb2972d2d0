"""How fast an object store may be asked: as fast as it goes until it says SlowDown, then what it bore, and up again.

More requests at once make a throttled store slower, not faster (measured: 64% of the limit with 8 batches in
flight, 98% with 2), so the answer to a 503 is fewer keys a second, for all threads of the process together.
"""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

_WINDOW_S = 1.0  # over which the rate is measured; also how long one burst of 503s counts as one
_CUT = 0.7
# Slowly back to where the limit was met, so that few requests are wasted there; then as if there were none.
_GROWTH_A_SECOND, _FAST_GROWTH_A_SECOND = 0.05, 1.0
_FAST_AFTER_S = 10.0
_FLOOR = 100.0  # a store that can't bear this has other troubles; slower, and a storm's end is noticed late


class AdaptivePace:
    """Hands out permission for units (keys, requests). Thread-safe. rate None: no limit was met yet."""

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.rate: float | None = None
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = Lock()
        self._taken: deque[tuple[float, int]] = deque()
        self._next_s = 0.0
        self._changed_s = self._cut_s = 0.0

    def take(self, units: int = 1) -> None:
        """Block until so many units may be asked for."""
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
        """Tell that the store refused for load. Further calls within the window change nothing."""
        with self._lock:
            now_s = self._monotonic()
            if self.rate is not None and now_s - self._cut_s < _WINDOW_S:
                return
            self._forget(now_s)
            observed = sum(units for start_s, units in self._taken if start_s <= now_s) / _WINDOW_S
            self.rate = max(_FLOOR, _CUT * (observed if self.rate is None else min(observed, self.rate)))
            self._cut_s = self._changed_s = now_s
            self._next_s = max(self._next_s, now_s)

    def _forget(self, now_s: float) -> None:
        while self._taken and self._taken[0][0] < now_s - _WINDOW_S:
            self._taken.popleft()
