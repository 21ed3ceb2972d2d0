"""The only place that asks what time it is; everything else takes a Clock or a number."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000


class StartedClock:
    """Begins at a time that somebody told and goes on at this machine's pace, however its wall clock is set."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._since_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return self._started_ms + (time.monotonic_ns() - self._since_ns) // 1_000_000


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        """Move time on."""
        self._now_ms += milliseconds
