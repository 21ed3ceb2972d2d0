"""The same thing over and over: what fails is said, and tried again at the next turn."""

import logging
import threading
from collections.abc import Callable

from streaming.errors import ReaperError

log = logging.getLogger("ledger-reaper")


class Turns:
    """Runs something every so often until it is stopped. first_after_seconds: when the first turn is due."""

    def __init__(self, run: Callable[[], None], every_seconds: float, first_after_seconds: float) -> None:
        self._run = run
        self._every_seconds = every_seconds
        self._first_after_seconds = first_after_seconds
        self._stop = threading.Event()
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
            except ReaperError as error:
                log.error("audit: %s", error)
            except Exception:
                if not self._stop.is_set():  # a Spark that is being stopped fails in its own words
                    log.exception("audit failed; the next one is in %s s", self._every_seconds)
            finally:
                self._is_busy = False
            wait_seconds = self._every_seconds
