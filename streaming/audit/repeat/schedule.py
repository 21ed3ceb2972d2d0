"""Repeats an audit, or what else is done now and then: a run that fails is logged, and the next comes at its time."""

import logging
import threading
from collections.abc import Callable

from streaming.errors import ReaperError

log = logging.getLogger("ledger-reaper")


class Schedule:
    """Runs something again and again until stop is set.

    first_after_seconds: how long until the first run. what: its name in the log.
    """

    def __init__(
        self,
        run: Callable[[], None],
        every_seconds: float,
        first_after_seconds: float,
        stop: threading.Event,
        what: str = "audit",
    ) -> None:
        self._run = run
        self._every_seconds = every_seconds
        self._first_after_seconds = first_after_seconds
        self._stop = stop
        self._what = what
        self._is_busy = first_after_seconds <= 0

    @property
    def is_busy(self) -> bool:
        """Whether it is running now, or due."""
        return self._is_busy

    def stop(self) -> None:
        """Let no further run begin."""
        self._stop.set()

    def repeat(self) -> None:
        """Run, wait, run again, until stop. An error ends one run, not the repetition."""
        wait_seconds = self._first_after_seconds
        while not self._stop.wait(max(0.0, wait_seconds)):
            self._is_busy = True
            try:
                self._run()
            except Exception as error:
                self._log(error)
            finally:
                self._is_busy = False
            wait_seconds = self._every_seconds

    def _log(self, error: Exception) -> None:
        if self._stop.is_set():
            return  # Spark fails in many ways while it is being stopped, and none of them matters
        if isinstance(error, ReaperError):
            log.error("%s: %s", self._what, error)
        else:
            log.error("%s failed; the next one is in %s s", self._what, self._every_seconds, exc_info=error)
