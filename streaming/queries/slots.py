"""Who reads when: reads are bounded, so that a read that hangs never holds the slots that chunks are worked off in.

A slot is what Spark runs a task in; `local[8]` has eight. The connector waits for an entry that it will never be given,
for half a minute and more, and all that time a slot is held.
1. Reads as a whole get RESERVED slots less than there are, and topics whose query has failed lately share two of those.
2. No read gets more than half of the slots that it shares with others, nor do all reads of a tenant's topics together.
3. Whose reads hold fewer slots has his turn first, and then whose last turn was longest ago. So whoever publishes what
   the connector fails on, to however many topics, keeps others waiting for one of his reads and not for all.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from streaming.errors import StopRequestedError

RESERVED = 2  # for chunks
SLOW_S = 600.0
_SLOW = 2  # for topics whose query has failed lately
_LOOK_S = 0.2  # between two looks at stop


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    whose: str
    wanted: int
    most: int
    has_them: threading.Event = field(default_factory=threading.Event)


class Slots:
    """A number of slots, handed out first to whoever holds fewest, then to whose last turn was longest ago."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._guard = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._held: Counter[str] = Counter()
        self._last: dict[str, int] = {}  # the number of the turn that somebody had last

    def is_waited_for(self, *, besides: str) -> bool:
        """Whether somebody else waits for slots, and not only because he has his share of them."""
        with self._guard:
            return any(each.whose != besides and self._may_have_more(each) for each in self._waiting)

    @contextmanager
    def taken(self, wanted: int, most: int, whose: str) -> Iterator[None]:
        """Hold `wanted` slots of `most`; whoever wants more than there are has them when nobody holds any.

        Raises StopRequestedError once stop is set while it waits.
        """
        mine = _Waiter(whose, wanted, most)
        with self._guard:
            self._waiting.append(mine)
            self._hand_out()
        while not mine.has_them.wait(_LOOK_S):
            if self._stop.is_set() and self._leaves(mine):
                raise StopRequestedError
        try:
            yield
        finally:
            with self._guard:
                self._held[whose] -= wanted
                self._hand_out()

    def _may_have_more(self, one: _Waiter) -> bool:
        held = self._held[one.whose]
        return not held or held + one.wanted <= _half(one.most)

    def _hand_out(self) -> None:
        while waiting := [each for each in self._waiting if self._may_have_more(each)]:
            first = min(waiting, key=lambda each: (self._held[each.whose], self._last.get(each.whose, 0)))
            taken = self._held.total()
            if taken and taken + first.wanted > first.most:
                return
            self._waiting.remove(first)
            self._held[first.whose] += first.wanted
            self._last[first.whose] = max(self._last.values(), default=0) + 1
            first.has_them.set()

    def _leaves(self, mine: _Waiter) -> bool:
        """Whether it waits no more; False where it was handed its slots in this moment."""
        with self._guard:
            if mine.has_them.is_set():
                return False
            self._waiting.remove(mine)
            self._hand_out()
            return True


@dataclass(slots=True)
class ReadSlots:
    """One per service. slots: how many Spark has now."""

    stop: threading.Event
    slots: Callable[[], int]
    monotonic: Callable[[], float] = time.monotonic
    _usual: Slots = field(init=False)
    _slow: Slots = field(init=False)
    _slow_until_s: dict[str, float] = field(default_factory=dict)
    _tenants: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nobody reads yet."""
        self._usual, self._slow = Slots(self.stop), Slots(self.stop)

    def belongs_to(self, query: str, tenant: str) -> None:
        """The query, by name, reads a topic of this tenant's; all such share. A query of which nobody said so is alone.

        Whose a listed topic is does not matter: everybody publishes there.
        """
        self._tenants[query] = tenant

    def forget(self, query: str) -> None:
        """The query, by name, is gone with its topic."""
        self._tenants.pop(query, None)
        self._slow_until_s.pop(query, None)

    def slow_down(self, query: str) -> None:
        """This query, by name, has failed: for SLOW_S its reads share slots with those of all such queries."""
        self._slow_until_s[query] = self.monotonic() + SLOW_S

    def most_tasks(self, query: str) -> int:
        """Return in how many tasks a query's read may run at once."""
        _slots, most = self._shared_by(query)
        return _half(most)

    @contextmanager
    def of(self, query: str, partitions: int) -> Iterator[Callable[[], bool]]:
        """Wait for the slots that a read of so many partitions may take, and hold them. Raises StopRequestedError.

        Yields what says whether others wait for the slots that it shares with them.
        """
        slots, most = self._shared_by(query)
        whose = f"tenant {self._tenants[query]}" if query in self._tenants else f"query {query}"
        with slots.taken(max(1, min(partitions, _half(most))), most, whose):
            yield lambda: slots.is_waited_for(besides=whose)

    def _shared_by(self, query: str) -> tuple[Slots, int]:
        """Return the slots that the query shares with others of its kind, and how many those are."""
        is_slow = self._slow_until_s.get(query, float("-inf")) > self.monotonic()
        if is_slow and self.slots() > RESERVED + _SLOW:
            return self._slow, _SLOW
        return self._usual, max(1, self.slots() - RESERVED - _SLOW)


def _half(slots: int) -> int:
    return max(1, slots // 2)
