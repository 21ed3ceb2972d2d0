"""Decides when a reader has caught up with a broker that never rests.

Such a broker always writes between two passes, so the lag never becomes zero. The criterion is that everything is
indexed that the log had a few seconds ago.
"""

from dataclasses import dataclass, field

MOST_SECONDS = 10.0  # with more, `backfill` has more than seconds of work left after the broker is stopped


@dataclass(slots=True)
class CaughtUp:
    """The state of a run. Times are seconds of any monotonic clock."""

    _since: float = field(default=0.0, init=False)
    _end: int = field(default=-1, init=False)

    def sees(self, now: float, end: int, indexed: int, *, is_all: bool) -> bool:
        """Return whether everything is indexed that a pass of the last seconds saw.

        Args:
            now: the time.
            end: the end of the complete part of the log.
            indexed: messages that start before this offset have their rows.
            is_all: this pass has reported everything that was complete.
        """
        if 0 <= self._end <= indexed and now - self._since <= MOST_SECONDS:
            return True
        if is_all and (self._end < 0 or self._end <= indexed):
            self._since, self._end = now, end
        return is_all and end <= indexed
