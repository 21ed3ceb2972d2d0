"""Carries out the life of a query (udfs.query_life): starts and stops its stream, and runs its fallback in a thread."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql.streaming.query import StreamingQuery

from streaming.adapters.pulsar.admin_api.admin import is_busy
from streaming.errors import BusyError, FencedError, ReaperError, StopRequestedError, UnavailableError
from streaming.ports import TopicAdmin
from streaming.queries.names import Query
from streaming.spark.java_errors import error_of, one_line
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.topics.setup import PATIENCE_SECONDS
from udfs.formats.internal_stats import Position
from udfs.query_life import (
    Action,
    BatchCommitted,
    CannotPlan,
    Checked,
    Ended,
    Event,
    FallbackFailed,
    FallbackReturned,
    FallbackStopped,
    Phase,
    Planning,
    QueryLife,
    Rules,
    StartFailed,
    apply,
)

log = logging.getLogger("ledger-reaper")

_NO_RESULT = RuntimeError("the fallback ended without a result")
_PLANNING = "Getting offsets"  # the start of Spark's status while the connector asks where its topic ends


@dataclass(frozen=True, slots=True)
class FallbackResult:
    """The result of a fallback."""

    has_news: bool  # it found messages without a receipt, or committed a batch
    may_start: bool = True  # the connector can plan the next batch
    # partition -> the position up to which all messages have receipts although no batch is committed
    reached: Mapping[str, Position] = field(default_factory=dict)


Fallback = Callable[[Query], FallbackResult]
"""Processes without the connector what a query could not. Raises any exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTools:
    """What a query's life needs of the service. Callbacks take the query's name, except those that take a Query."""

    admin: TopicAdmin
    start: Callable[[Query], StreamingQuery]
    restart: Callable[[str], None]  # called before a query is started again
    fallback: Fallback = lambda _query: FallbackResult(has_news=False)  # not called without rules.has_fallback
    show: Callable[[str, ParkedQuery | None], None] = lambda _name, _parked: None  # None: it is no longer parked
    slow_down: Callable[[str], None] = lambda _name: None  # called for each query that has failed
    close_client: Callable[[str], None] = lambda _name: None  # closes the connector's client of an ended query
    forget: Callable[[Query], None] = lambda _query: None  # called for a query whose topic is gone
    reports_last_message: Callable[[str], bool] = lambda _partition: True  # whether the broker returns its last message
    rules: Rules = field(default_factory=lambda: Rules(patience_s=PATIENCE_SECONDS))
    subscription: str = ""
    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)


class TopicLog:
    """Logs about topics, and no message twice in a row about the same topic."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def __call__(self, topic: str, message: str, *, level: int = logging.ERROR) -> None:
        """Log a message about a topic, unless it repeats the last message about this topic."""
        if self._last.get(topic) != message:
            log.log(level, "%s", message if message.startswith(topic) else f"{topic} {message}")
        self._last[topic] = message

    def forget(self, topic: str) -> None:
        """Log the next message about a topic in any case."""
        self._last.pop(topic, None)


class ManagedQuery:
    """A query with its stream and its life. For one thread; the fallback runs in a thread of its own.

    Args:
        is_gone: called when the query has ended; returns whether its topic was deleted.
    """

    def __init__(
        self,
        query: Query,
        stream: StreamingQuery,
        tools: QueryTools,
        topic_log: TopicLog,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.query = query
        self.stream = stream
        self.life = QueryLife()
        self.why: ReaperError | None = None  # why it is parked
        self.reached: Mapping[str, Position] = {}  # as FallbackResult.reached
        self._tools = tools
        self._log = topic_log
        self._is_gone = is_gone
        self._failure: Exception = RuntimeError("it ended without an exception")
        self._parked_since_ms = 0
        self._stopping = self._fallback = threading.Thread()
        self._result: FallbackResult | Exception = _NO_RESULT

    @property
    def is_given_up(self) -> bool:
        """Whether the query failed too often to be tried again."""
        return self.life.is_given_up(self._tools.rules)

    def check(self) -> Exception | None:
        """Do what is due; return an exception that must end the service."""
        match self.life.phase:
            case Phase.RUNS | Phase.PROVES:
                self._check_stream()
            case Phase.HELD:
                if not self._is_gone():
                    self._happened(Checked(self._tools.monotonic()))
            case Phase.STOPS:
                # the thread may run on after the stream has ended, and the fallback must not run at the same time
                if not self._stopping.is_alive():
                    self._end()
            case Phase.FALLBACK_RUNS:
                return self._check_fallback()
            case Phase.FALLBACK_DUE | Phase.START_DUE:
                self._happened(Checked(self._tools.monotonic()))
        return None

    def forget(self) -> None:
        """Show that the query of a deleted topic is no longer parked."""
        if self.life.is_parked:
            self._tools.show(self.query.name, None)

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the fallback; False if it still runs."""
        if self.life.phase is Phase.FALLBACK_RUNS:
            self._fallback.join(timeout_s)
            return not self._fallback.is_alive()
        return True

    def _check_stream(self) -> None:
        if not self.stream.isActive:
            self._failure = self.stream.exception() or RuntimeError("it ended without an exception")
            self._end()
            return
        if self.life.has_to_prove and self.stream.lastProgress is not None:
            self._happened(BatchCommitted())
        if self._tools.rules.has_fallback:  # our own source waits for messages while it plans
            is_planning = str(self.stream.status["message"]).startswith(_PLANNING)
            self._happened(Planning(self._tools.monotonic(), is_planning))

    def _end(self) -> None:
        if not self._is_gone():
            # the failure is text that a sender may have influenced, so it never stops the service; for a SafetyError,
            # deletion.gate.Outages has stopped the service already
            is_held = self.life.phase is not Phase.STOPS and is_busy(str(self._failure))
            self._happened(Ended(self._tools.monotonic(), is_held))

    def _check_fallback(self) -> Exception | None:
        if self._fallback.is_alive():
            return None
        now_s, result = self._tools.monotonic(), self._result
        # any other failure, such as a fault of the checkpoint, concerns this query alone
        if isinstance(result, FencedError):
            return result
        if isinstance(result, FallbackResult):
            self.reached = result.reached
            self._happened(FallbackReturned(now_s, result.has_news, result.may_start))
        elif isinstance(result, StopRequestedError):
            self._happened(FallbackStopped())
            return None
        else:
            self.why = error_of(self.query.name, result)
            self._happened(FallbackFailed(now_s, isinstance(self.why, UnavailableError)))
        self._happened(Checked(self._tools.monotonic()))
        return None

    def _happened(self, event: Event) -> None:
        self.life, action = apply(self.life, event, self._tools.rules)
        if action is not Action.NOTHING:
            _DO[action](self)

    def _start(self) -> None:
        self._tools.restart(self.query.name)
        try:
            self.stream = self._tools.start(self.query)
        except Exception as error:
            self._failure = error
            self._happened(StartFailed(self._tools.monotonic()))

    def _ask_broker(self) -> None:
        """Ask for the last message of each partition. A broker that does not answer at all changes nothing."""
        with contextlib.suppress(ReaperError):
            for topic in self.query.topics:
                for number in range(self._tools.admin.partitions(topic) or 0):
                    if not self._tools.reports_last_message(partition := f"{topic}-partition-{number}"):
                        why = f"no batch can be planned: the broker does not return the last message of {partition}"
                        self._failure = ReaperError(why)
                        self._happened(CannotPlan())
                        return

    def _stop(self) -> None:
        self._stopping = threading.Thread(target=stop_stream, args=(self.stream,), name="stop-query", daemon=True)
        self._stopping.start()

    def _start_fallback(self) -> None:
        self._result = _NO_RESULT
        self._fallback = threading.Thread(target=self._run_fallback, name=f"fallback-{self.query.name}", daemon=True)
        self._fallback.start()

    def _run_fallback(self) -> None:
        try:
            self._result = self._tools.fallback(self.query)
        except Exception as error:
            self._result = error

    def _report_holder(self) -> None:
        held = f"its subscription {self._tools.subscription} is held, perhaps by a run that was killed"
        message = f"is waited for, {PATIENCE_SECONDS} s at most: {held}"
        self._log(self.query.topics[0], message, level=logging.WARNING)

    def _report_fallback(self) -> None:
        log.error("%s: the fallback failed too: %s", self.query.topics[0], self._reason())
        self._show()

    def _park_as_failed(self) -> None:
        self._park(error_of(self.query.name, self._failure))

    def _park_as_held(self) -> None:
        self._park(self._held_too_long())

    def _park(self, why: ReaperError) -> None:
        if self.why is None:
            self._parked_since_ms = self._tools.now_ms()
        self.why = why
        # a warning: it mostly recovers at once, through the fallback or its next start; an error is logged if not
        message = f"is parked, and the other topics continue. Its query failed: {self._reason()}"
        fails_again = self.life.failures > 1 and not self._tools.rules.has_fallback
        self._log(self.query.topics[0], message, level=logging.ERROR if fails_again else logging.WARNING)
        self._tools.slow_down(self.query.name)
        self._tools.close_client(self.query.name)
        self._show()

    def _recover(self) -> None:
        if self.why is not None:
            self._tools.show(self.query.name, None)
        self.why, self.reached = None, {}
        self._log(self.query.topics[0], "is read again", level=logging.INFO)

    def _show(self) -> None:
        parked = ParkedQuery(
            topic=self.query.topics[0],
            why=self._reason(),
            since_ms=self._parked_since_ms,
            failures=self.life.failures,
            is_read=self.life.is_read,
        )
        self._tools.show(self.query.name, parked)

    def _reason(self) -> str:
        return "" if self.why is None else one_line(self.why)

    def _held_too_long(self) -> BusyError:
        return BusyError(
            f"{self.query.topics[0]}: subscription {self._tools.subscription} has been held by another client for "
            f"{PATIENCE_SECONDS} s: that client moves its cursor again and again (reset-cursor, seek), or a broker "
            "hangs while it does so. The subscription must be this service's alone; the topic's stats name its "
            "consumers (bin/pulsar-admin "
            f"topics stats). Pulsar's answer: {str(self._failure)[:500]}"
        )


_DO: Mapping[Action, Callable[[ManagedQuery], None]] = {
    Action.WAIT_FOR_HOLDER: ManagedQuery._report_holder,
    Action.START: ManagedQuery._start,
    Action.ASK_BROKER: ManagedQuery._ask_broker,
    Action.STOP: ManagedQuery._stop,
    Action.PARK: ManagedQuery._park_as_failed,
    Action.PARK_AS_HELD: ManagedQuery._park_as_held,
    Action.RUN_FALLBACK: ManagedQuery._start_fallback,
    Action.SHOW: ManagedQuery._show,
    Action.REPORT_FALLBACK: ManagedQuery._report_fallback,
    Action.RECOVER: ManagedQuery._recover,
}


def stop_stream(stream: StreamingQuery) -> None:
    """Stop a stream, and wait for its thread. Ignores errors."""
    with contextlib.suppress(Exception):
        stream.stop()
