"""Reads the lanes: the doorbell tells which have messages, and these are processed in passes over many lanes.

1. A pass takes a few lanes, each tenant's first before any tenant's second, and of each a bounded number of messages.
   The messages get their receipts, and only then the lanes' cursors move (doorbell.settle, progress.py).
2. A lane that a pass could not read in time, or not completely, is read apart from passes (slow.py), and so are its
   tenant's other lanes for a while. So it delays other tenants once.
3. ZooKeeper is asked once a minute which lanes exist. A new lane is watched, and one that is gone is forgotten.
"""

import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.beside import Beside, Work, logged
from streaming.deletion.lanes.progress import LaneProgress
from streaming.deletion.lanes.slow import MOST_FAILURES, SLOW_LANES, SlowLanes
from streaming.deletion.lanes.waiting_lanes import WaitingLanes
from streaming.errors import ReaperError, StopRequestedError
from streaming.ports import TopicAdmin
from streaming.prometheus import table
from streaming.queries.delivery.completion import Read
from streaming.queries.delivery.lane_reads import LATE, LanesRead
from streaming.spark.java_errors import error_of, one_line
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.terminal import count_of
from streaming.topics.existing import partitions_of
from udfs.backoff import Backoff
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.paths import base_topic, tenant_of
from udfs.requests.lanes import ALL_LANES

log = logging.getLogger("ledger-reaper")

LANES = "lanes"  # the name of the query
_RING_S = 0.5  # the longest wait for a ring
_LIST_S, _COUNT_S = 60.0, 5.0
_FRESH_S = 10.0
_PAUSE_S, _SLOW_PAUSE_S = 0.01, 0.2  # between two passes
_MOST_LANES = 64  # of a pass
_MOST_MESSAGES = 500  # of a pass, shared by its lanes; the lanes that ring during a pass wait for its end
_LEAST_MESSAGES = 50  # of a lane in a pass
_MOST_BYTES = 4 * 1024 * 1024  # of a lane in a pass, as stored
_RANGES_AT_ONCE = 8
_RANGES_S = 2.0  # for the positions of all lanes of a pass
_PAUSES = Backoff((0, 1, 5, 10, 30, 60))  # after rings without a message
_EMPTY_RINGS = 3
_STALL_TENANTS = 4  # if lanes of so many tenants are late at once, the broker or this machine stalls
_MOST_STALLS = 3  # in passes one after the other; after that, late lanes are slow
_SHOWN = 5  # lanes that are named where lanes are not read
_SUBSCRIBE_S = 2.0  # of each _COUNT_S, for subscriptions
_SUBSCRIBE_PAUSE_S = 60.0  # between two tries for a topic
_GIVE_WAY_S = 2.0  # the longest wait of a slow lane's chunk for passes
_PARKED_S = 60.0  # a shorter fault, such as a move of a topic, is not shown


class ReadLanes(Protocol):
    """Reads the next entries of lanes: queries.delivery.lane_reads.LaneRows."""

    def __call__(self, query: str, spans: Mapping[str, Sequence[EntrySpan]], most_messages: int, /) -> LanesRead:
        """Return the rows, and how far each lane was read."""
        ...


def _new_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_RANGES_AT_ONCE, thread_name_prefix="lane-ranges")


@dataclass(slots=True, kw_only=True)
class LaneReader:
    """One per service. Three threads list the lanes, process passes, and read slow lanes."""

    existing: Callable[[], tuple[Mapping[str, int], Mapping[str, str]]]  # lanes.owned.OwnedLanes
    admin: TopicAdmin
    progress: LaneProgress
    bell: Doorbell
    read: ReadLanes
    read_one: Read
    last_message: Callable[[str], Position | None]  # as in SlowLanes
    show: Callable[[str, ParkedQuery | None], None]  # supervision.board.Board.show
    monotonic: Callable[[], float] = time.monotonic
    _lanes: dict[str, int] = field(default_factory=dict)  # partition -> rings without a message, in a row
    _refused: Mapping[str, str] = field(default_factory=dict)
    _waiting: WaitingLanes = field(default_factory=WaitingLanes)
    _in_work: set[str] = field(default_factory=set)
    _halves: deque[list[str]] = field(default_factory=deque)  # of passes that failed
    _to_settle: list[tuple[float, str, Position | None]] = field(default_factory=list)  # a heap
    _slow: SlowLanes = field(init=False)
    _listed_s: float = float("-inf")
    _is_listed: bool = False
    _subscribed_s: dict[str, float] = field(default_factory=dict)  # by topic without a subscription: the last try
    _stalls: int = 0
    _logged: tuple[str, float] = ("", 0.0)  # the last failure that was logged, and when
    _parked_since_ms: int | None = None  # None: all lanes are read
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Condition = field(init=False)  # a pass
    _besides: list[Beside] = field(init=False)
    _threads: ThreadPoolExecutor = field(default_factory=_new_threads)

    def __post_init__(self) -> None:
        """Create the threads, which start() starts."""
        self._is_over = threading.Condition(self._guard)
        self._slow = SlowLanes(
            progress=self.progress,
            admin=self.admin,
            read=self.read_one,
            last_message=self.last_message,
            settle=self._settle,
            exists=lambda partition: partition in self._lanes,
            monotonic=self.monotonic,
        )
        self._besides = [
            Beside(Work(name="lane-list", run=self.look_after, every_s=_COUNT_S, on_failure=logged("lanes", _LIST_S))),
            Beside(Work(name=LANES, run=self.run_pass, every_s=_PAUSE_S, on_failure=self._failed)),
            Beside(Work(name=SLOW_LANES, run=self.read_slowly, every_s=_SLOW_PAUSE_S, on_failure=self._failed)),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._besides:
            thread.start()

    def stop(self) -> None:
        """Let no further pass start."""
        for thread in self._besides:
            thread.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait until no pass is under way, and close the connections; False if one still is."""
        until_s = time.monotonic() + timeout_s
        are_over = [thread.join(max(0.0, until_s - time.monotonic())) for thread in self._besides]
        self.bell.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return all(are_over)

    @property
    def is_quiet(self) -> bool:
        """Whether all lanes are watched, and none has a message that is not processed; given-up lanes are left out.

        A list that is older than _FRESH_S is read again first, because new lanes may have requests.
        """
        with self._guard:
            if self.monotonic() - self._listed_s > _FRESH_S:
                self._listed_s, self._is_listed = float("-inf"), False
            given_up = self.given_up
            slow = len(self._slow) - len(self._slow.given_up)
            if not self._is_listed or self._in_work or self._halves or len(self._waiting) or slow > 0:
                return False
            missing = {name for name, fault in self.bell.faults.items() if fault.is_missing}  # no message waits there
            # these ring again and again, although their broker stores no unread message
            empty = {name for _due_s, name, _upto in self._to_settle if self._lanes.get(name, 0) >= _EMPTY_RINGS}
            return self.bell.listening + len(missing | empty | given_up.keys()) >= len(self._lanes)

    @property
    def given_up(self) -> dict[str, str]:
        """Return by partition why it could not be watched or read, if that was tried often."""
        faults = self.bell.faults.items()
        return self._slow.given_up | {
            partition: fault.why
            for partition, fault in faults
            if fault.failures > MOST_FAILURES and not fault.is_missing
        }

    @property
    def waiting(self) -> dict[str, Position]:
        """Return the partitions that have rung and are not read yet, each with the position this run has reached."""
        with self._guard:
            waiting = {*self._waiting} | self._in_work
        return {partition: self.progress.reached(partition) for partition in waiting | self._slow.waiting}

    def look_after(self) -> None:
        """List the lanes if that is due, subscribe, and count them for the metrics. Raises what list_lanes does."""
        try:
            if self.monotonic() - self._listed_s >= _LIST_S:
                self.list_lanes()
            self._subscribe()
        finally:
            counts = {"listening": self.bell.listening, "slow": len(self._slow)}
            with self._guard:
                counts["waiting"] = len(self._waiting) + len(self._in_work)
                rest = max(len(self._lanes) - sum(counts.values()), 0)
            for state, count in (counts | {"not_watched": rest}).items():
                self.progress.service.outages.metrics.registry.set(table.LANES, count, state)

    def list_lanes(self) -> None:
        """Watch new lanes, forget those that are gone, and show those that are not read. Raises UnavailableError."""
        self._listed_s = self.monotonic()
        self.progress.recall()
        lanes, self._refused = self.existing()
        partitions = {*partitions_of(lanes)}
        self.progress.resume(partitions - self._lanes.keys())
        with self._guard:
            gone = self._lanes.keys() - partitions
            waiting = gone & ({*self._waiting} | self._slow.waiting)
            lost = sorted(partition for partition in waiting if base_topic(partition) not in self._refused)
            new = WaitingLanes()
            for partition in sorted(partitions - self._lanes.keys()):
                new.add(partition)
            ordered = new.take(len(new))
            for partition in gone:
                del self._lanes[partition]
                self._waiting.discard(partition)
            if gone:  # created again, a lane may wait for its slow reader, and must not ring before that
                self._to_settle = [each for each in self._to_settle if each[1] not in gone]
                heapq.heapify(self._to_settle)
            self._lanes |= dict.fromkeys(ordered, 0)
        for partition in gone:
            self._slow.forget(partition)
            self.bell.forget(partition)
        for partition in ordered:
            self.bell.watch(partition)
        if lost:  # the accounts do not know a lane before their first check
            lanes_were = count_of(len(lost), "partition of a lane was", "partitions of lanes were")
            log.error("%s deleted with unread messages, which are lost: %s", lanes_were, ", ".join(lost[:_SHOWN]))
        self._is_listed = True
        self._show()

    def _subscribe(self) -> None:
        """Create the subscriptions that brokers do not create for a consumer (allowAutoSubscriptionCreation)."""
        now_s = self.monotonic()
        self._subscribed_s = {
            topic: at_s for topic, at_s in self._subscribed_s.items() if now_s - at_s < _SUBSCRIBE_PAUSE_S
        }
        waiting = WaitingLanes()
        for topic in dict.fromkeys(
            base_topic(name) for name, fault in self.bell.faults.items() if fault.has_no_subscription
        ):
            if topic not in self._subscribed_s:
                waiting.add(topic)
        failed = {}
        # a broker that hangs, or a tenant with ten thousand topics, must not delay the list for long
        while self.monotonic() - now_s < _SUBSCRIBE_S and (taken := waiting.take(1)):
            (topic,) = taken
            self._subscribed_s[topic] = self.monotonic()
            try:
                self.admin.ensure_subscription(topic, self.progress.subscription)
            except ReaperError as error:
                failed[topic] = error
        for topic, why in islice(failed.items(), 1):
            topics = count_of(len(failed), "topic", "topics")
            log.warning("no subscription on %s, tried again in a minute: %s: %s", topics, topic, why)

    def read_slowly(self) -> None:
        """Process the next entries of a slow lane. Raises StopRequestedError."""
        self.progress.service.gate.check_stop()
        self._slow.read_next()

    def let_passes_go_first(self) -> None:
        """Wait until passes have read all lanes that have rung, but not for long; before a chunk of a slow lane."""
        # a request that rings during a pass would otherwise wait for that pass, for such a chunk, and for its own pass
        with self._is_over:
            self._is_over.wait_for(
                lambda: not (self.bell.has_rung or self._in_work or len(self._waiting)), timeout=_GIVE_WAY_S
            )

    def run_pass(self) -> None:
        """Wait shortly for a ring, and process the next lanes that have rung. Raises what the service's take does."""
        self.progress.service.gate.check_stop()
        self._settle_due()
        taken = self._next_lanes()
        try:
            if taken:
                stalls = self._stalls
                self._pass(taken)
                if self._stalls == stalls:
                    self._stalls = 0
        except StopRequestedError:
            raise
        except Exception as error:
            # which lane made the pass fail is not known: the lanes are halved until it is found
            with self._guard:
                half = len(taken) // 2
                self._halves.extend(each for each in (taken[:half], taken[half:]) if half)
            if len(taken) == 1:
                self._slow.add(taken[0], one_line(error_of(LANES, error)))
            raise
        finally:
            with self._is_over:
                self._in_work -= {*taken}
                self._is_over.notify_all()

    def _next_lanes(self) -> list[str]:
        rung = self.bell.rung(0.0 if len(self._waiting) or self._halves else _RING_S)
        with self._guard:
            for partition in rung:
                if self._slow.is_slow(partition):
                    self._slow.add(partition)
                else:
                    self._waiting.add(partition)
            candidates = self._halves.popleft() if self._halves else self._waiting.take(_MOST_LANES)
            taken = []
            for partition in candidates:
                # since it has rung; or its turn's end let it ring although it has more; or it was created again
                if self._slow.is_slow(partition) or self._slow.has(partition):
                    self._slow.add(partition)
                elif partition in self._lanes:
                    taken.append(partition)
            self._in_work |= {*taken}
            return taken

    def _pass(self, taken: Sequence[str]) -> None:
        spans = self._planned(taken)
        if not spans:
            return
        service, number = self.progress.service, self.progress.next_batch()
        service.describe(LANES, number, f"reading {len(spans)} lanes")
        read = self.read(LANES, spans, max(_LEAST_MESSAGES, _MOST_MESSAGES // len(spans)))
        try:
            self.progress.take(LANES, read.rows, number, spans, read.extent)
        finally:
            read.unpersist()
        if empty := {partition: end.empty for partition, end in read.ends.items() if end.empty}:
            service.note(empty)
        self.progress.reach({name: end.upto for name, end in read.ends.items()})
        late = {partition for partition, end in read.ends.items() if end.fault == LATE}
        again = late if self._is_stall(late) else set()
        with self._guard:
            for partition in again:
                self._waiting.add(partition)
        for partition, end in read.ends.items():
            if partition in again:
                continue
            if end.fault:
                self._slow.add(partition, end.fault)
            else:
                self._settle(partition, end.upto, True)

    def _is_stall(self, late: Collection[str]) -> bool:
        """Whether these lanes were late because of the broker or this machine, so that none of them is slow."""
        is_stall = len({tenant_of(partition) for partition in late}) >= _STALL_TENANTS and self._stalls < _MOST_STALLS
        self._stalls += is_stall
        return is_stall

    def _planned(self, taken: Sequence[str]) -> dict[str, list[EntrySpan]]:
        """Return the next entries of each lane. A lane whose broker does not answer in time is slow."""
        asked: dict[Future[InternalStats], str] = {
            self._threads.submit(self.admin.internal_stats, partition): partition for partition in taken
        }
        answered, late = wait(asked, _RANGES_S)
        hang = [asked[future] for future in late if not future.cancel()]
        again = {*hang} if self._is_stall(hang) else set()
        for partition in hang:
            if partition not in again:
                self._slow.add(partition, f"its broker did not return its positions within {_RANGES_S:.0f} s")
        if hang:  # their threads may hang for longer, and must not delay the next pass
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = _new_threads()
        with self._guard:
            for partition in {asked[future] for future in late} - {*hang} | again:
                self._waiting.add(partition)
        planned = {}
        for future in answered:
            partition = asked[future]
            try:
                stats = future.result()
            except ReaperError as error:
                self._slow.add(partition, str(error))
                continue
            if spans := self.progress.next_entries(partition, stats, _MOST_BYTES):
                planned[partition] = spans
            else:
                self._settle(partition, self.progress.after(partition, stats), False)
        return planned

    def _settle(self, partition: str, upto: Position | None, had_messages: bool) -> None:
        """Acknowledge a lane up to a position, and let it ring again; later if it rang without a message."""
        upto = None if upto == BEFORE_ALL else upto
        with self._guard:
            empty = 0 if had_messages else self._lanes.get(partition, 0) + 1
            if partition in self._lanes:
                self._lanes[partition] = empty
            pause_s = _PAUSES.pause_s(empty) if empty else 0.0
            if pause_s:  # otherwise it would ring at once again and again
                heapq.heappush(self._to_settle, (self.monotonic() + pause_s, partition, upto))
                return
        self.bell.settle(partition, upto)

    def _settle_due(self) -> None:
        with self._guard:
            due = []
            while self._to_settle and self._to_settle[0][0] <= self.monotonic():
                due.append(heapq.heappop(self._to_settle))
        for _due_s, partition, upto in due:
            self.bell.settle(partition, upto)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, StopRequestedError):
            return
        why, now_s = one_line(error_of(LANES, error)), self.monotonic()
        # a pass that fails is repeated at once, lane by lane in the end
        if why != self._logged[0] or now_s - self._logged[1] >= _LIST_S:
            log.error("lanes: %s", why)
            self._logged = why, now_s

    def unread(self) -> dict[str, str]:
        """Return by topic or partition why lanes are not read, if they have not been for a while."""
        since_s = self.monotonic() - _PARKED_S
        faults = self.bell.faults.items()
        watched = {partition: fault.why for partition, fault in faults if fault.since_s <= since_s}
        return {**self._refused, **watched, **self._slow.unread(since_s)}

    def _show(self) -> None:
        """Show the lanes that are not read as one parked query: a tenant may have any number of them."""
        unread = self.unread()
        if not unread:
            if self._parked_since_ms is not None:
                self.show(LANES, None)
            self._parked_since_ms = None
            return
        if self._parked_since_ms is None:
            self._parked_since_ms = self.progress.clock.now_ms()
        named = "; ".join(f"{base_topic(name)}: {why}" for name, why in sorted(unread.items())[:_SHOWN])
        more = f"; and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else ""
        parked = ParkedQuery(
            topic=ALL_LANES,
            why=f"{count_of(len(unread), 'lane', 'lanes')}: {named}{more}",
            since_ms=self._parked_since_ms,
            is_read=True,  # the service does its job for the other lanes
        )
        self.show(LANES, parked)
