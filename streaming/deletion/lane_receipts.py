"""Publishes the receipts of requests from lanes back to the tenants, next to the service.

1. It follows the receipts table, whose chunks are durable before they are read here; deleting never waits for it.
2. Each receipt is published at least once. A note in state.dir names the chunk up to which all receipts were published,
   and the lanes that have unpublished receipts before it. After a crash, or a failure of a topic, some receipts are
   published again.
3. A tenant decides what happens to its topic. So a lane that fails is tried again after growing pauses, and tenants
   whose lanes failed within the last hour (suspects) share two threads. Receipts that could not be published within a
   day are dropped, and so are those of further lanes of a tenant with _LANES_OF_TENANT waiting ones; they stay in
   state.dir.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Protocol

import pyarrow as pa

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.many_producers import ManyProducers
from streaming.adapters.pulsar.silence import Silence
from streaming.beside import Beside, Work, logged
from streaming.clients import admin_settings
from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.prometheus import table
from streaming.prometheus.registry import Registry
from streaming.state import lane_rows
from streaming.state.notes.note import DamagedNoteError, Note
from streaming.state.receipts import Receipts
from streaming.terminal import count_of
from streaming.topics.receipt_topics import ensure_receipt_topic
from udfs.paths import tenant_of
from udfs.requests.lane_receipts import lane_receipt, receipt_topic
from udfs.units import DAY_MS

log = logging.getLogger("ledger-reaper")

_EVERY_S = 0.5
_WAIT_S = 1.0  # for results, before others start
_NOTE_EVERY_S = 5.0
_LEAVE_S = 3.0
_LIMIT_S = 5.0  # of a call for a lane, and of a thousand receipts
_PRODUCERS = 64  # each has a client with threads of its own
_THREADS = 6
_SUSPECT_THREADS = 2
_SUSPECT_S = 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
# these three bound the memory
_LANES_AT_ONCE = 2 * _THREADS
_LANES_OF_TENANT_AT_ONCE = 2
_RECEIPTS_AT_ONCE = 10_000  # of a lane
_LANES_OF_TENANT = 1_000  # that wait: if lanes are namespaces, a tenant creates any number of them
_LOG_S = 3600.0  # between two messages about a tenant with more


class Topics(Protocol):
    """Where receipts are published: ManyProducers."""

    def publish(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """Store messages (key, payload) in order, within a time limit. Raises ReaperError; some may then be stored."""
        ...

    def close_idle(self) -> None:
        """Close what was not used for a while."""
        ...


@dataclass(frozen=True, slots=True)
class Position:
    """How far receipts were published."""

    table: str  # id of the receipts table
    chunk: int  # all receipts up to this chunk were published, except those of `lanes`
    lanes: Mapping[str, int]  # lane -> the first chunk with receipts that may not have been published


_NOTE: Note[Position] = Note(
    "lane-receipts.json",
    encode=lambda position: {"table": position.table, "chunk": position.chunk, "lanes": dict(position.lanes)},
    decode=lambda note: Position(
        str(note["table"]), int(note["chunk"]), {str(lane): int(chunk) for lane, chunk in note["lanes"].items()}
    ),
)


@dataclass(slots=True)
class _Due:
    """A lane with receipts to publish."""

    chunk: int  # the first that may have such receipts
    done: int = 0  # how many receipts of that chunk were published
    failures: int = 0  # in a row
    again_s: float = 0.0  # not before
    sending: "Future[None] | None" = None
    after: tuple[int, int] = (0, 0)  # (chunk, done) if it succeeds


@dataclass(slots=True)
class _Suspect:
    """A tenant with a lane that failed within the last hour."""

    until_s: float
    served_s: float = 0.0


class LaneReceipts:
    """Follows the receipts of one state directory. One per service; one thread calls step()."""

    def __init__(  # noqa: PLR0913  its surroundings
        self,
        state_dir: str,
        table_id: str,
        newest_chunk: Callable[[], int],
        *,
        topics: Topics,
        clock: Clock,
        dropped: Callable[[int], None],
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """Create it; the first step resumes where an earlier run ended.

        Args:
            state_dir: state.dir.
            table_id: of the receipts table.
            newest_chunk: returns the number of the newest chunk.
            topics: where receipts are published.
            clock: the clock of the receipts.
            dropped: counts receipts of a tenant with too many waiting lanes, which are not published.
            now_s: a monotonic clock.
        """
        self._state_dir = state_dir
        self._table_id = table_id
        self._newest_chunk = newest_chunk
        self._topics = topics
        self._clock = clock
        self._count_dropped = dropped
        self._now_s = now_s
        self._chunk = 0
        self._due: dict[str, _Due] = {}
        self._suspects: dict[str, _Suspect] = {}  # by tenant
        self._crowded_until_s: dict[str, float] = {}  # by tenant with too many waiting lanes: no message before
        self._noted: Position | None = None  # None: no step was made
        self._noted_s = float("-inf")
        self._others = ThreadPoolExecutor(_THREADS, thread_name_prefix="lane-receipts")
        self._late = ThreadPoolExecutor(_SUSPECT_THREADS, thread_name_prefix="late-lane-receipts")

    @property
    def position(self) -> Position:
        """How far receipts were published."""
        return Position(self._table_id, self._chunk, {lane: due.chunk for lane, due in self._due.items()})

    @property
    def is_behind(self) -> bool:
        """Whether there are receipts to publish, other than those of suspects."""
        return self._chunk < self._newest_chunk() or any(not self._is_suspect(lane) for lane in list(self._due))

    def step(self) -> None:
        """Find new receipts, start to publish what is due, and wait a second for results. Raises UnavailableError."""
        if self._noted is None:
            self._resume()
        self._settle()
        self._find()
        self._start()
        wait([due.sending for due in self._due.values() if due.sending is not None], _WAIT_S)
        self._settle()
        self._topics.close_idle()
        if self._now_s() - self._noted_s >= _NOTE_EVERY_S:
            self.note()

    def note(self) -> None:
        """Make the position durable, if it has changed. Raises UnavailableError."""
        position = self.position
        if self._noted is not None and position != self._noted:
            _NOTE.write(self._state_dir, position)
            self._noted, self._noted_s = position, self._now_s()

    def close(self) -> None:
        """Stop publishing; the next run publishes what is left."""
        for pool in (self._others, self._late):
            pool.shutdown(wait=False, cancel_futures=True)

    def _resume(self) -> None:
        try:
            noted = _NOTE.read(self._state_dir)
        except DamagedNoteError as error:
            log.warning("receipts of the last day are published to lanes again: %s", error)
            noted = None
        if noted is None or noted.table != self._table_id:
            noted = Position(self._table_id, 0, {})  # whatever the table has of the last day is published
        self._chunk = noted.chunk
        self._due = {lane: _Due(chunk) for lane, chunk in noted.lanes.items()}
        self._noted = noted

    def _find(self) -> None:
        """Find the lanes with receipts in new chunks."""
        newest = self._newest_chunk()
        if newest <= self._chunk:
            return
        waiting = Counter(tenant_of(lane) for lane in self._due)
        dropped: Counter[str] = Counter()
        for lane, chunk, count in lane_rows.counted(self._state_dir, (self._chunk + 1, newest), self._since_ms()):
            due = self._due.get(lane)
            if due is not None:
                # the chunks of one answer come in any order
                due.chunk, due.done = min((due.chunk, due.done), (chunk, 0))
            elif waiting[tenant_of(lane)] < _LANES_OF_TENANT:
                waiting[tenant_of(lane)] += 1
                self._due[lane] = _Due(chunk)
            else:
                dropped[tenant_of(lane)] += count
        self._chunk = newest
        self._report(dropped)

    def _report(self, dropped: Counter[str]) -> None:
        """Count receipts that are not published (by tenant), and log each such tenant once an hour."""
        now_s = self._now_s()
        self._crowded_until_s = {
            tenant: until_s for tenant, until_s in self._crowded_until_s.items() if until_s > now_s
        }
        for tenant, count in dropped.items():
            self._count_dropped(count)
            if tenant not in self._crowded_until_s:
                self._crowded_until_s[tenant] = now_s + _LOG_S
                log.warning(
                    "more than %d lanes of tenant %s wait for receipts, so receipts for further lanes of it are not "
                    "published; only state.dir has them",
                    _LANES_OF_TENANT,
                    tenant,
                )

    def _start(self) -> None:
        """Start to publish the receipts of lanes that are due."""
        now_s = self._now_s()
        self._suspects = {tenant: each for tenant, each in self._suspects.items() if each.until_s > now_s}
        busy = Counter(tenant_of(lane) for lane, due in self._due.items() if due.sending is not None)
        late = sum(count for tenant, count in busy.items() if tenant in self._suspects)
        ready = [lane for lane, due in self._due.items() if due.sending is None and due.again_s <= now_s]
        others = [lane for lane in ready if not self._is_suspect(lane)]
        self._publish(self._some(others, busy, _LANES_AT_ONCE - (busy.total() - late)), self._others)
        suspects = sorted(filter(self._is_suspect, ready), key=self._served_s)
        chosen = self._some(suspects, busy, _SUSPECT_THREADS - late)
        for lane in chosen:
            self._suspects[tenant_of(lane)].served_s = now_s
        self._publish(chosen, self._late)

    def _some(self, lanes: Sequence[str], busy: Counter[str], most: int) -> list[str]:
        """Return the first lanes, at most `most`, and of each tenant only so many that others have their share."""
        chosen: list[str] = []
        for lane in lanes:
            if len(chosen) < most and busy[tenant_of(lane)] < _LANES_OF_TENANT_AT_ONCE:
                busy[tenant_of(lane)] += 1
                chosen.append(lane)
        return chosen

    def _publish(self, lanes: Sequence[str], pool: ThreadPoolExecutor) -> None:
        chosen = self._chunks_of(lanes)
        for lane, receipts in lane_rows.tables(self._state_dir, chosen, self._since_ms()):
            due = self._due[lane]
            some = receipts.slice(due.done, _RECEIPTS_AT_ONCE)
            is_all = due.done + some.num_rows >= receipts.num_rows
            due.after = (chosen[lane][1] + 1, 0) if is_all else (due.chunk, due.done + some.num_rows)
            due.sending = pool.submit(self._send, receipt_topic(lane), some)

    def _send(self, topic: str, receipts: pa.Table) -> None:
        self._topics.publish(topic, [lane_receipt(row) for row in receipts.to_pylist()])

    def _chunks_of(self, lanes: Sequence[str]) -> dict[str, lane_rows.Chunks]:
        """Return the chunks of these lanes to publish next, and forget the lanes without receipts."""
        if not lanes:
            return {}
        found: dict[str, Counter[int]] = {lane: Counter() for lane in lanes}
        oldest = min(self._due[lane].chunk for lane in lanes)
        for lane, chunk, count in lane_rows.counted(self._state_dir, (oldest, self._chunk), self._since_ms()):
            if lane in found and chunk >= self._due[lane].chunk:
                found[lane][chunk] += count
        return {lane: self._next_of(lane, counts) for lane, counts in found.items() if counts or self._drop(lane)}

    def _next_of(self, lane: str, counts: Counter[int]) -> lane_rows.Chunks:
        due = self._due[lane]
        chunks = _first_chunks(counts)
        if chunks[0] != due.chunk:
            due.chunk, due.done = chunks[0], 0
        return chunks

    def _drop(self, lane: str) -> bool:
        """Forget a lane without receipts of the last day; return False."""
        if self._due.pop(lane).failures:
            log.warning("receipts for %s could not be published within a day; only state.dir has them", lane)
        return False

    def _settle(self) -> None:
        """Take the results of what was being published."""
        failed: list[str] = []
        for lane, due in list(self._due.items()):
            if due.sending is None or not due.sending.done():
                continue
            error = due.sending.exception()
            due.sending = None
            if error is None:
                (due.chunk, due.done), due.failures, due.again_s = due.after, 0, 0.0
                if due.chunk > self._chunk:
                    del self._due[lane]
                continue
            if not due.failures:
                failed.append(f"{lane}: {error}")
            if not isinstance(error, ReaperError):
                log.error("publishing the receipts for %s failed", lane, exc_info=error)
            self._fail(lane, due)
        if failed:
            what = count_of(len(failed), "lane", "lanes")
            log.warning("receipts for %s could not be published; they are tried again. %s", what, failed[0])

    def _fail(self, lane: str, due: _Due) -> None:
        now_s = self._now_s()
        due.again_s = now_s + min(_FIRST_PAUSE_S * 2.0 ** min(due.failures, 10), _LONGEST_PAUSE_S)
        due.failures += 1
        suspect = self._suspects.setdefault(tenant_of(lane), _Suspect(0.0))
        suspect.until_s = now_s + _SUSPECT_S

    def _is_suspect(self, lane: str) -> bool:
        return tenant_of(lane) in self._suspects

    def _served_s(self, lane: str) -> tuple[float, float]:
        return self._suspects[tenant_of(lane)].served_s, self._due[lane].again_s

    def _since_ms(self) -> int:
        return self._clock.now_ms() - DAY_MS


def _first_chunks(counts: Counter[int]) -> lane_rows.Chunks:
    """Return the first and last chunk of the receipts to publish next, by their number in each chunk of a lane."""
    first = through = min(counts)
    total = 0
    for chunk in sorted(counts):
        total += counts[chunk]
        if chunk > first and total > _RECEIPTS_AT_ONCE:
            break
        through = chunk
    return first, through


class Following(Beside):
    """The thread that follows the receipts."""

    def __init__(self, follower: LaneReceipts, disconnect: Callable[[], None]) -> None:
        """Create it. disconnect: called at the end."""
        work = Work(
            name="lane-receipts",
            run=follower.step,
            every_s=_EVERY_S,
            leave_s=_LEAVE_S,
            keeps_from_ending=True,
            on_failure=logged("publishing receipts for lanes", _EVERY_S),
        )
        super().__init__(work)
        self._follower = follower
        self._disconnect = disconnect

    @property
    def is_busy(self) -> bool:
        """Whether `run --until-idle` has to wait for receipts."""
        return self._follower.is_behind

    def __exit__(self, *error: object) -> None:
        """Stop; the next run publishes what is left."""
        super().__exit__(*error)
        try:
            if not self.is_alive:
                self._follower.note()
        except ReaperError as failure:
            log.warning("the next run publishes some receipts for lanes again: %s", failure)
        self._follower.close()
        self._disconnect()


def publishing(settings: Settings, receipts: Receipts, clock: Clock, registry: Registry) -> Following:
    """Return the thread that publishes receipts for lanes, not started yet."""
    limited = replace(admin_settings(settings), timeout_seconds=_LIMIT_S)
    # a memory of its own: a tenant whose topic of receipts hangs must not have a broker count as hanging for others
    admin = PulsarAdmin(limited, Silence())
    prepare = partial(ensure_receipt_topic, admin, settings)
    topics = ManyProducers(settings.pulsar, prepare, limit_s=_LIMIT_S, most=_PRODUCERS)

    def disconnect() -> None:
        topics.close()
        admin.close()

    follower = LaneReceipts(
        settings.state_dir,
        receipts.table_id,
        lambda: receipts.newest_chunk,
        topics=topics,
        clock=clock,
        dropped=partial(registry.inc, table.LANE_RECEIPTS_DROPPED),
    )
    return Following(follower, disconnect)
