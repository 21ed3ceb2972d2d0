"""Marks ledgers that brokers are about to drop (PIP-129), and removes marks of ledgers that are gone.

[watch] mark_ahead starts this.
1. A broker is asked for a topic's facts only if it has the topic loaded. First, a change in the topic's znodes (a sign)
   has to show that the topic was loaded; a sign that a cursor was closed cancels it. Then the brokers are asked whether
   one of them has the topic loaded (docs/decisions/0006).
2. Every failure is counted, and none ends the marking. A topic's first failure is logged, for at most _MOST_WARNINGS
   topics. A failure of a topic delays no other topic: the marking pauses only if ZooKeeper does not answer, or several
   topics in a row fail.
"""

import logging
from collections.abc import Callable

from streaming.errors import ForbiddenError, RefusedError, UnavailableError
from streaming.phase_one.watcher.marks.due_topics import DueTopics
from streaming.phase_one.watcher.marks.failing import FailureStreak
from streaming.phase_one.watcher.marks.mark_removal import MarkRemoval, Tools
from streaming.phase_one.watcher.marks.signs import TopicSigns
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.ports import TrimFacts
from streaming.prometheus import table
from udfs.formats.managed_ledger import ManagedLedgerInfo
from udfs.phase_one.marks import Marks
from udfs.phase_one.trim_forecast import NO_LIMIT, Outlook, about_to_drop, has_unmarked, marks_for

log = logging.getLogger("ledger-reaper")

# A forecast covers three scans, and at least three minutes: by default a broker trims every two minutes.
_SCANS_AHEAD, _LEAST_AHEAD_MS = 3, 180_000
_MOST_KEYS_SHOWN = 5
_MOST_WARNINGS = 1_000
_RIGHTS = "rights"  # can't be a topic's name, because that contains slashes


class Marking:
    """Processes topics one by one: marks ledgers that are about to be dropped, and removes marks. Not thread-safe."""

    def __init__(self, poll_seconds: int, send_delay_seconds: int, metrics: WatchMetrics) -> None:
        self._ahead_ms = max(_LEAST_AHEAD_MS, _SCANS_AHEAD * poll_seconds * 1000)
        self._metrics = metrics
        self._due = DueTopics(poll_seconds)
        self._removal = MarkRemoval(send_delay_seconds, metrics)
        self._due_streak, self._removal_streak = FailureStreak(), FailureStreak()
        self._removal_is_next = True
        self._warnings = _Warnings()

    def take(self, signs: TopicSigns, now_ms: int) -> None:
        """Take the signs of a complete scan."""
        self._due.take(signs, now_ms)
        self._removal.take(signs, now_ms)

    def has_work(self, now_ms: int) -> bool:
        """Whether step() may find a topic to process now."""
        return self._due.may_have_next(now_ms) or self._removal.next(now_ms) is not None

    def step(self, tools: Tools, now_ms: int) -> bool:
        """Process a topic; return False if there is none. Raises UnavailableError if the marking should pause."""
        marked, due = self._removal.next(now_ms), self._due.next(now_ms)
        if marked is not None and (self._removal_is_next or due is None):
            self._removal_is_next = False  # alternate: a mark that stays must delay no other topic
            self._try_removal(tools, marked, now_ms)
        elif due is not None:
            self._removal_is_next = True
            self._try_marking(tools, due, now_ms)
        return marked is not None or due is not None

    def _try_removal(self, tools: Tools, topic: str, now_ms: int) -> None:
        try:
            self._unless_refused(topic, lambda: self._remove_marks(tools, topic, now_ms))
        except UnavailableError as error:
            tools.sessions()
            self._count(self._removal_streak, topic, error)
        else:
            self._removal_streak.answered()

    def _try_marking(self, tools: Tools, topic: str, now_ms: int) -> None:
        loaded_until_ms = self._due.start(topic, now_ms)
        try:
            self._unless_refused(topic, lambda: self._mark(tools, topic, now_ms))
        except UnavailableError as error:
            self._due.keep_sign(topic, loaded_until_ms)
            tools.sessions()  # raises if ZooKeeper is unavailable: then the topic is not at fault, and stays next
            self._due.failed(topic, loaded_until_ms, now_ms)
            self._count(self._due_streak, topic, error)
        else:
            self._due.answered(topic)
            self._due_streak.answered()

    def _count(self, streak: FailureStreak, topic: str, error: UnavailableError) -> None:
        """Count and log a failure of a topic while ZooKeeper answers. Raises the error if it looks like an outage."""
        if streak.failed(topic):
            raise error
        self._metrics.count(table.WATCH_MARKING_FAILURES)
        about = topic if topic in str(error) else str(error)  # what concerns all topics is logged once
        self._warnings.log(about, f"{topic} waits, and other topics are not affected: {error}")

    def _unless_refused(self, topic: str, process: Callable[[], None]) -> None:
        """Call `process`. If a server refuses, or content of the topic is invalid, the topic waits for a new sign."""
        try:
            process()
        except (RefusedError, ValueError) as error:
            self._metrics.count(table.WATCH_MARKING_FAILURES)
            self._due.set_forecast(topic, None)
            self._removal.drop(topic)
            self._warnings.log(_RIGHTS if isinstance(error, ForbiddenError) else topic, f"{topic}: {error}")

    def _remove_marks(self, tools: Tools, topic: str, now_ms: int) -> None:
        removal = self._removal.run(tools, topic, now_ms)
        if removal.unreadable:
            keys = ", ".join(removal.unreadable[:_MOST_KEYS_SHOWN])
            self._warnings.log(topic, f"{topic} has marks that can't be read and are not removed: {keys}")

    def _mark(self, tools: Tools, topic: str, now_ms: int) -> None:
        if not tools.facts.is_loaded(topic):  # internalStats, which may follow, would load it
            self._due.set_forecast(topic, None)
            return

        outlook = Outlook()

        def choose(info: ManagedLedgerInfo, marked: Marks) -> Marks:
            nonlocal outlook
            outlook = self._outlook(tools.facts, topic, info, marked, now_ms)
            return marks_for(info, outlook.ids)

        self._metrics.count(table.WATCH_MARKS_SET, tools.marks.mark_chosen(topic, choose))
        self._due.set_forecast(topic, outlook.next_ms)

    def _outlook(self, facts: TrimFacts, topic: str, info: ManagedLedgerInfo, marked: Marks, now_ms: int) -> Outlook:
        if not has_unmarked(info, marked):
            return Outlook()
        retention = facts.retention(topic)
        if retention.megabytes == NO_LIMIT:
            # without cursors the forecast is the largest possible
            largest = about_to_drop(info.ledgers, 0, (), retention, now_ms=now_ms, ahead_ms=self._ahead_ms)
            if not largest.ids:
                return largest  # too early, wherever the cursors are
        if retention.is_none:
            return Outlook()
        stats = facts.internal_stats(topic)
        open_bytes = stats.sizes.get(stats.ledgers[-1][0], 0) if stats.ledgers else 0
        cursors = stats.cursors.values()
        return about_to_drop(info.ledgers, open_bytes, cursors, retention, now_ms=now_ms, ahead_ms=self._ahead_ms)


class _Warnings:
    """Logs a warning about each topic once, for at most _MOST_WARNINGS topics."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, about: str, message: str) -> None:
        """Log the first warning about a topic. A missing right is logged once, even after _MOST_WARNINGS."""
        if about in self._logged or (len(self._logged) >= _MOST_WARNINGS and about != _RIGHTS):
            return
        self._logged.add(about)
        log.warning("watch.mark_ahead: %s", message)
        if len(self._logged) == _MOST_WARNINGS:
            log.warning("watch.mark_ahead: failures of further topics are not logged; the metrics count them")
