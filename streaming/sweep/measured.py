"""What the tasks of a sweep measure, added up for the driver's metrics by an accumulator of Spark.

A task that runs again counts again: so do its waits and answers.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from streaming.sweep.pace import Pace

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from streaming.sweep.jobs import Limiter

_MOST_DURATIONS = 100_000  # of a chunk; a task that may delete little at once has many groups


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one task, or of all tasks of a chunk."""

    delete_s: tuple[float, ...] = ()  # how long each group of deletes took, in seconds
    waited_s: float = 0.0  # how long the tasks waited because of the rate
    deletes_per_second: float = 0.0  # the rate that the tasks kept to at their end
    throttled: int = 0  # answers of tiered storage that refused a request because of load
    tasks: int = 0

    def __add__(self, other: "Measures") -> "Measures":
        return Measures(
            (*self.delete_s, *other.delete_s)[:_MOST_DURATIONS],
            self.waited_s + other.waited_s,
            self.deletes_per_second + other.deletes_per_second,
            self.throttled + other.throttled,
            self.tasks + other.tasks,
        )


class MeasuresParam(AccumulatorParam[Measures]):
    """Tells Spark how to add up."""

    def zero(self, value: Measures) -> Measures:  # noqa: ARG002
        """Return the start."""
        return Measures()

    def addInPlace(self, value1: Measures, value2: Measures) -> Measures:  # noqa: N802  Spark's name
        """Add."""
        return value1 + value2


def taken(measures: "Accumulator[Measures]") -> Measures:
    """Return what was added up since the last call. The driver calls it while no sweep runs."""
    value = measures.value
    measures.value = Measures()
    return value


class Measured:
    """A pace whose waits and answers are measured."""

    def __init__(
        self,
        limiter: "Limiter",
        pace: Pace,
        throttled: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the limiter to measure, the pace inside it, and a count of answers that refused because of load."""
        self._limiter, self._pace, self._throttled, self._monotonic = limiter, pace, throttled, monotonic
        self._delete_s: list[float] = []
        self._waited_s, self._sent_s, self._throttled_before = 0.0, 0.0, throttled()

    @property
    def at_once(self) -> int:
        """How many deletes may be sent together."""
        return self._limiter.at_once

    def wait_for(self, deletes: int) -> None:
        """Block until so many deletes may be sent. Raises what the limiter does."""
        started_s = self._monotonic()
        try:
            self._limiter.wait_for(deletes)
        finally:
            self._sent_s = self._monotonic()
            self._waited_s += self._sent_s - started_s

    def done(self) -> None:
        """Note that the deletes of the last `wait_for` have been answered."""
        self._delete_s.append(self._monotonic() - self._sent_s)
        self._limiter.done()

    def measures(self) -> Measures:
        """Return what was measured so far."""
        return Measures(
            tuple(self._delete_s),
            self._waited_s,
            self._pace.deletes_per_second,
            self._throttled() - self._throttled_before,
            tasks=1,
        )
