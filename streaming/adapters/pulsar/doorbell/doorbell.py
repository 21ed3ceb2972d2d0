"""Tells soon which partitions have new messages, without asking for each partition all the time.

A partition that is watched has two consumers on a connection to its broker:

1. The guard holds the durable subscription exclusively, and acknowledges what was processed. It permits no message,
   because a broker that sends messages to a durable subscription acknowledges damaged ones by itself.
2. The bell, a consumer without a durable position, permits one message after the newest. If the broker sends it, the
   partition rings; the message itself is dropped. settle() opens the next bell.

When a bell was opened, the guard's backlog is read, so that no message between two bells is missed, and from then on
once a minute, because brokers send no damaged message, and none after the start of an open transaction. A bell that
listen() opens starts at its position instead. If a broker closes a consumer (the topic is moved, its subscription is
reset) or the connection breaks, both consumers are opened again after a pause. A partition that can't be watched costs
the others nothing; `faults` names the reason.
"""

import heapq
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streaming.adapters.pulsar.doorbell.line import Line
from streaming.adapters.pulsar.readers.frames import (
    ACK,
    CLOSE_CONSUMER,
    CONSUMER_STATS,
    FLOW,
    LOOKUP,
    LOOKUP_FAILED,
    LOOKUP_REDIRECT,
    MESSAGE,
    SUBSCRIBE,
    NoSubscriptionError,
    NoTopicError,
    address_in,
    message_id,
    refusal,
)
from streaming.config.sections import PulsarSettings
from streaming.errors import ReaperError, UnavailableError
from udfs.backoff import Backoff
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import encode_name
from udfs.proto import pulsar_api_pb2 as api

_BELL = "-doorbell"  # suffix of the subscription that a topic's stats show while a bell is open
_EXCLUSIVE = 0
_EARLIEST = 1
_CUMULATIVE = 1
_LATEST: Position = ((1 << 63) - 1, (1 << 63) - 1)
_REDIRECTS = 5
_TICK_S = 0.2
# a tenant may close our consumers again and again (reset-cursor, unload)
_PAUSES = Backoff((1, 2, 5, 10, 30, 60))
_BACKLOG_S = 60.0  # between two reads of the backlog, while a bell is open
_STEADY_S = 60.0  # a partition that was watched for so long has no failures any more
_LEAVE_S = 2.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a partition is not watched."""

    why: str
    failures: int  # tries in a row
    since_s: float  # the first of them, in monotonic time
    is_missing: bool  # the partition does not exist
    has_no_subscription: bool = False  # it has to be created by the admin API


@dataclass(slots=True, eq=False)
class _Watched:
    """A partition that is watched."""

    partition: str
    line: Line | None = None  # to its broker, or to a broker that looks it up; None: it waits for its next try
    try_number: int = 0  # answers to earlier tries are dropped
    guard: int = 0  # consumer ids; 0: none is open
    bell: int = 0
    is_guarded: bool = False  # the broker has accepted the guard
    failures: int = 0
    since_s: float | None = None  # since when it is watched completely, without a failure
    is_listening: bool = False  # its bell is open, and it had no unacknowledged message then
    is_settled: bool = True  # False: it rang, and settle() was not called yet
    processed: Position | None = None  # up to which all messages are to be acknowledged
    after: Position | None = None  # the bell rings for entries after it; None: for unacknowledged messages


@dataclass(slots=True)
class Doorbell:
    """Watches partitions. Thread-safe; the caller calls close(). Without a subscription (""), only listen() works."""

    settings: PulsarSettings
    subscription: str
    monotonic: Callable[[], float] = time.monotonic
    _watched: dict[str, _Watched] = field(default_factory=dict)
    _lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    _consumers: dict[tuple[Line, int], _Watched] = field(default_factory=dict)
    _name: str = field(default_factory=lambda: f"ledger-reaper-{uuid.uuid4().hex[:10]}")  # if there is no subscription
    _ids: int = 0
    _tries: int = 0  # of all partitions: one that is forgotten and watched again must not get an earlier number
    _due: list[tuple[float, str, int]] = field(default_factory=list)  # heap of (time, partition, number of its try)
    _rung: dict[str, None] = field(default_factory=dict)
    _faults: dict[str, Fault] = field(default_factory=dict)
    _change: threading.Condition = field(default_factory=threading.Condition)
    _closed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def faults(self) -> Mapping[str, Fault]:
        """Return by partition why it is not watched now, if a try has failed."""
        with self._change:
            return dict(self._faults)

    @property
    def listening(self) -> int:
        """Return how many partitions have no unacknowledged message, and would ring if they got one."""
        with self._change:
            return sum(each.is_listening for each in self._watched.values())

    @property
    def not_listening(self) -> list[str]:
        """Return the other partitions: they have unacknowledged messages, or it is not known whether they have."""
        with self._change:
            return [partition for partition, each in self._watched.items() if not each.is_listening]

    def watch(self, partition: str) -> None:
        """Watch a partition (full name). It rings soon if it has unacknowledged messages, and whenever it gets one."""
        with self._change:
            self._watch(partition)

    def listen(self, partition: str, after: Position) -> None:
        """Have a partition ring once when a reader gets an entry after this position; it may also ring without one."""
        with self._change:
            watched = self._watch(partition)
            watched.after, watched.is_settled = after, True
            if watched.line is not None and watched.is_guarded and not watched.bell:
                self._open_bell(watched, watched.line)

    def acknowledge(self, partition: str, upto: Position) -> None:
        """Acknowledge all messages up to a position, as soon as the partition's broker accepts the guard."""
        with self._change:
            is_new = partition not in self._watched
            watched = self._watch(partition)
            watched.processed = upto
            if is_new:
                watched.is_settled = False  # listen() opens its bell
            elif watched.line is not None and watched.is_guarded:
                self._acknowledge(watched, watched.line)

    def forget(self, partition: str) -> None:
        """Watch a partition no longer."""
        with self._change:
            if watched := self._watched.pop(partition, None):
                self._leave(watched)
            self._rung.pop(partition, None)
            self._faults.pop(partition, None)

    def rung(self, timeout_s: float) -> list[str]:
        """Wait until a partition rings, and return those that have rung since the last call; each needs settle()."""
        with self._change:
            self._change.wait_for(lambda: self._rung or self._closed.is_set(), timeout_s)
            rung, self._rung = list(self._rung), {}
            return rung

    @property
    def has_rung(self) -> bool:
        """Whether partitions have rung since the last call of rung()."""
        with self._change:
            return bool(self._rung)

    def settle(self, partition: str, processed: Position | None) -> None:
        """Acknowledge all messages up to a position (None: nothing), and let the partition ring again."""
        with self._change:
            watched = self._watched.get(partition)
            if watched is None:
                return
            watched.is_settled = True
            if processed is not None:
                watched.processed = processed
            if watched.line is not None and watched.is_guarded and not watched.bell:
                self._open_bell(watched, watched.line)

    def close(self) -> None:
        """Close all connections; nothing rings any more."""
        self._closed.set()
        with self._change:
            lines = list(self._lines.values())
            self._change.notify_all()
        for line in lines:
            line.close()
        for line in lines:
            line.join(_LEAVE_S)

    def _watch(self, partition: str) -> _Watched:
        watched = self._watched.get(partition)
        if watched is None:
            watched = self._watched[partition] = _Watched(partition)
            self._try_at(watched, self.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="doorbell", daemon=True)
            self._thread.start()
        return watched

    def _run(self) -> None:
        while not self._closed.wait(_TICK_S):
            self._do_due()

    def _do_due(self) -> None:
        with self._change:
            while self._due and self._due[0][0] <= self.monotonic():
                _due_s, partition, number = heapq.heappop(self._due)
                watched = self._watched.get(partition)
                if watched is None or watched.try_number != number:
                    continue
                if watched.is_listening and watched.line is not None:
                    self._read_backlog(watched, watched.line)
                else:
                    self._look_up(watched, (self.settings.service_url, ""), is_authoritative=False, hops=0)

    def _try_at(self, watched: _Watched, due_s: float) -> None:
        self._end_try(watched)
        heapq.heappush(self._due, (due_s, watched.partition, watched.try_number))

    def _end_try(self, watched: _Watched) -> None:
        self._tries += 1
        watched.try_number = self._tries

    def _look_up(self, watched: _Watched, address: tuple[str, str], *, is_authoritative: bool, hops: int) -> None:
        line = watched.line = self._line(address)

        def command(number: int) -> api.BaseCommand:
            lookup = api.CommandLookupTopic(topic=watched.partition, request_id=number, authoritative=is_authoritative)
            return api.BaseCommand(type=LOOKUP, lookup_topic=lookup)

        def answered(answer: api.BaseCommand) -> None:
            found = answer.lookup_topic_response
            if found.response == LOOKUP_FAILED:
                self._fail(watched, refusal(f"no broker serves {watched.partition}", found.error, found.message))
                return
            address = address_in(self.settings, found)
            if found.response != LOOKUP_REDIRECT:
                self._attach(watched, address)
            elif hops < _REDIRECTS:
                self._look_up(watched, address, is_authoritative=found.authoritative, hops=hops + 1)
            else:
                self._fail(watched, UnavailableError(f"the lookup of {watched.partition} is redirected too often"))

        self._request(watched, line, command, answered)

    def _attach(self, watched: _Watched, address: tuple[str, str]) -> None:
        line = watched.line = self._line(address)
        if not self.subscription:
            watched.is_guarded = True
            self._open_bell(watched, line)
            return
        watched.guard = self._new_consumer(watched, line)
        subscribe = api.CommandSubscribe(
            topic=watched.partition,
            subscription=self.subscription,
            sub_type=_EXCLUSIVE,
            consumer_id=watched.guard,
            durable=True,
            initial_position=_EARLIEST,  # if a tenant has deleted the subscription
            force_topic_creation=False,  # a lane is created by the sender of its first request
        )

        def answered(_answer: api.BaseCommand) -> None:
            watched.is_guarded = True
            self._open_bell(watched, line)

        self._request(watched, line, _subscribing(subscribe), answered)

    def _acknowledge(self, watched: _Watched, line: Line) -> None:
        if watched.processed is not None:
            ack = api.CommandAck(
                consumer_id=watched.guard, ack_type=_CUMULATIVE, message_id=[message_id(watched.processed)]
            )
            line.send(api.BaseCommand(type=ACK, ack=ack))

    def _open_bell(self, watched: _Watched, line: Line) -> None:
        self._acknowledge(watched, line)
        if not watched.is_settled:  # settle() opens the bell
            self._faults.pop(watched.partition, None)
            return
        watched.bell = self._new_consumer(watched, line)
        subscribe = api.CommandSubscribe(
            topic=watched.partition,
            # Encoded: brokers decode the names of such consumers for internalStats, and answer 500 if they can't.
            subscription=f"{encode_name(self.subscription or self._name)}{_BELL}",
            sub_type=_EXCLUSIVE,
            consumer_id=watched.bell,
            durable=False,
            start_message_id=message_id(_first_after(watched.after)),
            force_topic_creation=False,
        )
        self._request(watched, line, _subscribing(subscribe), lambda _answer: self._listen(watched, line))

    def _listen(self, watched: _Watched, line: Line) -> None:
        line.send(api.BaseCommand(type=FLOW, flow=api.CommandFlow(consumer_id=watched.bell, message_permits=1)))
        if watched.after is not None:
            self._listening(watched)
        else:
            self._read_backlog(watched, line)

    def _read_backlog(self, watched: _Watched, line: Line) -> None:
        guard = watched.guard

        def command(number: int) -> api.BaseCommand:
            stats = api.CommandConsumerStats(request_id=number, consumer_id=guard)
            return api.BaseCommand(type=CONSUMER_STATS, consumer_stats=stats)

        def answered(answer: api.BaseCommand) -> None:
            stats = answer.consumer_stats_response
            if stats.HasField("error_code"):
                self._fail(
                    watched, refusal(f"no backlog of {watched.partition}", stats.error_code, stats.error_message)
                )
                return
            self._listening(watched)
            if stats.msg_backlog:
                self._ring(watched)
            else:
                self._try_at(watched, self.monotonic() + _BACKLOG_S)

        self._request(watched, line, command, answered)

    def _listening(self, watched: _Watched) -> None:
        self._faults.pop(watched.partition, None)
        if watched.since_s is None:
            watched.since_s = self.monotonic()
        watched.is_listening = True

    def _ring(self, watched: _Watched) -> None:
        if watched.is_settled:
            watched.is_settled = False
            self._end_try(watched)  # the answer about the backlog, if it is still to come, is about this ring
            self._close_consumer(watched.line, watched.bell)
            watched.bell, watched.is_listening = 0, False
            self._rung[watched.partition] = None
            self._change.notify_all()

    def _request(
        self,
        watched: _Watched,
        line: Line,
        command: Callable[[int], api.BaseCommand],
        answered: Callable[[api.BaseCommand], None],
    ) -> None:
        number = watched.try_number

        def is_needed() -> bool:
            return self._watched.get(watched.partition) is watched and watched.try_number == number

        def checked(answer: api.BaseCommand | ReaperError) -> None:
            with self._change:
                if not is_needed():
                    return
                if isinstance(answer, ReaperError):
                    self._fail(watched, answer)
                else:
                    answered(answer)

        # Look-ups come last, so that few of ten thousand partitions are loaded at once, and the first ring early. A
        # subscribe must not follow the close of its consumer, which would leave the consumer open.
        is_first = bool(watched.guard)
        line.request(lambda request_id: command(request_id) if is_needed() else None, checked, is_first=is_first)

    def _fail(self, watched: _Watched, why: ReaperError) -> None:
        """Close the partition's consumers, and try again after a pause."""
        self._leave(watched)
        now_s = self.monotonic()
        if watched.since_s is not None and now_s - watched.since_s >= _STEADY_S:
            watched.failures = 0
        watched.failures += 1
        watched.since_s = None
        earlier = self._faults.get(watched.partition)
        since_s = now_s if earlier is None else earlier.since_s
        is_missing, has_no_subscription = isinstance(why, NoTopicError), isinstance(why, NoSubscriptionError)
        self._faults[watched.partition] = Fault(str(why), watched.failures, since_s, is_missing, has_no_subscription)
        self._try_at(watched, now_s + _PAUSES.pause_s(watched.failures))

    def _leave(self, watched: _Watched) -> None:
        for consumer in (watched.bell, watched.guard):
            # also a consumer whose subscribe got no answer: the broker may open it later
            self._close_consumer(watched.line, consumer)
        watched.line, watched.guard, watched.bell = None, 0, 0
        watched.is_guarded = watched.is_listening = False

    def _new_consumer(self, watched: _Watched, line: Line) -> int:
        self._ids += 1
        self._consumers[line, self._ids] = watched
        return self._ids

    def _close_consumer(self, line: Line | None, consumer: int) -> None:
        if line is not None and consumer:
            self._consumers.pop((line, consumer), None)
            # request id 0: the answer is dropped
            close = api.CommandCloseConsumer(consumer_id=consumer, request_id=0)
            line.send(api.BaseCommand(type=CLOSE_CONSUMER, close_consumer=close))

    def _line(self, address: tuple[str, str]) -> Line:
        if address not in self._lines:

            def received(command: api.BaseCommand) -> None:
                self._received(line, command)

            def ended(why: ReaperError) -> None:
                self._ended(address, line, why)

            line = self._lines[address] = Line(self.settings, *address, received, ended)
            line.start()
        return self._lines[address]

    def _received(self, line: Line, command: api.BaseCommand) -> None:
        with self._change:
            if command.type == MESSAGE:
                watched = self._consumers.get((line, command.message.consumer_id))
                if watched is not None and watched.bell == command.message.consumer_id:
                    self._ring(watched)
            elif command.type == CLOSE_CONSUMER:
                watched = self._consumers.get((line, command.close_consumer.consumer_id))
                if watched is not None:
                    why = f"{watched.partition}: its broker closed our consumer: the topic was moved, reset or deleted"
                    self._fail(watched, UnavailableError(why))

    def _ended(self, address: tuple[str, str], line: Line, why: ReaperError) -> None:
        with self._change:
            if self._lines.get(address) is line:
                del self._lines[address]
            if not self._closed.is_set():
                for watched in [each for each in self._watched.values() if each.line is line]:
                    watched.line = None
                    self._fail(watched, why)
            for key in [key for key in self._consumers if key[0] is line]:
                del self._consumers[key]


def _first_after(after: Position | None) -> Position:
    """Return the position at which a bell starts. Brokers send a reader the entry at its position first."""
    if after is None:
        return _LATEST
    return after if after == BEFORE_ALL else (after[0], after[1] + 1)


def _subscribing(subscribe: api.CommandSubscribe) -> Callable[[int], api.BaseCommand]:
    def command(number: int) -> api.BaseCommand:
        subscribe.request_id = number
        return api.BaseCommand(type=SUBSCRIBE, subscribe=subscribe)

    return command
