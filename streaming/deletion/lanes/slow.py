"""Reads slow lanes as the fallback reads: without a limit of time, and whatever their messages are.

The tenants take turns. A turn takes a few lanes of one tenant, because most of the time is spent waiting for brokers.
If it fails, its lanes are read one by one. A lane that fails is tried again after a pause, and the other slow lanes
before it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from pyspark.sql import DataFrame

from streaming.deletion.lanes.progress import AFTER_ALL, LaneProgress
from streaming.deletion.lanes.waiting_lanes import WaitingLanes
from streaming.errors import StopRequestedError
from streaming.ports import TopicAdmin
from streaming.queries.delivery.completion import Read
from streaming.queries.delivery.withheld import Withheld
from streaming.spark.java_errors import error_of, one_line
from udfs.backoff import Backoff
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position
from udfs.paths import tenant_of

log = logging.getLogger("ledger-reaper")

SLOW_LANES = "slow-lanes"  # the name of the query
SLOW_S = 600.0  # how long a tenant's lanes are slow after one of them was
SLOW_CHUNK_ROWS = 250  # a slow lane may have a million messages, and passes wait for each of its chunks
_MOST_BYTES = 256 * 1024  # of a turn, as stored: it may compress well
# A turn may wait most of a minute for its broker, even with one message, and a single large message raises the average
# size of its ledger's entries. No entry is larger than the broker's maxMessageSize, by default 5 MB.
_LEAST_ENTRIES = 128  # of a turn; its lanes share them
_LANES_AT_ONCE = 4  # of a tenant in a turn; a task of the fallback reads as many partitions side by side
_PLANNING_S = 2.0  # after so long, a turn plans no further lane
_LONGEST_REST_S = 5.0
_OPEN_S, _OPEN_PAUSE_S = 60.0, 10.0  # how long the messages after an open transaction wait, and how often it is tried
_PAUSES = Backoff((1, 5, 10, 30, 60))
MOST_FAILURES = 4  # in a row; after more, `--until-idle` waits no longer for a lane


_Plan = tuple[InternalStats, Sequence[EntrySpan]]


@dataclass(slots=True)
class _SlowLane:
    due_s: float
    failures: int = 0
    why: str = ""  # why it failed last
    since_s: float = 0.0  # when it failed first
    is_alone: bool = False  # it has failed, or a turn with it and others has
    withheld: Withheld = field(default_factory=Withheld)


@dataclass(slots=True, kw_only=True)
class SlowLanes:
    """The slow lanes. One per service; one thread calls read_next(), any thread the rest."""

    progress: LaneProgress
    admin: TopicAdmin
    read: Read
    last_message: Callable[[str], Position | None]  # the last that the broker would send; None: it does not report it
    settle: Callable[
        [str, Position | None, bool], None
    ]  # acknowledges a lane up to here; bool: whether it had messages
    exists: Callable[[str], bool]  # whether a partition is still that of a lane
    monotonic: Callable[[], float] = time.monotonic
    _lanes: dict[str, _SlowLane] = field(default_factory=dict)
    _waiting: WaitingLanes = field(default_factory=WaitingLanes)
    _tenants: dict[str, float] = field(default_factory=dict)  # until when they are slow
    # partition -> the last message before a transaction, and when this transaction was found open
    _transactions: dict[str, tuple[Position, float]] = field(default_factory=dict)
    in_work: frozenset[str] = frozenset()  # the partitions that are being read
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        """Return how many partitions wait or are being read."""
        with self._guard:
            return len(self._waiting) + len(self.in_work)

    @property
    def waiting(self) -> set[str]:
        """Return the partitions that wait or are being read."""
        with self._guard:
            return {*self._waiting} | self.in_work

    def has(self, partition: str) -> bool:
        """Whether a partition waits for a turn or is being read."""
        with self._guard:
            return partition in self._waiting or partition in self.in_work

    def is_slow(self, partition: str) -> bool:
        """Whether the partition's tenant is slow now."""
        return self._tenants.get(tenant_of(partition), float("-inf")) > self.monotonic()

    def add(self, partition: str, why: str = "") -> None:
        """Let a partition be read; why: it was found slow, and so its tenant is."""
        with self._guard:
            now_s = self.monotonic()
            if why:
                log.info("%s is read apart from other tenants' lanes from now on: %s", partition, why)
                self._tenants = {tenant: until_s for tenant, until_s in self._tenants.items() if until_s > now_s}
                self._tenants[tenant_of(partition)] = now_s + SLOW_S
            self._lanes.setdefault(partition, _SlowLane(now_s))
            self._waiting.add(partition)

    def forget(self, partition: str) -> None:
        """Drop a partition that is gone."""
        with self._guard:
            self._waiting.discard(partition)
            self._lanes.pop(partition, None)
            self._transactions.pop(partition, None)

    @property
    def given_up(self) -> dict[str, str]:
        """Return by partition why it could not be read, if that was tried often."""
        with self._guard:
            return {name: lane.why for name, lane in self._lanes.items() if lane.failures > MOST_FAILURES}

    def unread(self, since_s: float) -> dict[str, str]:
        """Return by partition why lanes are not read, if they fail since this time or earlier."""
        with self._guard:
            return {name: lane.why for name, lane in self._lanes.items() if lane.why and lane.since_s <= since_s}

    def read_next(self) -> None:
        """Process the next entries of a tenant's lanes, if any is due; those that fail are tried again later."""
        started_s = self.monotonic()
        with self._next() as partitions:
            planned = {}
            for partition in partitions:
                if partition != partitions[0] and self.monotonic() - started_s >= _PLANNING_S:
                    with self._guard:  # its broker may be slow, and other tenants wait
                        self._put_back(partition)
                    continue
                with self._tried([partition]):
                    if plan := self._plan(partition, len(partitions)):
                        planned[partition] = plan
            if planned:
                with self._tried([*planned]):
                    self._process(planned)
        # slow lanes take half of the time at most, so that passes find free slots and the fair lock
        self.progress.service.gate.stop.wait(min(self.monotonic() - started_s, _LONGEST_REST_S))

    @contextmanager
    def _next(self) -> Iterator[Sequence[str]]:
        """Take the next lane that is due, and others of its tenant; none if none is due."""
        with self._guard:
            now_s = self.monotonic()
            # in their order, so that the tenants take turns
            candidates = []
            for partition in self._waiting.take(len(self._waiting)):
                if self.exists(partition):
                    candidates.append(partition)
                else:  # it was found slow while its lane was deleted
                    self._lanes.pop(partition, None)
            due = (each for each in candidates if self._lanes[each].due_s <= now_s)
            taken = [*islice(due, 1)]
            if taken and not self._lanes[taken[0]].is_alone:
                tenant = tenant_of(taken[0])
                others = (each for each in due if tenant_of(each) == tenant and not self._lanes[each].is_alone)
                taken += islice(others, _LANES_AT_ONCE - 1)
            self.in_work = frozenset(taken)
            for partition in candidates:
                if partition not in self.in_work:
                    self._waiting.add(partition)
            if taken:  # its tenant's other lanes come after those of other tenants
                self._waiting.move_to_end(tenant_of(taken[0]))
        try:
            yield taken
        finally:
            with self._guard:
                self.in_work = frozenset()

    @contextmanager
    def _tried(self, partitions: Sequence[str]) -> Iterator[None]:
        """Let lanes be tried again if the block fails: one later, several soon and one by one."""
        try:
            yield
        except StopRequestedError:
            raise
        except Exception as error:
            why = one_line(error_of(SLOW_LANES, error))
            if len(partitions) == 1:
                self._put_off(partitions[0], why)
                return
            log.warning("%s could not be read together, and are read one by one: %s", ", ".join(partitions), why)
            with self._guard:  # which of them made it fail is not known
                for partition in partitions:
                    if lane := self._put_back(partition):
                        lane.is_alone = True

    def _put_back(self, partition: str) -> _SlowLane | None:
        """Leave a lane of this turn to a later turn; None if it is gone. The caller has the guard."""
        self.in_work -= {partition}
        lane = self._lanes.get(partition)
        if lane is not None:
            self._waiting.add(partition)
        return lane

    def _plan(self, partition: str, lanes: int) -> _Plan | None:
        """Return the next entries of a lane; lanes: how many share the turn.

        Without any, the lane is acknowledged, or waits for the end of a transaction, and the result is None.
        """
        # in this order: a message that arrives in between must not look like one after an open transaction
        stats = self.admin.internal_stats(partition)
        last = self.last_message(partition)
        upto = self._end_after(partition, last)
        if spans := self.progress.next_entries(partition, stats, _MOST_BYTES // lanes, upto, _LEAST_ENTRIES // lanes):
            return stats, spans
        if last is not None and self.progress.has_entries(partition, stats):
            self._hold(partition, last)
        else:
            self._end(partition, stats, had_messages=False)
        return None

    def _process(self, planned: Mapping[str, _Plan]) -> None:
        spans = {partition: plan[1] for partition, plan in planned.items()}
        service, number = self.progress.service, self.progress.next_batch()
        service.slots.slow_down(SLOW_LANES)
        service.describe(SLOW_LANES, number, f"reading {', '.join(spans)}")
        rows = self._rows(spans)
        try:
            self.progress.take(SLOW_LANES, rows, number, spans)
        finally:
            rows.unpersist()
        service.note(spans)
        self.progress.reach({partition: (each[-1].ledger, each[-1].last) for partition, each in spans.items()})
        for partition, (stats, _spans) in planned.items():
            self._end(partition, stats, had_messages=True)

    def _end(self, partition: str, stats: InternalStats, *, had_messages: bool) -> None:
        """Acknowledge what was processed of a lane, and let it ring again."""
        has_more = self.progress.has_entries(partition, stats)
        with self._guard:
            if not has_more:  # later messages may come after another transaction, although `last` is the same
                self._transactions.pop(partition, None)
            if has_more and self.is_slow(partition):  # it waits beside its tenant's others, not for its next ring
                self._put_back(partition)
            self.in_work -= {partition}
            self._lanes.pop(partition, None)
            if partition in self._waiting:  # put back; or it was deleted, created again, and has rung during this turn
                self._lanes[partition] = _SlowLane(self.monotonic())
        self.settle(partition, self.progress.after(partition, stats), had_messages)

    def _end_after(self, partition: str, last: Position | None) -> Position:
        """Return up to where a lane is read."""
        # Messages of an open transaction come after `last`, and so may markers. They wait for its end, but not long: a
        # sender can open one that never ends. If the broker can't even read the last message's metadata, everything is
        # read.
        before, since_s = self._transactions.get(partition, (None, 0.0))
        has_waited = before == last and self.monotonic() - since_s >= _OPEN_S
        return AFTER_ALL if last is None or has_waited else last

    def _hold(self, partition: str, last: Position) -> None:
        """Try a lane again soon, which has only entries after `last`: of an open transaction, or markers."""
        with self._guard:
            if lane := self._put_back(partition):
                now_s = self.monotonic()
                if self._transactions.get(partition, (None, 0.0))[0] != last:
                    self._transactions[partition] = last, now_s
                lane.due_s = now_s + _OPEN_PAUSE_S

    def _rows(self, spans: Mapping[str, Sequence[EntrySpan]]) -> DataFrame:
        # a lane is read alone if brokers withhold its entries
        (partition, *others) = spans
        lane = _SlowLane(0.0) if others else self._lanes.get(partition) or _SlowLane(0.0)
        return lane.withheld.read(lambda gives_up: self.read(SLOW_LANES, spans, gives_up=gives_up), self.monotonic())

    def _put_off(self, partition: str, why: str) -> None:
        with self._guard:
            lane = self._put_back(partition)
            if lane is None:
                return
            if not lane.failures:
                log.warning("%s could not be read, and is tried again: %s", partition, why)
                lane.since_s = self.monotonic()
            lane.failures += 1
            lane.is_alone = True
            lane.why = why
            lane.due_s = self.monotonic() + _PAUSES.pause_s(lane.failures)
