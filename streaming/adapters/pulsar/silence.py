"""What hangs: after two timeouts in a row it is not asked, but for one short try now and then.

"It" is a host, or one kind of question to it. The whole process remembers it, so that a broker that hangs costs all who
ask it the same few seconds, and not one timeout for each topic. Any answer ends it. Each try in vain doubles the
patience of the next and the time before it: a broker that answers slowly is heard again, and one that hangs for good
costs a sixth of the time at most.
"""

import time
from collections.abc import Callable
from threading import Lock

from streaming.errors import UnavailableError

_TIMEOUTS = 2
TRY_SECONDS = 2.0  # patience of the first try
_DOUBLINGS = 4  # 32 s: more than the default of pulsar.timeout_seconds
_REST = 5  # times the patience of a try pass before the next


class Silence:
    """What is known of hosts that timed out. Thread-safe. now_s: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._timeouts: dict[str, int] = {}  # of what did not answer last -> timeouts in a row
        self._next_try_s: dict[str, float] = {}
        self._tries: dict[str, int] = {}  # since it hangs
        self._lock = Lock()

    def is_due(self, what: str) -> bool:
        """Whether it may be asked now."""
        with self._lock:
            return self._is_due(what)

    def at_most(self, what: str, seconds: float) -> float:
        """Return for how long to wait for its answer, `seconds` at most."""
        with self._lock:
            return min(seconds, self._try_seconds(what)) if self._hangs(what) else seconds

    def patience(self, what: str, seconds: float) -> float:
        """Return the same to who asks now; the next one may do so after a rest, unless an answer comes.

        Raises UnavailableError where it hangs and is not due for another try, or where there is no time left.
        """
        if seconds <= 0:
            raise UnavailableError(f"{what} was not asked: the time for all questions was over")
        with self._lock:
            if not self._hangs(what):
                return seconds
            if not self._is_due(what):
                raise UnavailableError(hangs(what))
            try_s = self._try_seconds(what)
            self._next_try_s[what] = self._now_s() + _REST * try_s
            self._tries[what] = self._tries.get(what, 0) + 1
            return min(seconds, try_s)

    def timed_out(self, what: str) -> None:
        """A question was not answered in time."""
        with self._lock:
            self._timeouts[what] = self._timeouts.get(what, 0) + 1
            if self._hangs(what):
                rest_s = _REST * TRY_SECONDS * 2.0 ** min(max(0, self._tries.get(what, 0) - 1), _DOUBLINGS)
                self._next_try_s[what] = self._now_s() + rest_s

    def answered(self, what: str) -> None:
        """A whole answer came, whatever it says."""
        with self._lock:
            self._timeouts.pop(what, None)
            self._next_try_s.pop(what, None)
            self._tries.pop(what, None)

    def forget(self) -> None:
        """Forget all: tests start their servers on ports that others had before."""
        with self._lock:
            self._timeouts.clear()
            self._next_try_s.clear()
            self._tries.clear()

    def _hangs(self, what: str) -> bool:
        return self._timeouts.get(what, 0) >= _TIMEOUTS

    def _try_seconds(self, what: str) -> float:
        return TRY_SECONDS * 2.0 ** min(self._tries.get(what, 0), _DOUBLINGS)

    def _is_due(self, what: str) -> bool:
        return not self._hangs(what) or self._now_s() >= self._next_try_s[what]


def hangs(what: str) -> str:
    """Say so of something that is not due."""
    return f"{what} did not answer twice in a row, and is tried again now and then"


silence = Silence()
