"""Waits while ZooKeeper, a broker or a disk is away, and remembers the failures that must end the service."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streaming.errors import SafetyError, StopRequestedError, UnavailableError, WorkersLostError
from streaming.metrics import Metrics
from streaming.spark.failures import translated

_MOST_LOSSES = 3  # Spark tries a task four times itself; more is likelier the work's own doing


@dataclass(slots=True)
class Outages:
    """waits_s: pauses between the tries of a step; the last one is used for all further tries.

    fatal: failures after which a person has to look. They set stop, and the service ends with the first of them.
    """

    stop: threading.Event
    metrics: Metrics
    log: Callable[[str], None]
    waits_s: Sequence[float] = (1, 2, 5, 10, 30)
    fatal: list[Exception] = field(default_factory=list)

    def wait_through(self, step: Callable[[], None]) -> None:
        """Try a step until no service is away. A step may be tried again though a part of it was done.

        Raises StopRequestedError when the service is to stop meanwhile, and any other failure of the step at once.
        Where a step loses its executors each time, others wait behind it: then the loss is such a failure.
        """
        waits = iter(self.waits_s)
        wait_s, losses = 0.0, 0
        while True:
            try:
                step()
                return
            except Exception as error:
                failure = translated(error)
                losses = losses + 1 if isinstance(failure, WorkersLostError) else 0
                if not isinstance(failure, UnavailableError) or losses >= _MOST_LOSSES:
                    self.fail(failure)
                    raise failure from error
                wait_s = next(waits, wait_s)
                self.log(f"waiting {wait_s} s: {failure}")
                self.metrics.outage()
                if self.stop.wait(wait_s):
                    raise StopRequestedError from error

    def fail(self, failure: Exception) -> None:
        """Stop the service if going on could delete live data."""
        if isinstance(failure, SafetyError) and failure not in self.fatal:
            self.fatal.append(failure)
            self.stop.set()
