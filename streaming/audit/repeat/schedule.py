"""The same thing over and over: what fails is said, and tried again at the next turn."""

import logging
import threading
from collections.abc import Callable

from streaming.errors import ReaperError

log = logging.getLogger("ledger-reaper")


class Turns:
    """Runs something every so often until stop is set. first_after_seconds: when the first turn is due."""

    def __init__(
        self, run: Callable[[], None], every_seconds: float, first_after_seconds: float, stop: threading.Event
    ) -> None:
        self._run = run
        self._every_seconds = every_seconds
        self._first_after_seconds = first_after_seconds
        self._stop = stop
        self._is_busy = first_after_seconds <= 0

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs, or is due."""
        return self._is_busy

    def stop(self) -> None:
        """No further turn begins."""
        self._stop.set()

    def repeat(self) -> None:
        """Take turns until stop; an error ends a turn, not the turns."""
        wait_seconds = self._first_after_seconds
        while not self._stop.wait(max(0.0, wait_seconds)):
            self._is_busy = True
            try:
                self._run()
            except Exception as error:
                self._tell(error)
            finally:
                self._is_busy = False
            wait_seconds = self._every_seconds

    def _tell(self, error: Exception) -> None:
        if self._stop.is_set():
            return  # what is being stopped fails in its own words
        if isinstance(error, ReaperError):
            log.error("audit: %s", error)
        else:
            log.error("audit failed; the next one is in %s s", self._every_seconds, exc_info=error)
