"""Runs the marking in a thread, so that the watcher waits for no broker."""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from streaming.errors import ReaperError
from streaming.phase_one.watcher.marks.mark_removal import Tools
from streaming.phase_one.watcher.marks.marking import Marking
from streaming.phase_one.watcher.marks.signs import TopicSigns
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.prometheus import table

log = logging.getLogger("ledger-reaper")

_BETWEEN_TOPICS_S = 0.2  # at most 300 topics a minute, so that the load on brokers is negligible
_IDLE_S = 1.0
_AGAIN_S = 15.0  # after an error


class MarkingThread:
    """Runs a Marking until the end of its `with` block."""

    def __init__(
        self,
        marking: Marking,
        open_tools: Callable[[], AbstractContextManager[Tools]],
        metrics: WatchMetrics,
        now_ms: Callable[[], int],
        leave_seconds: float,
    ) -> None:
        """Create the thread.

        Args:
            marking: the Marking to run.
            open_tools: opens the clients, when there is work.
            metrics: counts failures.
            now_ms: the clock.
            leave_seconds: how long the end of the block waits for the thread.
        """
        self._marking = marking
        self._open_tools = open_tools
        self._metrics = metrics
        self._now_ms = now_ms
        self._leave_seconds = leave_seconds
        self._signs: queue.SimpleQueue[TopicSigns] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marking", daemon=True)
        self._last_error = ""

    def hand_over(self, signs: TopicSigns) -> None:
        """Take the signs of a complete scan. Never waits."""
        self._signs.put(signs)

    def __enter__(self) -> "MarkingThread":
        """Start, and return itself."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and wait for the current step, but not for long: a mark that is set later does no harm."""
        self._stop.set()
        self._thread.join(self._leave_seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._until_it_fails()
            except Exception as error:  # the watcher continues, however the marking fails
                self._metrics.count(table.WATCH_MARKING_FAILURES)
                if str(error) != self._last_error:
                    log.warning(
                        "watch.mark_ahead: no mark is set or removed at the moment: %s",
                        error,
                        exc_info=None if isinstance(error, ReaperError) else error,
                    )
                self._last_error = str(error)
                self._stop.wait(_AGAIN_S)

    def _until_it_fails(self) -> None:
        while not self._has_work():
            if self._stop.wait(_IDLE_S):
                return
        with self._open_tools() as tools:
            while not self._stop.is_set():
                has_done = self._has_work() and self._marking.step(tools, self._now_ms())
                if has_done:
                    self._last_error = ""
                self._stop.wait(_BETWEEN_TOPICS_S if has_done else _IDLE_S)

    def _has_work(self) -> bool:
        while not self._signs.empty():
            self._marking.take(self._signs.get(), self._now_ms())
        return self._marking.has_work(self._now_ms())
