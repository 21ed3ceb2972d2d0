"""Runs work in threads next to the service: a function that is called at intervals, or once if it loops by itself."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from streaming.errors import ReaperError

log = logging.getLogger("ledger-reaper")

_POLL_S = 0.2  # between two checks of the service's stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A piece of work next to the service."""

    name: str  # of its thread
    run: Callable[[], None]
    every_s: float | None = None  # from the end of a run to the next; None: it runs once
    first_after_s: float = 0.0
    leave_s: float = 0.0  # how long Beside waits, at the end of its with block, for a run that is under way
    keeps_from_ending: bool = False  # `run --until-idle` does not end while a run is under way or due
    # Called for a run that failed, unless the work is to stop; the next run starts after every_s as usual. None: a
    # failure ends the work, and the service must end too.
    on_failure: Callable[[Exception], None] | None = None


def logged(what: str, every_s: float) -> Callable[[Exception], None]:
    """Return an on_failure that logs the failure, with a traceback unless it is a ReaperError."""

    def log_failure(error: Exception) -> None:
        if isinstance(error, ReaperError):
            log.error("%s: %s", what, error)
        else:
            log.error("%s failed; the next one is in %s s", what, every_s, exc_info=error)

    return log_failure


class Beside:
    """A piece of work in its thread. As a context manager it starts, and stops at the end of the block."""

    def __init__(self, work: Work, stop: threading.Event | None = None) -> None:
        self._work = work
        self._stop = stop or threading.Event()
        self._thread = threading.Thread(target=self.repeat, name=work.name, daemon=True)
        self._is_started = False
        self._is_busy = work.first_after_s <= 0
        self._last: Callable[[], None] | None = None
        self.failure: Exception | None = None  # that ended the work

    @property
    def is_busy(self) -> bool:
        """Whether a run is under way or due."""
        return self._is_busy

    @property
    def keeps_from_ending(self) -> bool:
        """As Work.keeps_from_ending."""
        return self._work.keeps_from_ending

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and wait for a run that is under way, but only for leave_s."""
        self.stop()
        self.join(self._work.leave_s)

    def start(self) -> None:
        """Start the thread. A second call changes nothing."""
        if not self._is_started:
            self._is_started = True
            self._thread.start()

    def stop(self) -> None:
        """Let no further run start."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread, after a stop; False if it still runs."""
        if self._is_started:
            self._thread.join(timeout_s)
        return not self.is_alive

    def finish(self, last: Callable[[], None], stop: threading.Event) -> None:
        """Wait for the run that is under way, then run `last` in the thread; return at its end, or when stop is set.

        Raises the failure that ended the work.
        """
        self._last = last
        self.stop()
        self.start()
        while not stop.is_set() and not self.join(_POLL_S):
            pass
        self.check()

    def check(self) -> None:
        """Raise the failure that ended the work, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def repeat(self) -> None:
        """Run at intervals until stop, or once. The thread does this; a command may call it in its own."""
        wait_s = self._work.first_after_s
        while not (self._stop.wait(wait_s) if wait_s > 0 else self._stop.is_set()):
            self._is_busy = True
            is_over = not self._runs(self._work.run) or self._work.every_s is None
            self._is_busy = False
            if is_over:
                break
            wait_s = self._work.every_s or 0.0
        if self._last is not None and self.failure is None:
            self._runs(self._last)

    def _runs(self, run: Callable[[], None]) -> bool:
        """Run once; False if the work must not continue."""
        try:
            run()
        except Exception as error:
            if self._work.on_failure is None:
                self.failure = error
                return False
            if not self._stop.is_set():  # Spark fails in many ways while it is being stopped, and none of them matters
                self._work.on_failure(error)
        return True
