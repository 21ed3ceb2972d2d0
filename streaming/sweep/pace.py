"""How fast one task may delete: an even share of limits.deletes_per_second, and less while ZooKeeper answers slowly.

Each group is paid for, in time, before it is sent. So it does not matter how many tasks there are and where they run,
how soon one chunk follows another, or that a task runs again after its executor was lost: together they keep to the
limit. Only while a host that Spark has given up still runs a task, that task's share may be used twice.
"""

import time
from collections.abc import Callable

from streaming.errors import UnavailableError
from streaming.sweep.jobs import Limiter

# A laptop's ZooKeeper deletes 38,000 ledgers a second. One that takes longer than this is busy with other work.
_SLOW_S_PER_DELETE = 0.001
_SLOW_S = 0.25
_SLOWEST_SHARE = 1 / 16
_RECOVERY = 1 / 8  # of the full rate, per good answer: back at full speed after eight
_UNLIMITED_AT_ONCE = 100_000
_LOOK_S = 1.0


class Pace:
    """Lets so many deletes a second through. deletes_per_second 0: no limit, however slow ZooKeeper is."""

    def __init__(
        self,
        deletes_per_second: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = deletes_per_second
        self._share = 1.0
        self._monotonic = monotonic
        self._sleep = sleep
        self._paid_s = self._sent_s = monotonic()  # time up to _paid_s has been used for groups
        self._sent = 0

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together: a second's allowance."""
        return max(1, int(self._rate * self._share)) if self._rate > 0 else _UNLIMITED_AT_ONCE

    def wait_for(self, deletes: int) -> None:
        """Block until so many deletes may be sent. Time that was spent on other work counts, and is not saved up."""
        if self._rate > 0:
            now_s = self._monotonic()
            self._paid_s = max(self._paid_s + deletes / (self._rate * self._share), now_s)
            if self._paid_s > now_s:
                self._sleep(self._paid_s - now_s)
        self._sent_s, self._sent = self._monotonic(), deletes

    def done(self) -> None:
        """Take note of the answer: after a slow one the rate is halved, after a fast one it grows a little."""
        took_s = self._monotonic() - self._sent_s
        is_slow = took_s > _SLOW_S + self._sent * _SLOW_S_PER_DELETE
        self._share = max(_SLOWEST_SHARE, self._share / 2) if is_slow else min(1.0, self._share + _RECOVERY)


class Capped:
    """A pace that lets through as many deletes as were planned within the limits, and no more."""

    def __init__(self, pace: Limiter, most: int) -> None:
        self._pace = pace
        self._left = most

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        return self._pace.at_once

    def wait_for(self, deletes: int) -> None:
        """Block until so many may be sent. Raises UnavailableError above what was planned: plan again."""
        if deletes > self._left:
            raise UnavailableError("more became deletable than was planned within the limits; planning again")
        self._left -= deletes
        self._pace.wait_for(deletes)

    def done(self) -> None:
        """Those waited for last were answered."""
        self._pace.done()


class Pausable:
    """A pace that a person can stop (`ledger-reaper pause`): it looks right before deletes, at most once a second."""

    def __init__(
        self, pace: Limiter, paused: Callable[[], str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._pace = pace
        self._paused = paused
        self._monotonic = monotonic
        self._look_s = monotonic()

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        return self._pace.at_once

    def wait_for(self, deletes: int) -> None:
        """Block until so many may be sent. Raises UnavailableError when paused.

        It does not wait for the pause to end: by then all that was read is old and has to be read again.
        """
        self._pace.wait_for(deletes)
        if self._monotonic() < self._look_s:
            return
        if why := self._paused():
            raise UnavailableError(f"paused in the middle of a chunk, to be begun again: {why}")
        self._look_s = self._monotonic() + _LOOK_S

    def done(self) -> None:
        """Those waited for last were answered."""
        self._pace.done()
