"""The lag of the database behind the log, and when it has caught up with a broker that never rests."""

from dataclasses import dataclass, field
from typing import NamedTuple

MOST_SECONDS = 10.0  # a larger lag would leave `backfill` more than seconds of work once the broker is stopped


class Lag(NamedTuple):
    """The state of the database."""

    end: int  # of the complete records in the log
    indexed: int  # messages that start before it have their rows
    units: int

    @property
    def bytes_behind(self) -> int:
        """Bytes of complete records that are not indexed yet."""
        return max(self.end - self.indexed, 0)


@dataclass(slots=True)
class CaughtUp:
    """Whether a run has caught up: everything is indexed that the log had a few seconds ago.

    Times are seconds of any monotonic clock.
    """

    _since: float = field(default=0.0, init=False)
    _end: int = field(default=-1, init=False)

    def update(self, now: float, end: int, indexed: int, *, is_all: bool) -> bool:
        """Take the result of a pass; True if everything is indexed that a pass of the last seconds saw.

        Args:
            now: the time.
            end: the end of the complete part of the log.
            indexed: messages that start before this offset have their rows.
            is_all: this pass has reported everything that was complete.
        """
        # a broker that never rests writes between any two passes, so the lag never becomes zero
        if 0 <= self._end <= indexed and now - self._since <= MOST_SECONDS:
            return True
        if is_all and (self._end < 0 or self._end <= indexed):
            self._since, self._end = now, end
        return is_all and end <= indexed
