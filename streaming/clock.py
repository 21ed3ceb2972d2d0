"""Reads the time; all other modules take a Clock or a number."""

import time
from datetime import UTC, datetime
from typing import Protocol


def utc_text(at_ms: int) -> str:
    """Return a time (ms since the epoch) as every text for operators shows it: 2026-11-28 17:05:09 UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000


class StartedClock:
    """Starts at a given time and advances at this machine's pace; changes of its wall clock have no effect."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._since_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        return self._started_ms + (time.monotonic_ns() - self._since_ns) // 1_000_000


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, UTC."""
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        """Advance the time."""
        self._now_ms += milliseconds
