"""Reads the lanes: which have messages, the doorbell tells; the messages are processed in passes over many lanes.

1. A pass takes a few lanes, each tenant's first before any tenant's second, and of each a bounded number of messages.
   What it read gets its receipts, and only then the lanes' cursors move (doorbell.settle). A kill in between is
   harmless: a lane whose first messages of this run may have receipts is compared with the receipts.
2. A lane that a pass could not read in time, or not completely, is read by itself, without a limit of time, in another
   thread (read_slowly), and for SLOW_S all lanes of its tenant are. So it delays the other tenants once.
3. Which lanes exist is listed once a minute. A new lane is watched, and one that is gone is forgotten.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame

from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.readers.admin_entries import NOTHING_SHOWN, WITHHELD
from streaming.beside import Beside, Work, logged
from streaming.clock import Clock
from streaming.deletion.lanes.waiting_lanes import WaitingLanes
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import ReaperError, StopRequestedError
from streaming.ports import TopicAdmin
from streaming.prometheus import table
from streaming.queries.delivery.completion import Extent, Read
from streaming.queries.delivery.lane_reads import LanesRead
from streaming.spark.java_errors import error_of, one_line
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.terminal import count_of
from udfs.backoff import Backoff
from udfs.entry_ranges import EntrySpan, Range, bytes_of, spans_of, split
from udfs.entry_ranges import count_of as entries_in
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.paths import base_topic, tenant_of

log = logging.getLogger("ledger-reaper")

LANES, SLOW_LANES = "lanes", "slow-lanes"  # names among the queries
SLOW_S = 600.0
_RING_S = 0.5  # the longest wait for a ring
_LIST_S, _COUNT_S = 60.0, 5.0
_PAUSE_S, _SLOW_PAUSE_S = 0.01, 0.2  # between two passes
_MOST_LANES = 64  # of a pass
_MOST_MESSAGES = 500  # of a pass, shared by its lanes; the lanes that ring during a pass wait for its end
_LEAST_MESSAGES = 50  # of a lane in a pass
SLOW_CHUNK_ROWS = 500  # a slow lane may have a million messages, and passes wait for each of its chunks
_MOST_ENTRIES = 500  # of a lane in a pass
_MOST_BYTES = 4 * 1024 * 1024  # the same, as stored; but at least an entry
_RANGES_AT_ONCE = 8
_RANGES_S = 2.0  # for the positions of all lanes of a pass
Checked = TypeVar("Checked")
_AFTER_ALL: Position = (1 << 62, 1 << 62)
_GIVES_UP_S = 600.0  # as in deletion/fallback.py
_PAUSES = Backoff((1, 5, 10, 30, 60))
_MOST_FAILURES = 4
_MOST_REACHED = 100_000  # partitions; a tenant may create and delete lanes for ever
_SHOWN = 5  # lanes that are named where lanes are not read
_PARKED_S = 60.0  # a shorter fault, such as a move of a topic, is not shown


class ReadLanes(Protocol):
    """Reads the next entries of lanes: queries.delivery.lane_reads.LaneRows."""

    def __call__(self, query: str, spans: Mapping[str, Sequence[EntrySpan]], most_messages: int, /) -> LanesRead:
        """Return the rows, and how far each lane was read."""
        ...


def _new_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_RANGES_AT_ONCE, thread_name_prefix="lane-ranges")


@dataclass(slots=True)
class _Lane:
    """A partition of a lane."""

    empty_passes: int = 0  # in a row, although it rang
    slow_failures: int = 0
    slow_why: str = ""
    slow_since_s: float = 0.0
    due_s: float = 0.0
    withheld_since_s: float | None = None


@dataclass(slots=True, kw_only=True)
class LaneReader:
    """One per service. Three threads list the lanes, process passes, and read slow lanes."""

    subscription: str
    existing: Callable[[], tuple[Mapping[str, int], Mapping[str, str]]]  # lanes.existing.existing_lanes
    admin: TopicAdmin
    service: LedgerDeletionService
    bell: Doorbell
    read: ReadLanes
    read_one: Read
    last_message: Callable[[str], Position | None]  # the last that the broker would send; None: it does not tell
    newest_receipts: Callable[[], Mapping[str, Position]]  # by partition, read once
    show: Callable[[str, ParkedQuery | None], None]  # supervision.board.Board.show
    clock: Clock
    monotonic: Callable[[], float] = time.monotonic
    _lanes: dict[str, _Lane] = field(default_factory=dict)
    _refused: Mapping[str, str] = field(default_factory=dict)
    _waiting: WaitingLanes = field(default_factory=WaitingLanes)
    _slow: WaitingLanes = field(default_factory=WaitingLanes)
    _slow_tenants: dict[str, float] = field(default_factory=dict)  # until when
    _received: Mapping[str, Position] | None = None
    # up to which all messages have receipts of this run, even if the lane was gone for a while
    _reached: dict[str, Position] = field(default_factory=dict)
    _processed: dict[str, Position] = field(default_factory=dict)  # the same, since the last check of the accounts
    _in_doubt: set[str] = field(default_factory=set)  # partitions of which a failed pass may have written receipts
    _in_work: set[str] = field(default_factory=set)
    _halves: deque[list[str]] = field(default_factory=deque)  # of passes that failed
    _last_batch: int = 0
    _is_listed: bool = False
    _listed_s: float = float("-inf")
    _parked_since_ms: int | None = None  # None: all lanes are read
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _besides: list[Beside] = field(init=False)
    _threads: ThreadPoolExecutor = field(default_factory=_new_threads)

    def __post_init__(self) -> None:
        """Create the threads, which start() starts."""
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
        until_s = self.monotonic() + timeout_s
        are_over = [thread.join(max(0.0, until_s - self.monotonic())) for thread in self._besides]
        self.bell.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return all(are_over)

    def with_processed(self, check: Callable[[Mapping[str, Position]], Checked]) -> Checked:
        """Call check with what was processed since the last call that succeeded: partition -> up to where."""
        with self._guard:
            processed, self._processed = self._processed, {}
        try:
            return check(processed)
        except BaseException:
            with self._guard:
                self._processed = processed | self._processed
            raise

    @property
    def is_quiet(self) -> bool:
        """Whether all lanes are watched, and none has a message that is not processed; given-up lanes are left out."""
        with self._guard:
            if not self._is_listed or self._in_work or self._halves or len(self._waiting) or len(self._slow):
                return False
            return self.bell.listening + len(self.given_up) >= len(self._lanes)

    @property
    def given_up(self) -> dict[str, str]:
        """Return by partition why it could not be watched, if that was tried often."""
        faults = self.bell.faults.items()
        return {partition: fault.why for partition, fault in faults if fault.failures > _MOST_FAILURES}

    def look_after(self) -> None:
        """List the lanes if that is due, and count them for the metrics. Raises what list_lanes does."""
        try:
            if self.monotonic() - self._listed_s >= _LIST_S:
                self._listed_s = self.monotonic()
                self.list_lanes()
        finally:
            listening = self.bell.listening
            with self._guard:
                counts = {"listening": listening, "waiting": len(self._waiting), "slow": len(self._slow)}
                rest = len(self._lanes) - sum(counts.values()) - len(self._in_work)
            for state, count in (counts | {"not_watched": max(rest, 0)}).items():
                self.service.outages.metrics.registry.set(table.LANES, count, state)

    def list_lanes(self) -> None:
        """Watch new lanes, forget those that are gone, and show those that are not read. Raises UnavailableError."""
        if self._received is None:
            self._received = self.newest_receipts()
        lanes, self._refused = self.existing()
        partitions = {f"{topic}-partition-{number}" for topic, count in lanes.items() for number in range(count)}
        with self._guard:
            gone = self._lanes.keys() - partitions
            new = WaitingLanes()
            for partition in sorted(partitions - self._lanes.keys()):
                new.add(partition)
            for partition in gone:
                del self._lanes[partition]
                self._waiting.discard(partition)
                self._slow.discard(partition)
            ordered = new.take(len(partitions))
            self._lanes |= {partition: _Lane() for partition in ordered}
            now_s = self.monotonic()
            self._slow_tenants = {tenant: until for tenant, until in self._slow_tenants.items() if until > now_s}
        for partition in gone:
            self.bell.forget(partition)
        for partition in ordered:
            self.bell.watch(partition)
        self._is_listed = True
        self._show()

    def run_pass(self) -> None:
        """Wait shortly for a ring, and process the next lanes that have rung. Raises what the service's take does."""
        self.service.gate.check_stop()
        taken = self._next_lanes()
        try:
            if taken:
                self._pass(taken)
        except StopRequestedError:
            raise
        except Exception as error:
            # which lane made the pass fail is not known: the lanes are halved until it is found
            with self._guard:
                half = len(taken) // 2
                self._halves.extend(each for each in (taken[:half], taken[half:]) if half)
            if len(taken) == 1:
                self._to_slow(taken[0], one_line(error_of(LANES, error)))
            raise
        finally:
            with self._guard:
                self._in_work -= {*taken}

    def _next_lanes(self) -> list[str]:
        rung = self.bell.rung(0.0 if len(self._waiting) or self._halves else _RING_S)
        with self._guard:
            now_s = self.monotonic()
            for partition in rung:
                is_slow = self._slow_tenants.get(tenant_of(partition), 0.0) > now_s
                (self._slow if is_slow else self._waiting).add(partition)
            candidates = self._halves.popleft() if self._halves else self._waiting.take(_MOST_LANES)
            # a lane that was deleted and created again may ring while its last pass is still under way
            taken = [each for each in candidates if each in self._lanes and each not in self._in_work]
            for partition in candidates:
                if partition in self._in_work:
                    self._waiting.add(partition)
            self._in_work |= {*taken}
            return taken

    def _pass(self, taken: Sequence[str]) -> None:
        spans = self._planned(taken)
        if not spans:
            return
        number = self._next_batch()
        self.service.describe(LANES, number, f"reading {len(spans)} lanes")
        read = self.read(LANES, spans, max(_LEAST_MESSAGES, _MOST_MESSAGES // len(spans)))
        try:
            self._take(LANES, read.rows, number, spans, read.extent)
        finally:
            read.unpersist()
        if empty := {partition: end.empty for partition, end in read.ends.items() if end.empty}:
            self.service.note(empty)
        for partition, end in read.ends.items():
            if end.upto is not None:
                self._reach(partition, end.upto)
            if end.fault:
                self._to_slow(partition, end.fault)
            else:
                self.bell.settle(partition, end.upto)

    def _take(
        self,
        query: str,
        rows: DataFrame,
        number: int,
        spans: Mapping[str, Sequence[EntrySpan]],
        extent: Extent | None = None,
    ) -> None:
        """Process rows of these entries, so that each message gets one receipt."""
        received = self._received or {}
        firsts = {partition: (each[0].ledger, each[0].first) for partition, each in spans.items()}
        if any(first <= received.get(name, BEFORE_ALL) or name in self._in_doubt for name, first in firsts.items()):
            # an earlier run, or a pass that failed, may have processed some of them: the service leaves those out
            self.service.restart(query)
        self._in_doubt |= spans.keys()
        self.service.take(query, rows, number, extent)
        self._in_doubt -= spans.keys()

    def _planned(self, taken: Sequence[str]) -> dict[str, list[EntrySpan]]:
        """Return the next entries of each lane. A lane whose broker does not tell in time is read by itself."""
        asked: dict[Future[InternalStats], str] = {
            self._threads.submit(self.admin.internal_stats, partition): partition for partition in taken
        }
        answered, late = wait(asked, _RANGES_S)
        hang = [asked[future] for future in late if not future.cancel()]
        for partition in hang:
            self._to_slow(partition, f"its broker did not return its positions within {_RANGES_S:.0f} s")
        if hang:  # their threads may hang for longer, and must not delay the next pass
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = _new_threads()
        with self._guard:
            for partition in {asked[future] for future in late} - {*hang}:
                self._waiting.add(partition)
        planned = {}
        for future in answered:
            partition = asked[future]
            try:
                spans = self._next_entries(partition, future.result())
            except ReaperError as error:
                self._to_slow(partition, str(error))
                continue
            if spans:
                planned[partition] = spans
        return planned

    def _next_entries(self, partition: str, stats: InternalStats, upto: Position = _AFTER_ALL) -> list[EntrySpan]:
        """Return a lane's next entries; if there are none, the lane is settled."""
        lane = self._lanes.get(partition) or _Lane()
        # the cursor may be behind: a tenant has moved it back, or its broker was killed before it wrote it
        after = max(self._reached.get(partition, BEFORE_ALL), stats.mark_deleted(self.subscription))
        spans = list(spans_of(stats.ledgers, Range(after, upto)))
        if not spans:
            # a false ring, unless messages were deleted; it must not ring at once again and again
            lane.empty_passes += 1
            pause_s = _PAUSES.pause_s(lane.empty_passes)
            timer = threading.Timer(pause_s, self.bell.settle, (partition, after if after > BEFORE_ALL else None))
            timer.daemon = True
            timer.start()
            return []
        lane.empty_passes = 0
        size = bytes_of(spans, stats) // entries_in(spans)
        return next(split(spans, max(1, min(_MOST_ENTRIES, _MOST_BYTES // max(1, size)))))

    def _reach(self, partition: str, upto: Position) -> None:
        with self._guard:
            self._reached[partition] = max(upto, self._reached.pop(partition, BEFORE_ALL))
            self._processed[partition] = self._reached[partition]
            while len(self._reached) > _MOST_REACHED:
                del self._reached[next(iter(self._reached))]

    def _next_batch(self) -> int:
        # a number that no earlier run has used, because the journal counts a batch's deletes
        with self._guard:
            self._last_batch = max(self._last_batch + 1, self.clock.now_ms())
            return self._last_batch

    def _to_slow(self, partition: str, why: str) -> None:
        with self._guard:
            lane = self._lanes.get(partition)
            if lane is None:
                return
            log.info("%s is read by itself from now on: %s", partition, why)
            lane.due_s = self.monotonic()
            self._slow_tenants[tenant_of(partition)] = self.monotonic() + SLOW_S
            self._slow.add(partition)

    def read_slowly(self) -> None:
        """Process the next entries of one lane, however long that takes; a lane that fails is tried again later."""
        self.service.gate.check_stop()
        with self._guard:
            now_s = self.monotonic()
            # in the order of _slow, so that the tenants take turns
            candidates = self._slow.take(len(self._slow))
            may_read = (each for each in candidates if self._lanes[each].due_s <= now_s and each not in self._in_work)
            taken = [*islice(may_read, 1)]
            for partition in candidates:
                if partition not in taken:
                    self._slow.add(partition)
            for partition in taken:  # its tenant's other lanes come after those of other tenants
                self._slow.move_to_end(tenant_of(partition))
            self._in_work |= {*taken}
        for partition in taken:
            try:
                self._read_slowly(partition)
            except StopRequestedError:
                raise
            except Exception as error:
                self._put_off(partition, one_line(error_of(SLOW_LANES, error)))
            finally:
                with self._guard:
                    self._in_work.discard(partition)

    def _read_slowly(self, partition: str) -> None:
        lane = self._lanes.get(partition)
        if lane is None:
            return
        last = self.last_message(partition)
        stats = self.admin.internal_stats(partition)
        # messages of an open transaction, which come after `last`, wait for its end; if the broker can't even read the
        # last message's metadata, everything is read
        spans = self._next_entries(partition, stats, _AFTER_ALL if last is None else last)
        if not spans:
            self._served(lane)
            return
        number = self._next_batch()
        self.service.slots.slow_down(SLOW_LANES)
        self.service.describe(SLOW_LANES, number, f"reading {partition}")
        rows = self._rows(lane, partition, spans)
        try:
            self._take(SLOW_LANES, rows, number, {partition: spans})
        finally:
            rows.unpersist()
        self.service.note({partition: spans})
        upto = spans[-1].ledger, spans[-1].last
        self._reach(partition, upto)
        self._served(lane)
        self.bell.settle(partition, upto)

    def _rows(self, lane: _Lane, partition: str, spans: Sequence[EntrySpan]) -> DataFrame:
        since_s, lane.withheld_since_s = lane.withheld_since_s, None
        now_s = self.monotonic()
        try:
            gives_up = since_s is not None and now_s - since_s >= _GIVES_UP_S
            return self.read_one(SLOW_LANES, {partition: spans}, gives_up=gives_up)
        except Exception as error:
            if any(reason in str(error) for reason in (NOTHING_SHOWN, WITHHELD)):
                lane.withheld_since_s = now_s if since_s is None else since_s
            raise

    def _served(self, lane: _Lane) -> None:
        lane.slow_failures, lane.slow_why = 0, ""

    def _put_off(self, partition: str, why: str) -> None:
        with self._guard:
            lane = self._lanes.get(partition)
            if lane is not None:
                if not lane.slow_failures:
                    log.warning("%s could not be read, and is tried again: %s", partition, why)
                    lane.slow_since_s = self.monotonic()
                lane.slow_failures += 1
                lane.slow_why = why
                lane.due_s = self.monotonic() + _PAUSES.pause_s(lane.slow_failures)
                self._slow.add(partition)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, StopRequestedError):
            log.error("lanes: %s", one_line(error_of(LANES, error)))

    def unread(self) -> dict[str, str]:
        """Return by topic or partition why lanes are not read, if they have not been for a while."""
        now_s = self.monotonic()
        faults = {
            partition: fault.why for partition, fault in self.bell.faults.items() if now_s - fault.since_s >= _PARKED_S
        }
        with self._guard:
            slow = {
                partition: lane.slow_why
                for partition, lane in self._lanes.items()
                if lane.slow_why and now_s - lane.slow_since_s >= _PARKED_S
            }
        return {**self._refused, **faults, **slow}

    def _show(self) -> None:
        """Show the lanes that are not read as one parked query: a tenant may have any number of them."""
        unread = self.unread()
        if not unread:
            if self._parked_since_ms is not None:
                self.show(LANES, None)
            self._parked_since_ms = None
            return
        if self._parked_since_ms is None:
            self._parked_since_ms = self.clock.now_ms()
        named = "; ".join(f"{base_topic(name)}: {why}" for name, why in sorted(unread.items())[:_SHOWN])
        more = f"; and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else ""
        parked = ParkedQuery(
            topic=base_topic(min(unread)),
            why=f"not read: {count_of(len(unread), 'lane', 'lanes')}: {named}{more}",
            since_ms=self._parked_since_ms,
            is_read=True,  # the service does its job for the other lanes
        )
        self.show(LANES, parked)
