"""Limits how many of Spark's slots reads occupy, so that a read that hangs never blocks the jobs that delete.

Spark runs a task in a slot; `local[8]` has eight. The connector waits half a minute and more for an entry that it will
never get, and occupies a slot all that time.
1. RESERVED slots are for deletes. Reads share the others: two belong to the topics whose query has failed recently, the
   rest to all other topics. With at most four slots all reads share what is not reserved, one at least.
2. A read gets at most half of the slots that it shares with others.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from streaming.errors import StopRequestedError

RESERVED = 2  # for the jobs that judge and delete a chunk
SLOW_S = 600.0
_SLOW = 2  # for topics whose query has failed recently
_POLL_S = 0.2  # between two checks of stop


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    holder: str
    count: int
    most: int
    granted: threading.Event = field(default_factory=threading.Event)


class Slots:
    """A pool of slots. The holder (a query) of the fewest slots goes first; on a tie, the longest unserved."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._guard = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._held: Counter[str] = Counter()
        self._last: dict[str, int] = {}  # holder -> the number of the newest grant to it

    def is_waited_for(self, *, besides: str) -> bool:
        """Whether a holder other than `besides` waits for slots, although it has less than its share."""
        with self._guard:
            return any(waiter.holder != besides and self._may_have_more(waiter) for waiter in self._waiting)

    @contextmanager
    def taken(self, count: int, most: int, holder: str) -> Iterator[None]:
        """Hold `count` slots of a pool of `most`; a count above `most` is granted when no slot is held.

        Raises StopRequestedError if stop is set during the wait.
        """
        waiter = _Waiter(holder, count, most)
        with self._guard:
            self._waiting.append(waiter)
            self._grant()
        while not waiter.granted.wait(_POLL_S):
            if self._stop.is_set() and self._leaves(waiter):
                raise StopRequestedError
        try:
            yield
        finally:
            with self._guard:
                self._held[holder] -= count
                self._grant()

    def _may_have_more(self, waiter: _Waiter) -> bool:
        held = self._held[waiter.holder]
        return not held or held + waiter.count <= _half(waiter.most)

    def _grant(self) -> None:
        while waiting := [waiter for waiter in self._waiting if self._may_have_more(waiter)]:
            first = min(waiting, key=lambda waiter: (self._held[waiter.holder], self._last.get(waiter.holder, 0)))
            taken = self._held.total()
            if taken and taken + first.count > first.most:
                return
            self._waiting.remove(first)
            self._held[first.holder] += first.count
            self._last[first.holder] = max(self._last.values(), default=0) + 1
            first.granted.set()

    def _leaves(self, waiter: _Waiter) -> bool:
        """Stop waiting; False if the slots have just been granted."""
        with self._guard:
            if waiter.granted.is_set():
                return False
            self._waiting.remove(waiter)
            self._grant()
            return True


@dataclass(slots=True)
class ReadSlots:
    """Shares Spark's slots among the reads of all queries. A name identifies a query. A service has one instance."""

    stop: threading.Event
    slots: Callable[[], int]  # returns how many slots Spark has now
    monotonic: Callable[[], float] = time.monotonic
    _usual: Slots = field(init=False)
    _slow: Slots = field(init=False)
    _slow_until_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with all slots free."""
        self._usual, self._slow = Slots(self.stop), Slots(self.stop)

    def forget(self, query: str) -> None:
        """Drop what is known about a query whose topic is gone."""
        self._slow_until_s.pop(query, None)

    def slow_down(self, query: str) -> None:
        """For SLOW_S, make a query that has failed share two slots with all such queries."""
        self._slow_until_s[query] = self.monotonic() + SLOW_S

    def is_slow(self, query: str) -> bool:
        """Whether the query has failed recently."""
        return self._slow_until_s.get(query, float("-inf")) > self.monotonic()

    def most_tasks(self, query: str) -> int:
        """Return how many tasks of a query's read may run at once."""
        _slots, most = self._shared_by(query)
        return _half(most)

    @contextmanager
    def of(self, query: str, partitions: int) -> Iterator[Callable[[], bool]]:
        """Wait for the slots of a read of this many partitions, and hold them. Raises StopRequestedError.

        Yields a function that returns whether other reads wait for slots of the same pool.
        """
        slots, most = self._shared_by(query)
        with slots.taken(max(1, min(partitions, _half(most))), most, query):
            yield lambda: slots.is_waited_for(besides=query)

    def _shared_by(self, query: str) -> tuple[Slots, int]:
        """Return the pool of slots that the query shares with others of its kind, and its size."""
        # with fewer slots, none are set aside for queries that have failed
        if self.is_slow(query) and self.slots() > RESERVED + _SLOW:
            return self._slow, _SLOW
        return self._usual, max(1, self.slots() - RESERVED - _SLOW)


def _half(slots: int) -> int:
    return max(1, slots // 2)
