"""Who reads when: reads are bounded, so that a read that hangs never holds the slots that chunks are worked off in.

A slot is what Spark runs a task in; `local[8]` has eight. The connector waits for an entry that it will never be given,
for half a minute and more, and all that time a slot is held. So reads as a whole get RESERVED slots less than there
are, and topics whose query has failed lately share two of those: whoever publishes what the connector fails on again
and again makes only his own kind wait. And no query's read gets more than half of what it shares with others: one that
hangs leaves the other half.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from streaming.errors import StopRequestedError

RESERVED = 2  # for chunks
SLOW_S = 600.0
_SLOW = 2  # for topics whose query has failed lately
_LOOK_S = 0.2  # between two looks at stop


class Slots:
    """A number of slots, handed out in the order of asking."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, int, threading.Event]] = deque()
        self._taken = 0

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for slots."""
        with self._guard:
            return bool(self._waiting)

    @contextmanager
    def taken(self, wanted: int, most: int) -> Iterator[None]:
        """Hold `wanted` slots of `most`; whoever wants more than there are has them when nobody holds any.

        Raises StopRequestedError once stop is set while it waits.
        """
        mine = threading.Event()
        with self._guard:
            self._waiting.append((wanted, most, mine))
            self._hand_out()
        while not mine.wait(_LOOK_S):
            if self._stop.is_set() and self._leaves(mine):
                raise StopRequestedError
        try:
            yield
        finally:
            with self._guard:
                self._taken -= wanted
                self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            wanted, most, event = self._waiting[0]
            if self._taken and self._taken + wanted > most:
                return
            self._waiting.popleft()
            self._taken += wanted
            event.set()

    def _leaves(self, mine: threading.Event) -> bool:
        """Whether it waits no more; False where it was handed its slots in this moment."""
        with self._guard:
            if mine.is_set():
                return False
            self._waiting = deque(each for each in self._waiting if each[-1] is not mine)
            self._hand_out()
            return True


@dataclass(slots=True)
class Reading:
    """One per service. slots: how many Spark has now."""

    stop: threading.Event
    slots: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic
    _usual: Slots = field(init=False)
    _slow: Slots = field(init=False)
    _slow_until_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nobody reads yet."""
        self._usual, self._slow = Slots(self.stop), Slots(self.stop)

    def slow_down(self, query: str) -> None:
        """This query, by name, has failed: for SLOW_S its reads share slots with those of all such queries."""
        self._slow_until_s[query] = self.monotonic() + SLOW_S

    def most_tasks(self, query: str) -> int:
        """Return in how many tasks a query's read may run at once."""
        return _half(_SLOW if self._has_slow_ones(query) else self._most_usual())

    @contextmanager
    def of(self, query: str, partitions: int) -> Iterator[Slots]:
        """Wait for the slots that a read of so many partitions may take, and hold them. Raises StopRequestedError.

        Yields all those that it shares with others.
        """
        slots, most = (self._slow, _SLOW) if self._has_slow_ones(query) else (self._usual, self._most_usual())
        with slots.taken(max(1, min(partitions, _half(most))), most):
            yield slots

    def _has_slow_ones(self, query: str) -> bool:
        is_slow = self._slow_until_s.get(query, float("-inf")) > self.monotonic()
        return is_slow and self.slots() > RESERVED + _SLOW

    def _most_usual(self) -> int:
        return max(1, self.slots() - RESERVED - _SLOW)


def _half(slots: int) -> int:
    return max(1, slots // 2)
