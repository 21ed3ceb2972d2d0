"""The running queries: those of the configuration, and those of topics that match topics.requests_pattern meanwhile.

1. A query that ends because somebody still holds its subscription is begun again, for PATIENCE_SECONDS: a broker takes
   a while to notice that a run was killed. Its messages are then looked at for receipts, as at a start.
2. What matches the pattern is looked up every minute. A new match gets its subscription, a checkpoint and a query; what
   keeps it from being read is said, and it is looked at again. One that is gone is said to be, and its query ends.
3. A topic that a checkpoint has read and no query reads now is named in the log.
4. A query that ends for any other reason ends the service.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from pyspark.sql.streaming.query import StreamingQuery

from streaming.adapters.pulsar.admin import is_busy
from streaming.config.settings import Settings
from streaming.errors import BusyError, ReaperError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import changes_of, left_behind
from streaming.queries.names import Query, queries_of
from streaming.topics.matching import matched_topics
from streaming.topics.setup import PATIENCE_SECONDS, take_up

log = logging.getLogger("ledger-reaper")

_LOOK_UP_S = 60.0
_AGAIN_S = 2.0
# Each query is a thread and, every trigger, a handful of requests to brokers. Whoever may make topics could make more.
_MOST_MATCHED = 100


class RunningQueries:
    """Starts queries, keeps them going, and stops them; for one thread.

    begin: starts a query. begin_again: what the service has to know before a query is started once more.
    """

    def __init__(
        self,
        settings: Settings,
        admin: TopicAdmin,
        begin: Callable[[Query], StreamingQuery],
        begin_again: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._begin = begin
        self._begin_again = begin_again
        self._monotonic = monotonic
        self._running: dict[Query, StreamingQuery] = {}
        self._matched: dict[str, Query] = {}
        self._busy_since_s: dict[Query, float] = {}
        self._again_s: dict[Query, float] = {}
        self._looked_up_s = monotonic()
        self._told: dict[str, str] = {}
        self._stopping: list[threading.Thread] = []

    @property
    def running(self) -> Mapping[Query, StreamingQuery]:
        """The queries, the one of RETRY among them."""
        return self._running

    @property
    def matched(self) -> tuple[str, ...]:
        """Topics that are read because they match the pattern."""
        return tuple(self._matched)

    def start(self) -> None:
        """Begin all queries. Raises what TopicAdmin does."""
        for query in queries_of(self._settings):
            self._running[query] = self._begin(query)
        self.look_up()

    def turn(self) -> Mapping[Query, Exception | None]:
        """Look after the queries; returns those that have failed, and with them the service. As often as one likes."""
        if self._monotonic() - self._looked_up_s >= _LOOK_UP_S:
            with _again_later("topics.requests_pattern not looked up"):
                self.look_up()
        failed: dict[Query, Exception | None] = {}
        for query, stream in list(self._running.items()):
            if stream.isActive:
                if query in self._busy_since_s and stream.lastProgress is not None:
                    del self._busy_since_s[query]
                    self._tell(query.topics[0], "is read again", level=logging.INFO)
            elif not self._goes_on(query, stream.exception()):
                failed[query] = self._failure(query, stream.exception())
        return failed

    def look_up(self) -> bool:
        """Take up what matches the pattern now; True if that was something new. Raises what TopicAdmin does."""
        self._looked_up_s = self._monotonic()
        found = matched_topics(self._admin, self._settings)
        for topic in self._matched.keys() - set(found):
            self._end_if_gone(self._matched[topic])
        wanted = [topic for topic in found if topic not in self._matched]
        room = _MOST_MATCHED - len(self._matched)
        for topic in wanted[max(room, 0) :]:
            self._tell(topic, f"not read: more than {_MOST_MATCHED} topics match; list it in topics.requests")
        news = [topic for topic in wanted[: max(room, 0)] if self._take_up(topic)]
        with _again_later("topics that were read before not looked at"):
            read = [*self._running, *_queries(self._settings, found)]
            for topic, what in left_behind(self._settings, read, self._admin.partitions).items():
                self._tell(topic, what)
        return bool(news)

    def stop(self) -> None:
        """Tell all of them to stop; none waits until another has."""
        self._stopping = [
            threading.Thread(target=_stopped, args=(stream,), daemon=True) for stream in self._running.values()
        ]
        for thread in self._stopping:
            thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until those that were told to have stopped; False where one has not."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._stopping:
            thread.join(None if until_s is None else max(until_s - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._stopping)

    def _take_up(self, topic: str) -> bool:
        (query,) = _queries(self._settings, (topic,))
        try:
            faults = take_up(self._admin, self._settings, topic)
            faults += changes_of(self._settings, query, self._admin.partitions)
        except ReaperError as error:
            faults = [str(error)]
        if faults:
            self._tell(
                topic, f"matches topics.requests_pattern and is not read, looked at again every minute: {faults}"
            )
            return False
        self._running[query] = self._begin(query)
        self._matched[topic] = query
        self._told.pop(topic, None)
        log.info("reading %s, which matches topics.requests_pattern", topic)
        return True

    def _goes_on(self, query: Query, why: Exception | None) -> bool:
        """Whether a query that has ended is no reason to stop: it is begun again in a moment, or its topic is gone."""
        if query in self._matched.values():
            with _again_later(f"{query.topics[0]} not looked at"):
                if self._end_if_gone(query):
                    return True
        now_s = self._monotonic()
        if not is_busy(str(why)) or now_s - self._busy_since_s.setdefault(query, now_s) > PATIENCE_SECONDS:
            return False
        if query not in self._again_s:
            self._again_s[query] = now_s + _AGAIN_S
            what = f"its subscription {self._settings.topics.subscription} is held, by a run that was killed perhaps"
            self._tell(query.topics[0], f"is waited for, {PATIENCE_SECONDS} s at most: {what}", level=logging.WARNING)
        elif now_s >= self._again_s[query]:
            del self._again_s[query]
            self._begin_again(query.name)
            self._running[query] = self._begin(query)
        return True

    def _failure(self, query: Query, why: Exception | None) -> Exception | None:
        if query not in self._busy_since_s or not is_busy(str(why)):
            return why
        return BusyError(
            f"{query.topics[0]}: subscription {self._settings.topics.subscription} has been held by somebody else for "
            f"{PATIENCE_SECONDS} s; its consumers are in the topic's stats (bin/pulsar-admin topics stats). It must be "
            f"this service's alone. What Pulsar says: {str(why)[:500]}"
        )

    def _end_if_gone(self, query: Query) -> bool:
        topic = query.topics[0]
        if self._admin.partitions(topic) is not None:
            return False
        # not waited for: it may be in the middle of its topic's last chunk
        threading.Thread(target=_stopped, args=(self._running.pop(query),), daemon=True).start()
        del self._matched[topic]
        for known in (self._busy_since_s, self._again_s):
            known.pop(query, None)
        self._tell(topic, "is gone, and with it what was unread there; its receipts and its checkpoint stay")
        return True

    def _tell(self, topic: str, what: str, *, level: int = logging.ERROR) -> None:
        """Once, until there is something else to say of it."""
        if self._told.get(topic) != what:
            log.log(level, "%s", what if what.startswith(topic) else f"{topic} {what}")
        self._told[topic] = what


def _queries(settings: Settings, matched: tuple[str, ...]) -> tuple[Query, ...]:
    return tuple(each for each in queries_of(settings, matched) if each.topics[0] in matched)


def _stopped(stream: StreamingQuery) -> None:
    with contextlib.suppress(Exception):
        stream.stop()


@contextlib.contextmanager
def _again_later(what: str) -> Iterator[None]:
    try:
        yield
    except ReaperError as error:
        log.warning("%s, again later: %s", what, error)
