"""The running queries: those of the configuration, and those of topics that a look finds beside them.

Such topics are the watcher's, where there is one, and those that match topics.requests_pattern.

1. A query that ends because somebody still holds its subscription is begun again, for PATIENCE_SECONDS: a broker takes
   a while to notice that a run was killed. Before its messages are worked off, they are looked up in the receipts.
2. Every minute, these topics are looked up. A new one gets its subscription, a checkpoint and a query, each tenant's
   first one before any tenant's second; if something keeps it from being read, the log says what, and we try it again.
   If one is gone, its query ends, and the log says so.
3. A topic that a checkpoint has read and no query reads now is named in the log, once a start.
4. A query that ends for any other reason is parked, and the others go on (lanes.py); a fault of its checkpoint is such
   a reason. Only a fault of what queries share, such as the receipts, ends the service (deletion.outages).
5. A query that can't plan its next batch, since the broker can't say what a partition's last message is, is stopped and
   parked. The connector would wait a minute for it.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

from streaming.adapters.pulsar.admin import is_busy
from streaming.config.settings import Settings
from streaming.coordination.ownership import Ownership
from streaming.errors import BusyError, ReaperError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import changes_of, left_behind
from streaming.queries.names import Query, queries_of
from streaming.queries.parked import ParkedQueries
from streaming.queries.short_names import adopt_short_name
from streaming.spark.failures import error_of, one_line
from streaming.topics.matching import matched_topics
from streaming.topics.setup import PATIENCE_SECONDS, subscribe_to
from udfs.paths import tenant_of

log = logging.getLogger("ledger-reaper")

_LOOK_UP_S = 60.0
_AGAIN_S = 2.0
_PLANNING = "Getting offsets"  # so a Spark query's status begins while the connector is asked where its topic ends
_PLANS_S = 8.0


@dataclass(frozen=True, slots=True)
class _Stopped:
    thread: threading.Thread
    why: ReaperError


@dataclass(slots=True)
class RunningQueries:
    """Starts queries, keeps them going, and stops them; for one thread.

    begin: starts a query. begin_again: tells the service that a query, by name, is started once more. lanes: those that
    are parked. slow_down: is told the name of each query that has failed. let_go: gives back what the connector holds
    for a query, by name, that has ended. forget: drops what the service remembers of a query whose topic is gone.
    tells_last: whether the broker can say what a partition's last message is. ownership: keeps other services from
    reading the topics of the pattern.
    most_matched: how many topics of the pattern are read. Each query is a thread and, every trigger, a handful of
    requests to brokers, and whoever may make topics could make any number of them. The watcher's topic does not count.
    """

    settings: Settings
    admin: TopicAdmin
    begin: Callable[[Query], StreamingQuery]
    begin_again: Callable[[str], None]
    parked: ParkedQueries
    slow_down: Callable[[str], None] = lambda _query: None
    let_go: Callable[[str], None] = lambda _query: None
    forget: Callable[[Query], None] = lambda _query: None
    tells_last: Callable[[str], bool] = lambda _partition: True
    ownership: Ownership | None = None
    monotonic: Callable[[], float] = time.monotonic
    most_matched: int = 100
    _running: dict[Query, StreamingQuery] = field(default_factory=dict)
    _matched: dict[str, Query] = field(default_factory=dict)
    _busy_since_s: dict[Query, float] = field(default_factory=dict)
    _again_s: dict[Query, float] = field(default_factory=dict)
    _plans_since_s: dict[Query, float] = field(default_factory=dict)
    _stopped: dict[Query, "_Stopped"] = field(default_factory=dict)
    _looked_up_s: float = 0
    _logged: dict[str, str] = field(default_factory=dict)
    _left_behind_named: bool = False
    _stopping: list[threading.Thread] = field(default_factory=list)

    @property
    def running(self) -> Mapping[Query, StreamingQuery]:
        """The queries, RETRY's among them, and those that have ended while their lanes are parked."""
        return self._running

    @property
    def matched(self) -> tuple[str, ...]:
        """Topics that are read though they are not listed: the watcher's, and those that match the pattern."""
        return tuple(self._matched)

    def start(self) -> None:
        """Begin all queries. Raises what TopicAdmin does."""
        for query in queries_of(self.settings):
            self._running[query] = self.begin(query)
        self.look_up()

    def check_once(self) -> Mapping[Query, Exception]:
        """Look after the queries; return the failures that must end the service. To be called again and again."""
        if self.monotonic() - self._looked_up_s >= _LOOK_UP_S:
            with _try_again_later("the watcher's topic and topics.requests_pattern not looked up"):
                self.look_up()
        failed: dict[Query, Exception] = {}
        for query, stream in list(self._running.items()):
            if self.parked.rests(query):
                if (failure := self._try_again(query)) is not None:
                    failed[query] = failure
            elif query in self._stopped:
                self._await_end(query)
            else:
                self._look_after(query, stream)
        return failed

    def look_up(self) -> bool:
        """Read the topics that there are beside the listed ones; True if one is new. Raises what TopicAdmin does."""
        self._looked_up_s = self.monotonic()
        found = matched_topics(self.admin, self.settings)
        for topic in self._matched.keys() - set(found):
            self._end_if_gone(self._matched[topic])
        watch = self.settings.topics.watch
        read = self._matched.keys() - {watch}
        wanted = _in_turns([topic for topic in found if topic not in (*read, watch)], read)
        room = max(self.most_matched - len(read), 0)
        for topic in wanted[room:]:
            why = f"more than {self.most_matched} topics match; list it in topics.requests"
            self._log_once(topic, f"not read: {why}")
        further = [watch] if watch in found and watch not in self._matched else []
        news = [topic for topic in (*further, *wanted[:room]) if self._take_up(topic)]
        exist = {*found, *(topic for query in self._running for topic in query.topics)}
        self._logged = {topic: what for topic, what in self._logged.items() if topic in exist}
        if not self._left_behind_named:
            self._name_left_behind(found)
        return bool(news)

    def _name_left_behind(self, found: Sequence[str]) -> None:
        """Once a start: a topic that goes later is named by its own query."""
        with _try_again_later("topics that were read before not looked at"):
            queries = [*self._running, *_queries(self.settings, tuple(found))]
            for what in left_behind(self.settings, queries, self.admin.partitions):
                log.error("%s", what)
            self._left_behind_named = True

    def stop(self) -> None:
        """Tell all queries to stop at once: one may be waiting for its turn after another."""
        self._stopping = [
            threading.Thread(target=_stop, args=(stream,), daemon=True) for stream in self._running.values()
        ]
        for thread in self._stopping:
            thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the queries and the rescues of parked lanes have stopped; False where one has not."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._stopping:
            thread.join(None if until_s is None else max(until_s - time.monotonic(), 0))
        rescues_s = None if until_s is None else max(until_s - time.monotonic(), 0)
        return self.parked.join(rescues_s) and not any(thread.is_alive() for thread in self._stopping)

    def _take_up(self, topic: str) -> bool:
        (query,) = _queries(self.settings, (topic,))
        claimed: list[str] = []
        try:
            if self.ownership is not None:
                claimed = self.ownership.claim([topic])
            faults = subscribe_to(self.admin, self.settings, topic)
            faults += [f"query {query.name} reads another topic" for each in self._running if each.name == query.name]
            if not faults:
                adopt_short_name(self.settings, query)
            faults += changes_of(self.settings, query, self.admin.partitions)
        except ReaperError as error:
            faults = [str(error)]
        if faults and claimed and self.ownership is not None:
            # a tenant may create and delete topics with a fault without end; no znode stays of each
            with contextlib.suppress(ReaperError):
                self.ownership.release(claimed)
        if not faults:
            try:
                self._running[query] = self.begin(query)
            except Exception as error:  # its old query, for one, may still wait for its turn after the topic was gone
                faults = [one_line(error_of(query.name, error))]
        if faults:
            self._log_once(topic, f"{self._why(topic)} and is not read, looked at again every minute: {faults}")
            return False
        self._matched[topic] = query
        self._logged.pop(topic, None)
        log.info("reading %s, which %s", topic, self._why(topic))
        return True

    def _why(self, topic: str) -> str:
        return "is topics.watch" if topic == self.settings.topics.watch else "matches topics.requests_pattern"

    def _look_after(self, query: Query, stream: StreamingQuery) -> None:
        if not stream.isActive:
            self._ended(query, stream.exception() or RuntimeError("it ended without a word"))
            return
        # only where something was wrong: Spark writes its progress as text for each look, and looks cost idling CPU
        if (query in self._busy_since_s or query in self.parked) and stream.lastProgress is not None:
            self._got_on(query)
        self._stop_if_it_cannot_plan(query, stream)

    def _await_end(self, query: Query) -> None:
        """Wait for the thread of a query that we stop: it may run on, and a rescue must not run beside it."""
        if not self._stopped[query].thread.is_alive():
            self._ended(query, self._stopped.pop(query).why)

    def _stop_if_it_cannot_plan(self, query: Query, stream: StreamingQuery) -> None:
        """Stop a query that seems to have planned for long, if we see why; nobody waits for its end here."""
        now_s = self.monotonic()
        if not str(stream.status["message"]).startswith(_PLANNING):
            self._plans_since_s[query] = now_s
        elif now_s - self._plans_since_s.setdefault(query, now_s) >= _PLANS_S:
            self._plans_since_s[query] = now_s
            if (partition := self._untold(query)) is not None:
                why = f"no batch can be planned: the broker can't say what the last message of {partition} is"
                thread = threading.Thread(target=_stop, args=(stream,), name="stop-query", daemon=True)
                self._stopped[query] = _Stopped(thread, ReaperError(why))
                thread.start()

    def _untold(self, query: Query) -> str | None:
        """Return a partition whose broker can't say what its last message is; None also where nobody answers at all."""
        with contextlib.suppress(ReaperError):
            for topic in query.topics:
                for number in range(self.admin.partitions(topic) or 0):
                    if not self.tells_last(partition := f"{topic}-partition-{number}"):
                        return partition
        return None

    def _got_on(self, query: Query) -> None:
        was_held = self._busy_since_s.pop(query, None) is not None
        if self.parked.recover(query) or was_held:
            self._log_once(query.topics[0], "is read again", level=logging.INFO)

    def _ended(self, query: Query, why: Exception) -> None:
        """It has ended: begin it again, note that its topic is gone, or park its lane.

        Why it ended is a text, in which a sender's words may stand. So no text ends the service: where safety is
        concerned, whoever met that has ended it already (deletion.outages).
        """
        ours = error_of(query.name, why)
        self._plans_since_s.pop(query, None)
        if query in self._matched.values():
            with _try_again_later(f"{query.topics[0]} not looked at"):
                if self._end_if_gone(query):
                    return
        if is_busy(str(why)) and query not in self.parked:
            if self._is_begun_again(query):
                return
            ours = self._is_held(query, why)
        self._park(query, ours)

    def _park(self, query: Query, why: ReaperError) -> None:
        self._busy_since_s.pop(query, None)
        # a warning: it mostly recovers at once, by reading without the connector; lanes.py reports where that fails too
        what = f"is parked, and the other topics go on. Its query failed: {one_line(why)}"
        self._log_once(query.topics[0], what, level=logging.WARNING)
        self.slow_down(query.name)
        self.let_go(query.name)
        self.parked.park(query, why)

    def _try_again(self, query: Query) -> Exception | None:
        begins = self.parked.step(query)
        if isinstance(begins, Exception):
            return begins
        if begins:
            self._begin_again(query)
        return None

    def _begin_again(self, query: Query) -> None:
        self.begin_again(query.name)
        try:
            self._running[query] = self.begin(query)
        except Exception as error:
            self._park(query, error_of(query.name, error))

    def _is_begun_again(self, query: Query) -> bool:
        """Begin a query again whose subscription is held; False where that has been so for too long."""
        now_s = self.monotonic()
        if now_s - self._busy_since_s.setdefault(query, now_s) > PATIENCE_SECONDS:
            return False
        if query not in self._again_s:
            self._again_s[query] = now_s + _AGAIN_S
            held = f"its subscription {self.settings.topics.subscription} is held, by a run that was killed perhaps"
            what = f"is waited for, {PATIENCE_SECONDS} s at most: {held}"
            self._log_once(query.topics[0], what, level=logging.WARNING)
        elif now_s >= self._again_s[query]:
            del self._again_s[query]
            self._begin_again(query)
        return True

    def _is_held(self, query: Query, why: Exception) -> BusyError:
        return BusyError(
            f"{query.topics[0]}: subscription {self.settings.topics.subscription} has been held by somebody else for "
            f"{PATIENCE_SECONDS} s: somebody moves its cursor again and again (reset-cursor, seek), or a broker hangs "
            f"at that. It must be this service's alone; the topic's stats name its consumers (bin/pulsar-admin topics "
            f"stats). What Pulsar says: {str(why)[:500]}"
        )

    def _end_if_gone(self, query: Query) -> bool:
        topic = query.topics[0]
        if self.admin.partitions(topic) is not None:
            return False
        # nobody waits for its end: it may be in the middle of its topic's last chunk
        stream = self._running.pop(query)
        threading.Thread(target=self._end, args=(query, stream), name="end-query", daemon=True).start()
        del self._matched[topic]
        self.parked.forget(query)
        self._stopped.pop(query, None)
        for known in (self._busy_since_s, self._again_s, self._plans_since_s):
            known.pop(query, None)
        if self.ownership is not None:
            with _try_again_later(f"{topic} not given up"):
                self.ownership.release([topic])
        self._log_once(topic, "is gone, and with it what was unread there; its receipts and its checkpoint stay")
        return True

    def _end(self, query: Query, stream: StreamingQuery) -> None:
        _stop(stream)
        if query not in self._running:  # its topic was made anew meanwhile, and is read
            self.let_go(query.name)
            self.forget(query)

    def _log_once(self, topic: str, what: str, *, level: int = logging.ERROR) -> None:
        """Log this about a topic, unless it was the last thing that was logged about it."""
        if self._logged.get(topic) != what:
            log.log(level, "%s", what if what.startswith(topic) else f"{topic} {what}")
        self._logged[topic] = what


def _in_turns(topics: Iterable[str], read: Iterable[str]) -> list[str]:
    """Order topics so that each tenant has its first one read before any has its second: none crowds out another.

    read: those that are read already.
    """
    counted = Counter(tenant_of(topic) for topic in read)
    places = {}
    for topic in topics:
        tenant = tenant_of(topic)
        places[topic] = counted[tenant]
        counted[tenant] += 1
    return sorted(places, key=lambda topic: (places[topic], topic))


def _queries(settings: Settings, matched: tuple[str, ...]) -> tuple[Query, ...]:
    return tuple(each for each in queries_of(settings, matched) if each.topics[0] in matched)


def _stop(stream: StreamingQuery) -> None:
    with contextlib.suppress(Exception):
        stream.stop()


@contextlib.contextmanager
def _try_again_later(what: str) -> Iterator[None]:
    try:
        yield
    except ReaperError as error:
        log.warning("%s, again later: %s", what, error)
