"""Says when a reader has caught up with a broker that never rests.

Between two looks such a broker always writes something, so that "nothing is behind" never comes. What can come is that
everything is indexed which the log had a few seconds ago.
"""

from dataclasses import dataclass, field

MOST_SECONDS = 10.0  # more, and a broker that is stopped now leaves more to `backfill` than seconds of work


@dataclass(slots=True)
class CaughtUp:
    """One run's answer. Times are seconds of any clock that never goes back."""

    _since: float = field(default=0.0, init=False)
    _end: int = field(default=-1, init=False)

    def sees(self, now: float, end: int, indexed: int, *, is_all: bool) -> bool:
        """Return whether all is indexed that a look of the last seconds saw.

        end: how far the log is whole by this look. indexed: what begins before it has its rows. is_all: nothing more
        was whole than the look tells.
        """
        if 0 <= self._end <= indexed and now - self._since <= MOST_SECONDS:
            return True
        if is_all and (self._end < 0 or self._end <= indexed):
            self._since, self._end = now, end
        return is_all and end <= indexed
