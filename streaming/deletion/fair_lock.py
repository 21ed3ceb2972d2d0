"""A fair lock: chunks of all queries run one after the other, in the order in which the queries asked for it.

A query that waits for the lock ends at once when the service is to stop.
"""

import threading
from collections import deque
from typing import Self

from streaming.errors import StopRequestedError

_POLL_S = 0.2  # between two checks of stop


class FairLock:
    """A lock that is granted in the order of the requests for it, until stop is set. Not reentrant."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._guard = threading.Lock()
        # a plain lock would go to the thread that runs, which is the query that has just released it: a topic with a
        # million requests would delay another topic's ten
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> Self:
        """Wait for the lock. Raises StopRequestedError once stop is set."""
        if self._stop.is_set():
            raise StopRequestedError
        with self._guard:
            if not self._taken:
                self._taken = True
                return self
            granted = threading.Event()
            self._waiting.append(granted)
        while not granted.wait(_POLL_S):
            if self._stop.is_set():
                self._leave(granted)
                raise StopRequestedError
        return self

    def __exit__(self, *_: object) -> None:
        """Hand the lock over to the thread that has waited longest."""
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting:
            # _taken stays set, so that no newcomer overtakes the thread that was granted the lock
            self._waiting.popleft().set()
        else:
            self._taken = False

    def _leave(self, granted: threading.Event) -> None:
        with self._guard:
            if granted.is_set():  # the lock has just been handed over
                self._hand_over()
            else:
                self._waiting.remove(granted)
