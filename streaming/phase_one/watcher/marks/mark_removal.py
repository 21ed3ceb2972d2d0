"""Removes marks of what is gone, topic by topic; each try calls PIP-129's `remove_all_deletable_ledgers`.

The sweep judges and deletes. The first try follows the watcher's request for the same ledger, and there are more tries
until nothing is left.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from streaming.phase_one.deletable_ledgers import DeletableLedgers, Removal
from streaming.phase_one.requested import Requested
from streaming.phase_one.watcher.marks.agenda import Agenda
from streaming.phase_one.watcher.marks.signs import TopicSigns
from streaming.phase_one.watcher.watch_metrics import WatchMetrics
from streaming.ports import TrimFacts
from streaming.prometheus import table
from udfs.units import HOUR_MS

_CHECK_AGAIN_MS = 60_000  # the first pause between two checks whether what is marked is gone
# Between two requests for the same mark: PIP-186's delay before a retry. See requested.py, too.
_REQUEST_AGAIN_MS = 600_000
# There may be many millions of older receipts, and a repeated request gets a new receipt.
_RECEIPTS_OF_MS = 24 * HOUR_MS
# Requests for a topic's marks in a try: a client that may write properties could mark a million ledgers.
_MOST_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Tools:
    """The clients of the marking."""

    marks: DeletableLedgers
    facts: TrimFacts
    sessions: Callable[[], frozenset[str]]  # of the running brokers; called to check that ZooKeeper answers


@dataclass(slots=True)
class _MarkedTopic:
    """A topic with marks for which requests were sent to the sweep."""

    request_again_ms: int = 0  # from then on requests are sent again
    # Grows while no mark goes, because a check reads each ledger's metadata, and a day's receipts.
    pause_ms: int = _CHECK_AGAIN_MS
    requested: Requested = field(default_factory=Requested)


class MarkRemoval:
    """The marked topics, by the time of their next try. Not thread-safe."""

    def __init__(self, send_delay_seconds: int, metrics: WatchMetrics) -> None:
        self._first_try_ms = 2 * send_delay_seconds * 1000
        self._metrics = metrics
        self._agenda = Agenda()
        self._topics: dict[str, _MarkedTopic] = {}

    def take(self, signs: TopicSigns, now_ms: int) -> None:
        """Take the signs of a complete scan."""
        for topic in signs.marked:
            if topic not in self._agenda:
                self._agenda.put(topic, now_ms + self._first_try_ms)

    def next(self, now_ms: int) -> str | None:
        """Return the topic whose next try is due. It stays due."""
        return self._agenda.next(now_ms)

    def drop(self, topic: str) -> None:
        """Forget a topic until its next sign."""
        self._agenda.drop(topic)
        self._topics.pop(topic, None)

    def run(self, tools: Tools, topic: str, now_ms: int) -> Removal:
        """Make a try, and set the time of the next. Raises what remove_all_deletable_ledgers() and the facts raise."""
        if not tools.facts.is_loaded(topic):  # to remove a mark would load the topic, so its marks wait
            self._agenda.put(topic, now_ms + _REQUEST_AGAIN_MS)
            return Removal()
        marked = self._topics.setdefault(topic, _MarkedTopic())
        asks = now_ms >= marked.request_again_ms
        pause_ms = marked.pause_ms
        # for the next try, if a server does not answer now
        self._agenda.put(topic, now_ms + pause_ms)
        marked.pause_ms = min(2 * pause_ms, _REQUEST_AGAIN_MS)
        removal = tools.marks.remove_all_deletable_ledgers(
            topic,
            at_most=_MOST_AT_ONCE,
            asks=asks,
            receipts_since_ms=now_ms - _RECEIPTS_OF_MS,
            requested=marked.requested,
        )
        self._metrics.count(table.WATCH_MARKS_REMOVED, removal.gone)
        if not (removal.asked or removal.later):
            self.drop(topic)
            return removal
        if asks:
            marked.request_again_ms = now_ms + _REQUEST_AGAIN_MS
        if removal.gone:
            pause_ms = _CHECK_AGAIN_MS
        marked.pause_ms = min(2 * pause_ms, _REQUEST_AGAIN_MS)
        self._agenda.put(topic, min(now_ms + pause_ms, marked.request_again_ms))
        return removal
