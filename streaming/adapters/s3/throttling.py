"""Counts, in this process, answers of stores that refused a request because of load (SlowDown, 503, 429)."""

from threading import Lock

_lock = Lock()
_count = 0


def count() -> int:
    """Return the number since the start of the process."""
    return _count


def add() -> None:
    """Count an answer. Any thread may call it."""
    global _count  # noqa: PLW0603  the clients of a process share it
    with _lock:
        _count += 1
