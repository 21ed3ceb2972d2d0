"""Moves this machine's wall clock for Python; Python imports this at the start of every process.

CLOCK_AHEAD names a file with the milliseconds by which the clock is ahead now; without the file the clock is right.
"""

import os
import time
from pathlib import Path

AHEAD = Path(os.environ.get("CLOCK_AHEAD", "/nowhere"))
_right = time.time_ns


def _moved() -> int:
    try:
        return _right() + int(AHEAD.read_text() or 0) * 1_000_000
    except FileNotFoundError:
        return _right()


if "CLOCK_AHEAD" in os.environ:
    time.time_ns = _moved
