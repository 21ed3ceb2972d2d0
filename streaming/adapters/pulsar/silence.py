"""What hangs: after two timeouts in a row it is not asked, but for one short try now and then.

"It" is a host, or one kind of question to it. The whole process remembers it, so that a broker that hangs costs all who
ask it the same few seconds, and not one timeout for each topic. Any answer ends it. Each try in vain doubles the
patience of the next and the time before it: a broker that answers slowly is heard again, and one that hangs for good
costs a sixth of the time at most.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from streaming.errors import UnavailableError

_TIMEOUTS = 2
TRY_SECONDS = 2.0  # patience of the first try
_DOUBLINGS = 4  # 32 s: more than the default of pulsar.timeout_seconds
_REST = 5  # times the patience of a try pass before the next


@dataclass(slots=True)
class _Hanging:
    """What is known of something that did not answer last."""

    timeouts: int = 0  # in a row
    tries: int = 0  # granted since then
    next_try_s: float = 0.0


class Silence:
    """What is known of hosts that timed out. Thread-safe. now_s: a clock that never goes back."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._known: dict[str, _Hanging] = {}
        self._lock = Lock()

    def is_due(self, what: str) -> bool:
        """Whether it may be asked now."""
        with self._lock:
            hanging = self._hanging(what)
            return hanging is None or self._now_s() >= hanging.next_try_s

    def at_most(self, what: str, seconds: float) -> float:
        """Return for how long to wait for its answer, `seconds` at most."""
        with self._lock:
            hanging = self._hanging(what)
            return seconds if hanging is None else min(seconds, _patience_s(hanging.tries))

    def patience(self, what: str, seconds: float) -> float:
        """Return the same to who asks now; the next one may do so after a rest, unless an answer comes.

        Raises UnavailableError where it hangs and is not due for another try, or where there is no time left.
        """
        if seconds <= 0:
            raise UnavailableError(f"{what} was not asked: the time for all questions was over")
        with self._lock:
            hanging = self._hanging(what)
            if hanging is None:
                return seconds
            if self._now_s() < hanging.next_try_s:
                raise UnavailableError(hangs(what))
            patience_s = _patience_s(hanging.tries)
            hanging.next_try_s = self._now_s() + _REST * patience_s
            hanging.tries += 1
            return min(seconds, patience_s)

    def timed_out(self, what: str) -> None:
        """A question was not answered in time."""
        with self._lock:
            known = self._known.setdefault(what, _Hanging())
            known.timeouts += 1
            if self._hanging(what) is not None:
                known.next_try_s = self._now_s() + _REST * _patience_s(max(0, known.tries - 1))

    def answered(self, what: str) -> None:
        """A whole answer came, whatever it says."""
        with self._lock:
            self._known.pop(what, None)

    def forget(self) -> None:
        """Forget all: tests start their servers on ports that others had before."""
        with self._lock:
            self._known.clear()

    def _hanging(self, what: str) -> _Hanging | None:
        known = self._known.get(what)
        return known if known is not None and known.timeouts >= _TIMEOUTS else None


def _patience_s(tries: int) -> float:
    """Return how long the next try may take after so many in vain."""
    return TRY_SECONDS * 2.0 ** min(tries, _DOUBLINGS)


def hangs(what: str) -> str:
    """Say so of something that is not due."""
    return f"{what} did not answer twice in a row, and is tried again now and then"


silence = Silence()
