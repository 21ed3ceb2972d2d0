"""Whose turn it is: chunks of all queries run one after the other, in the order in which they asked.

A plain lock goes to whoever is awake, which is the query that has just let it go: a topic with a million requests
would keep another's ten waiting.
"""

import threading
from collections import deque
from typing import Self


class Turn:
    """A lock that is handed over in the order of asking. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody waits."""
        with self._guard:
            return bool(self._waiting)

    def __enter__(self) -> Self:
        """Wait for one's turn."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return self
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the next one go on."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
