"""The running queries: those of the configuration, and that of the watcher's topic, once a look-up finds it.

1. The watcher's topic gets its subscription, a checkpoint and a query. If a fault prevents that, it is logged, and the
   next look-up tries again. If the topic is gone, its query ends, which is logged.
2. A topic that was read before (it has a checkpoint, or the service owns it), and that neither a query nor a pass over
   lanes reads now, is named in the log, once per start.
3. A query that fails is parked (life.py), and the others continue; this includes a fault of its checkpoint. Only a
   fault of what queries share, such as the receipts, ends the service (deletion.gate.Outages).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.queries.checkpoints import changes_of, left_behind
from streaming.queries.life import ManagedQuery, QueryTools, TopicLog, stop_stream
from streaming.queries.names import Query, further_query, queries_of
from streaming.queries.short_names import adopt_short_name
from streaming.spark.java_errors import error_of, one_line
from streaming.topics.setup import subscribe_to, watch_topic
from udfs.formats.internal_stats import Position

log = logging.getLogger("ledger-reaper")

_LOOK_UP_S = 60.0


@dataclass(slots=True)
class RunningQueries:
    """Starts queries, keeps them running, and stops them; for one thread."""

    settings: Settings
    tools: QueryTools
    beat: Callable[[], None] = lambda: None  # called before each topic, whose brokers may take a minute to answer
    read_in_passes: Callable[[], Collection[str]] = tuple  # returns the topics that match and that passes read
    claimed: Callable[[], Collection[str]] = tuple  # returns the topics that this service owns
    _queries: dict[Query, ManagedQuery] = field(default_factory=dict)
    _watch: Query | None = None  # that of the watcher's topic
    _looked_up_s: float = 0
    _log: TopicLog = field(default_factory=TopicLog)
    _left_behind_named: bool = False
    _stopping: list[threading.Thread] = field(default_factory=list)

    @property
    def running(self) -> Mapping[Query, StreamingQuery]:
        """The queries, RETRY's among them, and those that have ended while they are parked."""
        return {query: managed.stream for query, managed in self._queries.items()}

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Topics that are read by a query although they are not listed: the watcher's."""
        return () if self._watch is None else self._watch.topics

    @property
    def given_up(self) -> dict[Query, Exception]:
        """Queries that failed too often to be tried again, and why they failed last."""
        return {
            query: managed.why
            for query, managed in self._queries.items()
            if managed.is_given_up and managed.why is not None
        }

    @property
    def reached(self) -> dict[str, Position]:
        """Partition -> the position up to which all messages have receipts although no batch is committed."""
        return {partition: at for managed in self._queries.values() for partition, at in managed.reached.items()}

    def rests(self, query: Query) -> bool:
        """Whether the query is parked and does not run."""
        return self._queries[query].life.rests

    def start(self) -> None:
        """Start all queries. Raises what TopicAdmin does."""
        for query in queries_of(self.settings):
            self._queries[query] = ManagedQuery(query, self.tools.start(query), self.tools, self._log)
        self.look_up()

    def check_once(self) -> Mapping[Query, Exception]:
        """Check all queries; return the failures that must end the service. To be called again and again."""
        if self.tools.monotonic() - self._looked_up_s >= _LOOK_UP_S:
            # a fault of the look-up must not stop the queries that run
            with _try_again_later("could not look up the watcher's topic"):
                self.look_up()
        failures = {}
        for query, managed in list(self._queries.items()):
            self.beat()
            if (failure := managed.check()) is not None:
                failures[query] = failure
        return failures

    def look_up(self) -> bool:
        """Find the watcher's topic, and read it; True if it is new. Raises what TopicAdmin does."""
        self._looked_up_s = self.tools.monotonic()
        topics = watch_topic(self.tools.admin, self.settings)
        is_new = False
        if not topics and self._watch is not None:
            self._end_if_gone(self._watch)
        elif topics and self._watch is None:
            is_new = self._take_up(*topics)
        # once per start: a topic that is deleted later is named when its query ends
        if not self._left_behind_named:
            self._name_left_behind(topics)
        return is_new

    def stop(self) -> None:
        """Tell all queries to stop at once: a query may be waiting for the fair lock of another."""
        self._stopping = [
            threading.Thread(target=stop_stream, args=(managed.stream,), daemon=True)
            for managed in self._queries.values()
        ]
        for thread in self._stopping:
            thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the queries and the fallbacks have stopped; False if any has not."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s

        def left_s() -> float | None:
            return None if until_s is None else max(until_s - time.monotonic(), 0)

        for thread in self._stopping:
            thread.join(left_s())
        are_over = [managed.join(left_s()) for managed in self._queries.values()]
        return all(are_over) and not any(thread.is_alive() for thread in self._stopping)

    def _name_left_behind(self, topics: Sequence[str]) -> None:
        """Log the topics that were read before, and that neither a query nor a pass reads now."""
        with _try_again_later("could not check topics that were read before"):
            queries = [*self._queries, *map(further_query, topics)]
            partitions, in_passes = self.tools.admin.partitions, self.read_in_passes()
            for message in left_behind(self.settings, queries, partitions, in_passes, self.claimed()):
                log.error("%s", message)
            self._left_behind_named = True

    def _take_up(self, topic: str) -> bool:
        self.beat()
        query = further_query(topic)
        faults = self._prepare(query)
        if not faults:
            try:
                stream = self.tools.start(query)
                self._queries[query] = ManagedQuery(
                    query, stream, self.tools, self._log, lambda: self._is_found_gone(query)
                )
            except Exception as error:  # for example, the deleted topic's old query may still wait for the fair lock
                faults = [one_line(error_of(query.name, error))]
        if faults:
            self._log(topic, f"is topics.watch and is not read, checked again every minute: {faults}")
            return False
        self._watch = query
        self._log.forget(topic)
        log.info("reading %s, which is topics.watch", topic)
        return True

    def _prepare(self, query: Query) -> list[str]:
        """Create the subscription of a topic; return the faults that prevent reading it."""
        (topic,) = query.topics
        try:
            faults = subscribe_to(self.tools.admin, self.settings, topic)
            if not faults:
                adopt_short_name(self.settings, query)
            return faults + changes_of(self.settings, query, self.tools.admin.partitions)
        except ReaperError as error:
            return [str(error)]

    def _is_found_gone(self, query: Query) -> bool:
        with _try_again_later(f"could not check {query.topics[0]}"):
            return self._end_if_gone(query)
        return False

    def _end_if_gone(self, query: Query) -> bool:
        topic = query.topics[0]
        if self.tools.admin.partitions(topic) is not None:
            return False
        managed = self._queries.pop(query)
        self._watch = None
        managed.forget()
        # in a thread: the query may be in the middle of its topic's last chunk
        threading.Thread(target=self._end, args=(query, managed.stream), name="end-query", daemon=True).start()
        self._log(topic, "is gone, and its unread messages with it; its receipts and its checkpoint stay")
        return True

    def _end(self, query: Query, stream: StreamingQuery) -> None:
        stop_stream(stream)
        if query not in self._queries:  # otherwise the topic was created again, and is read
            self.tools.close_client(query.name)
            self.tools.forget(query)


@contextlib.contextmanager
def _try_again_later(what: str) -> Iterator[None]:
    try:
        yield
    except ReaperError as error:
        log.warning("%s, trying again later: %s", what, error)
