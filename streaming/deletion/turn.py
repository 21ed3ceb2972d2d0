"""Whose turn it is: chunks of all queries run one after the other, in the order in which the queries asked.

A plain lock would go to whoever is awake, which is the query that has just let it go: a topic with a million requests
would keep another's ten waiting. A query that waits for its turn ends at once when the service is to stop.
"""

import threading
from collections import deque
from typing import Self

from streaming.errors import StopRequestedError

_LOOK_S = 0.2  # between two looks at stop


class Turn:
    """A lock that is handed over in the order of asking, until stop is set. Not reentrant."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> Self:
        """Wait for the turn. Raises StopRequestedError once stop is set."""
        if self._stop.is_set():
            raise StopRequestedError
        with self._guard:
            if not self._taken:
                self._taken = True
                return self
            mine = threading.Event()
            self._waiting.append(mine)
        while not mine.wait(_LOOK_S):
            if self._stop.is_set():
                self._leave(mine)
                raise StopRequestedError
        return self

    def __exit__(self, *_: object) -> None:
        """Let the next one go on."""
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self._taken = False

    def _leave(self, mine: threading.Event) -> None:
        with self._guard:
            if mine.is_set():  # handed over in this moment
                self._hand_over()
            else:
                self._waiting.remove(mine)
