"""The rate at which one task may delete: an even share of limits.deletes_per_second, less while ZooKeeper is slow.

All tasks together keep to the limit, however many they are and wherever they run, and however soon one chunk follows
another. Only while a host that Spark considers lost still runs a task, that task's share may be used twice.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from streaming.errors import UnavailableError

if TYPE_CHECKING:  # its module loads pandas, which takes longer than many a command
    from streaming.sweep.jobs import Limiter

# A laptop's ZooKeeper deletes 38,000 ledgers a second. A ZooKeeper that takes longer for a group of deletes than the
# next two constants together is busy with other work.
_SLOW_S_PER_DELETE = 0.001
_SLOW_S = 0.25
_SLOWEST_SHARE = 1 / 16
_RECOVERY = 1 / 8  # of the full rate, per good answer: back at full speed after eight
_UNLIMITED_AT_ONCE = 100_000
_CHECK_EVERY_S = 1.0


class Pace:
    """Limits the deletes per second."""

    def __init__(
        self,
        deletes_per_second: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create a pace.

        Args:
            deletes_per_second: 0: no limit, however slow ZooKeeper is.
            monotonic: the clock, in seconds.
            sleep: sleeps for so many seconds.
        """
        self._rate = deletes_per_second
        self._share = 1.0
        self._monotonic = monotonic
        self._sleep = sleep
        self._paid_s = self._sent_s = monotonic()  # the groups of deletes so far have used up the time until _paid_s
        self._sent = 0

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together: those of one second."""
        return max(1, int(self._rate * self._share)) if self._rate > 0 else _UNLIMITED_AT_ONCE

    @property
    def deletes_per_second(self) -> float:
        """The rate at which deletes may be sent now; 0: no limit."""
        return self._rate * self._share

    def wait_for(self, deletes: int) -> None:
        """Block until so many deletes may be sent. Time spent on other work counts as waiting, but is not saved up."""
        if self._rate > 0:
            now_s = self._monotonic()
            # the wait comes before the group is sent, so that a task that runs again after its executor was lost does
            # not start with a burst
            self._paid_s = max(self._paid_s + deletes / (self._rate * self._share), now_s)
            if self._paid_s > now_s:
                self._sleep(self._paid_s - now_s)
        self._sent_s, self._sent = self._monotonic(), deletes

    def done(self) -> None:
        """Adapt the rate to the answer: it is halved after a slow answer, and grows a little after a fast one."""
        took_s = self._monotonic() - self._sent_s
        is_slow = took_s > _SLOW_S + self._sent * _SLOW_S_PER_DELETE
        self._share = max(_SLOWEST_SHARE, self._share / 2) if is_slow else min(1.0, self._share + _RECOVERY)


class Capped:
    """A pace that allows as many deletes as were planned within the limits, and no more."""

    def __init__(self, pace: "Limiter", most: int) -> None:
        self._pace = pace
        self._left = most

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        return self._pace.at_once

    def wait_for(self, deletes: int) -> None:
        """Block until so many may be sent. Raises UnavailableError if they exceed the plan: plan again."""
        # an UnavailableError fails the chunk, whose next try is judged by the limits again
        if deletes > self._left:
            raise UnavailableError("more became deletable than was planned within the limits; planning again")
        self._left -= deletes
        self._pace.wait_for(deletes)

    def done(self) -> None:
        """Note that the deletes of the last `wait_for` have been answered."""
        self._pace.done()


class Pausable:
    """A pace that an operator can stop (`ledger-reaper pause`): it reads the pause before deletes, once a second."""

    def __init__(
        self, pace: "Limiter", paused: Callable[[], str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._pace = pace
        self._paused = paused
        self._monotonic = monotonic
        self._check_s = monotonic()

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        return self._pace.at_once

    def wait_for(self, deletes: int) -> None:
        """Block until so many may be sent. Raises UnavailableError when paused.

        This does not wait for the end of the pause: by then all facts are old and have to be read again.
        """
        self._pace.wait_for(deletes)
        if self._monotonic() < self._check_s:
            return
        if why := self._paused():
            raise UnavailableError(f"paused in the middle of a chunk, which starts again afterwards: {why}")
        self._check_s = self._monotonic() + _CHECK_EVERY_S

    def done(self) -> None:
        """Note that the deletes of the last `wait_for` have been answered."""
        self._pace.done()
