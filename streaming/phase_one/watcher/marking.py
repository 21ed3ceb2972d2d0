"""Marks what brokers are about to drop, and works marks off, in a thread of its own ([watch] mark_ahead).

1. A broker is asked only about a topic that it has loaded. The topic's znodes show that first, and no cursor was closed
   since; then brokers are asked whether one of them has it loaded (docs/decisions/0006). Marks of a topic that none has
   loaded wait: to take one away would load it.
2. So few topics a minute are asked about that brokers do not notice. A topic whose turn comes too late is left out
   until it changes again.
3. Marks of what a list names no more are worked off after the watcher's own request has had its time; then again,
   seldom, until nothing is left, so many at once. Whether something is gone is looked at less and less often while
   nothing goes: a look reads each ledger's metadata, and a day's receipts. Each of it is PIP-129's
   remove_all_deletable_ledgers: the sweep judges.
4. Whatever goes wrong is said once, counted, and ends nothing. What goes wrong with one topic keeps no other waiting:
   all pause only where ZooKeeper does not answer, or several topics in a row fail.
"""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from streaming.errors import ForbiddenError, ReaperError, RefusedError, UnavailableError
from streaming.phase_one.marks import DeletableLedgers
from streaming.phase_one.requested import Requested
from streaming.phase_one.watcher.agenda import Agenda
from streaming.phase_one.watcher.ahead import Seen
from streaming.phase_one.watcher.failing import Failing, Row
from streaming.phase_one.watcher.metrics import WatchMetrics
from streaming.ports import TrimFacts
from udfs.formats.managed_ledger import ManagedLedgerInfo
from udfs.phase_one.ahead import NO_LIMIT, Outlook, about_to_drop, has_unmarked, marks_for
from udfs.phase_one.marks import Marks
from udfs.units import HOUR_MS

log = logging.getLogger("ledger-reaper")

_BETWEEN_TOPICS_S = 0.2  # 300 topics a minute at most
_IDLE_S = 1.0
_AGAIN_S = 15.0  # after a service did not answer
_LOOK_AGAIN_MS = 60_000  # between two looks at whether what is marked is gone, at first
_ASK_AGAIN_MS = (
    600_000  # between two requests for one mark: what PIP-186 waits before it tries again. See requested.py, too
)
_RECEIPTS_OF_MS = 24 * HOUR_MS  # all receipts can be many millions; what is asked for again has a new one
_MOST_AT_ONCE = 1_000  # requests for one topic's marks: who may write properties could mark a million ledgers
_LEAST_AHEAD_MS = 180_000  # a broker trims every two minutes by default
_LEAST_FRESH_MS = 120_000
_LOOKS_AHEAD = 3
_LOOKS_FRESH = 2
_MOST_KEYS_SAID = 5
_MOST_SAID = 1_000
_RIGHTS = "rights"  # no topic: those have slashes


@dataclass(frozen=True, slots=True)
class Tools:
    """What marking talks to. sessions: those of the brokers that run; asked to see whether ZooKeeper answers."""

    marks: DeletableLedgers
    facts: TrimFacts
    sessions: Callable[[], frozenset[str]]


class Marking:
    """What is to be marked and worked off, and when. For one thread."""

    def __init__(self, poll_seconds: int, send_delay_seconds: int, metrics: WatchMetrics) -> None:
        self._ahead_ms = max(_LEAST_AHEAD_MS, _LOOKS_AHEAD * poll_seconds * 1000)
        self._fresh_ms = max(_LEAST_FRESH_MS, _LOOKS_FRESH * poll_seconds * 1000)
        self._work_after_ms = 2 * send_delay_seconds * 1000
        self._metrics = metrics
        self._ask: dict[str, int] = {}  # topic -> until when the sign that it is loaded holds
        self._due = Agenda()  # when more of a topic may be about to be dropped
        self._work = Agenda()  # when a topic's marks are worked off
        self._failing = Failing()  # of these a broker did not answer; they are asked about after all others
        self._ask_row, self._work_row = Row(), Row()
        self._works_next = True
        self._ask_again: dict[str, int] = {}  # topic -> before then the sweep is not asked for its marks again
        self._requested: dict[str, Requested] = {}  # topic -> what the sweep was asked for
        self._pause_ms: dict[str, int] = {}  # topic -> between two looks at its marks; longer while none of them goes
        self._said: set[str] = set()

    def take(self, seen: Seen, now_ms: int) -> None:
        """Take what a whole look saw."""
        for topic in seen.closed:
            self._ask.pop(topic, None)
            self._due.drop(topic)
            self._failing.drop(topic)
        self._failing.forget_old(now_ms)
        for topic in sorted(seen.loaded - seen.closed):
            if not self._failing.sign(topic, now_ms + self._fresh_ms):
                self._ask[topic] = now_ms + self._fresh_ms
        for topic in seen.marked:
            if topic not in self._work:
                self._work.put(topic, now_ms + self._work_after_ms)

    def has_work(self, now_ms: int) -> bool:
        """Whether step() would do something now."""
        return bool(self._ask) or any(each.next(now_ms) is not None for each in (self._due, self._work, self._failing))

    def step(self, tools: Tools, now_ms: int) -> bool:
        """Look after one topic; False where there is none. Raises UnavailableError where all should pause."""
        work, ask = self._work.next(now_ms), self._next_to_ask(now_ms)
        if work is not None and (self._works_next or ask is None):
            self._works_next = False  # in turn, so that marks that stay for long keep no others waiting
            self._one_work(tools, work, now_ms)
        elif ask is not None:
            self._works_next = True
            self._one_ask(tools, ask, now_ms)
        return work is not None or ask is not None

    def _one_work(self, tools: Tools, topic: str, now_ms: int) -> None:
        try:
            self._said_once(topic, lambda: self._work_off(tools, topic, now_ms))
        except UnavailableError as error:
            tools.sessions()
            self._count(self._work_row, topic, error)
        else:
            self._work_row.answered()

    def _one_ask(self, tools: Tools, topic: str, now_ms: int) -> None:
        loaded_until_ms = self._ask.pop(topic, 0)
        if topic in self._due:
            self._due.put(topic, now_ms + self._fresh_ms)  # again then, whatever happens now
        try:
            self._said_once(topic, lambda: self._mark(tools, topic, now_ms))
        except UnavailableError as error:
            if loaded_until_ms:
                self._ask[topic] = loaded_until_ms
            tools.sessions()  # where this fails as well, nothing is the topic's fault, and it keeps its turn
            self._ask.pop(topic, None)
            again_ms = self._failing.failed(topic, loaded_until_ms, now_ms)
            if topic in self._due:
                self._due.put(topic, again_ms)
            self._count(self._ask_row, topic, error)
        else:
            self._failing.drop(topic)
            self._ask_row.answered()

    def _count(self, row: Row, topic: str, error: UnavailableError) -> None:
        """Tell of a topic that failed while ZooKeeper answers. Raises the error where it seems to be everybody's."""
        if row.failed(topic):
            raise error
        self._metrics.marking_failures.inc()
        self._say(topic, f"{topic} waits, and the others go on: {error}")

    def _next_to_ask(self, now_ms: int) -> str | None:
        while self._ask:
            topic = next(iter(self._ask))
            if self._ask[topic] >= now_ms:
                return topic
            del self._ask[topic]
        return self._due.next(now_ms) or self._failing.next(now_ms)

    def _mark(self, tools: Tools, topic: str, now_ms: int) -> None:
        if not tools.facts.is_loaded(topic):  # internalStats, which may follow, would load it
            self._due.drop(topic)
            return

        outlook = Outlook()

        def choose(info: ManagedLedgerInfo, known: Marks) -> Marks:
            nonlocal outlook
            outlook = self._outlook(tools.facts, topic, info, known, now_ms)
            return marks_for(info, outlook.ids)

        self._metrics.marks_set.inc(tools.marks.mark_chosen(topic, choose))
        self._due.drop(topic)
        if outlook.next_ms is not None:
            self._due.put(topic, outlook.next_ms)

    def _outlook(self, facts: TrimFacts, topic: str, info: ManagedLedgerInfo, known: Marks, now_ms: int) -> Outlook:
        if not has_unmarked(info, known):
            return Outlook()
        retention = facts.retention(topic)
        if retention.megabytes == NO_LIMIT:
            at_most = about_to_drop(info.ledgers, 0, (), retention, now_ms=now_ms, ahead_ms=self._ahead_ms)
            if not at_most.ids:
                return at_most  # it is too early, wherever the cursors are
        if retention.is_none:
            return Outlook()
        stats = facts.internal_stats(topic)
        open_bytes = stats.sizes.get(stats.ledgers[-1][0], 0) if stats.ledgers else 0
        cursors = stats.cursors.values()
        return about_to_drop(info.ledgers, open_bytes, cursors, retention, now_ms=now_ms, ahead_ms=self._ahead_ms)

    def _work_off(self, tools: Tools, topic: str, now_ms: int) -> None:
        if not tools.facts.is_loaded(topic):
            self._work.put(topic, now_ms + _ASK_AGAIN_MS)
            return
        asks = now_ms >= self._ask_again.get(topic, now_ms)
        pause_ms = self._pause_ms.get(topic, _LOOK_AGAIN_MS)
        self._work.put(topic, now_ms + pause_ms)
        self._pause_ms[topic] = min(2 * pause_ms, _ASK_AGAIN_MS)  # for the next time, if a service does not answer now
        done = tools.marks.remove_all_deletable_ledgers(
            topic,
            at_most=_MOST_AT_ONCE,
            asks=asks,
            receipts_since_ms=now_ms - _RECEIPTS_OF_MS,
            requested=self._requested.setdefault(topic, Requested()),
        )
        self._metrics.marks_worked_off.inc(done.gone)
        if not (done.asked or done.later):
            self._no_more_work(topic)
        else:
            if asks:
                self._ask_again[topic] = now_ms + _ASK_AGAIN_MS
            if done.gone:
                pause_ms = _LOOK_AGAIN_MS
            self._pause_ms[topic] = min(2 * pause_ms, _ASK_AGAIN_MS)
            self._work.put(topic, min(now_ms + pause_ms, self._ask_again[topic]))
        if done.unreadable:
            self._say(
                topic,
                f"{topic} has marks that can't be read, and they stay: {', '.join(done.unreadable[:_MOST_KEYS_SAID])}",
            )

    def _no_more_work(self, topic: str) -> None:
        self._work.drop(topic)
        self._ask_again.pop(topic, None)
        self._requested.pop(topic, None)
        self._pause_ms.pop(topic, None)

    def _said_once(self, topic: str, do: Callable[[], None]) -> None:
        """Do it. What a service refuses is said once, and the topic waits until something new is seen of it.

        So is what can't be understood of this one topic: it must keep no other from its turn.
        """
        try:
            do()
        except (RefusedError, ValueError) as error:
            self._metrics.marking_failures.inc()
            self._due.drop(topic)
            self._no_more_work(topic)
            self._say(_RIGHTS if isinstance(error, ForbiddenError) else topic, f"{topic}: {error}")

    def _say(self, about: str, what: str) -> None:
        """Say it once. Of so many topics only, but that we lack a right is said at any time."""
        if about in self._said or (len(self._said) >= _MOST_SAID and about != _RIGHTS):
            return
        self._said.add(about)
        log.warning("watch.mark_ahead: %s", what)
        if len(self._said) == _MOST_SAID:
            log.warning("watch.mark_ahead: of further topics nothing is said; the metrics count what fails")


class MarkingThread:
    """Runs a Marking until the block is left. open_tools: opens what it talks to, when there is something to do."""

    def __init__(
        self,
        marking: Marking,
        open_tools: Callable[[], AbstractContextManager[Tools]],
        metrics: WatchMetrics,
        now_ms: Callable[[], int],
        leave_seconds: float,
    ) -> None:
        self._marking = marking
        self._open_tools = open_tools
        self._metrics = metrics
        self._now_ms = now_ms
        self._leave_seconds = leave_seconds
        self._seen: queue.SimpleQueue[Seen] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marking", daemon=True)
        self._why = ""

    def hand_over(self, seen: Seen) -> None:
        """Take what a whole look saw. Never waits."""
        self._seen.put(seen)

    def __enter__(self) -> "MarkingThread":
        """Start, and return itself."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and wait for what is under way, but not for long: a mark that is set late does no harm."""
        self._stop.set()
        self._thread.join(self._leave_seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._until_it_fails()
            except Exception as error:  # the watching goes on, whatever is wrong with the marking
                self._metrics.marking_failures.inc()
                if str(error) != self._why:
                    log.warning(
                        "watch.mark_ahead: nothing is marked or worked off for the moment: %s",
                        error,
                        exc_info=None if isinstance(error, ReaperError) else error,
                    )
                self._why = str(error)
                self._stop.wait(_AGAIN_S)

    def _until_it_fails(self) -> None:
        while not self._has_work():
            if self._stop.wait(_IDLE_S):
                return
        with self._open_tools() as tools:
            while not self._stop.is_set():
                did = self._has_work() and self._marking.step(tools, self._now_ms())
                if did:
                    self._why = ""
                self._stop.wait(_BETWEEN_TOPICS_S if did else _IDLE_S)

    def _has_work(self) -> bool:
        while not self._seen.empty():
            self._marking.take(self._seen.get(), self._now_ms())
        return self._marking.has_work(self._now_ms())
