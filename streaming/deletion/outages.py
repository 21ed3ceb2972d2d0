"""Waits while ZooKeeper, a broker or a disk is unavailable, and records the failures that must end the service."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from streaming.errors import SafetyError, StopRequestedError, UnavailableError, WorkersLostError
from streaming.metrics import Metrics
from streaming.spark.java_errors import translated
from udfs.backoff import Backoff

_BACKOFF = Backoff((1, 2, 5, 10, 30))
_MOST_LOSSES = 3  # Spark tries a task four times itself; more losses are probably caused by the work


@dataclass(slots=True, kw_only=True)
class Outages:
    """Repeats steps during outages, and stops the service if it must end. A service has one, for all threads."""

    stop: threading.Event
    metrics: Metrics
    log: Callable[[str], None]
    backoff: Backoff = _BACKOFF  # between the tries of a step
    # failures that need the operator: they set stop, and the service exits with the first of them
    fatal: list[Exception] = field(default_factory=list)

    def wait_through(self, step: Callable[[], None]) -> None:
        """Repeat a step until no service is unavailable. A step may be repeated after it was partly done.

        Raises StopRequestedError when the service is to stop, and any other failure of the step at once. A step that
        loses its executors _MOST_LOSSES times in a row fails too.
        """
        failures, losses = 0, 0
        while True:
            try:
                step()
                return
            except Exception as error:
                failure = translated(error)
                losses = losses + 1 if isinstance(failure, WorkersLostError) else 0
                # a step that loses its executors again and again blocks all other work
                if not isinstance(failure, UnavailableError) or losses >= _MOST_LOSSES:
                    self.fail(failure)
                    raise failure from error
                failures += 1
                wait_s = self.backoff.pause_s(failures)
                self.log(f"waiting {wait_s} s: {failure}")
                self.metrics.outage()
                if self.stop.wait(wait_s):
                    raise StopRequestedError from error

    def fail(self, failure: Exception) -> None:
        """Stop the service if the failure is a SafetyError: to continue could delete live data."""
        if isinstance(failure, SafetyError) and failure not in self.fatal:
            self.fatal.append(failure)
            self.stop.set()
