"""LedgerDeletionService: works off batches of requests, chunk by chunk, so that none is lost and none is done twice.

A chunk is: look who is in use, sweep in the executors, one Delta commit of receipts, publish the copies that the
receipts name. Chunks of all queries run one after the other: their numbers are the order of what is published.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.deletion.outbox import Mark, publish_copies, refuse_outdated, remembered_copies, stored_copies
from streaming.deletion.turn import Turn
from streaming.errors import FencedError, SafetyError, StopRequestedError, UnavailableError
from streaming.in_use.baseline import ALL
from streaming.in_use.cache import InUseCache
from streaming.in_use.watch import SourceWatch
from streaming.limits.blast_radius import BlastRadius, Chunk
from streaming.metrics import Metrics
from streaming.queries.transforms import grouped_by_owner, messages, slice_of, tasks_for
from streaming.schemas import REQUESTS, RETRY
from streaming.spark.failures import translated
from streaming.state import hold as held
from streaming.state import journal, receipts
from streaming.state.receipts import ChunkSummary, Receipts
from streaming.state.waiting import Waiting
from streaming.sweep.jobs import SweepRules
from streaming.sweep.task import SweepTask, planned
from udfs import columns as c
from udfs.blast_radius import Plan, Planned
from udfs.records import Outcome, Reason
from udfs.units import DAY_MS

_KEYS_PER_CHUNK = 100_000  # owners whose sets travel with a broadcast; executors read the rest themselves
_OUTAGE_WAITS_S = (1, 2, 5, 10, 30)
_FORGET_AT_ONCE = 10_000
_CLOCKS_DIFFER_MS = 3600 * 1000  # of the machine of a killed run and of ZooKeeper


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are on this cluster: the epoch that proves it, and how many partitions the targets have."""

    rules: SweepRules
    secret: bytes
    retry_partitions: int
    dead_letter_partitions: int


@dataclass(frozen=True, slots=True)
class Coordination:
    """Questions to ZooKeeper around each chunk; each raises what should stop or delay the work.

    published tells how far publishing got (an outbox.Mark), as mark_published was told. agreed_ms tells the time that
    ages are judged by.
    """

    still_mine: Callable[[], bool]
    paused: Callable[[], str]
    published: Callable[[], str]
    mark_published: Callable[[str], None]
    agreed_ms: Callable[[], int]


@dataclass(slots=True)
class LedgerDeletionService:
    """One per application. process() is what foreachBatch calls."""

    spark: SparkSession
    settings: Settings
    identity: Identity
    guards: Coordination
    cache: InUseCache
    blast_radius: BlastRadius
    receipts: Receipts
    watch: SourceWatch
    waiting: Waiting
    metrics: Metrics
    clock: Clock
    log: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    fatal: list[Exception] = field(default_factory=list)
    on_kept: Callable[[], None] = lambda: None
    _turn: Turn = field(init=False)
    _started: set[str] = field(default_factory=set)
    _passes: int = 0
    _counted: int = 0
    _published: int = -1  # not known before publish_again
    _stored: dict[str, int] = field(default_factory=dict)  # copies that brokers have, and have forgotten that they do

    def __post_init__(self) -> None:
        """Who waits for a turn stops with the service."""
        self._turn = Turn(self.stop)

    def process(self, query: str, source: DataFrame, batch_id: int) -> None:
        """Work off one batch of one query. Raises StopRequestedError to keep Spark from committing it."""
        self._check_stop()
        self._describe(query, batch_id, "reading messages")
        if query == RETRY:
            self._keep(messages(source), batch_id)
            return
        kept = [messages(source).persist()]
        try:
            if query not in self._started:
                kept.append(self.receipts.without_done(kept[0]).persist())
            self._work_off(query, batch_id, kept[-1])
            self._started.add(query)
        finally:
            for rows in kept:
                rows.unpersist()

    def begin_again(self, query: str) -> None:
        """A query starts once more: where its last run got to is in the receipts, as at a start."""
        self._started.discard(query)

    def work_off_due(self) -> None:
        """One pass over the waiting retries that are due now."""
        with self._turn:
            self._through_outages(self._take_over)
            is_doubtful = self.waiting.may_have_receipts
            due = self.waiting.begin(self.clock.now_ms())
        self._passes += 1
        rows = (self.receipts.without_done(due) if is_doubtful else due).persist()
        try:
            self._work_off(RETRY, self._passes, rows)
        finally:
            rows.unpersist()
        self.waiting.end()
        self.metrics.waiting(self.waiting.count())

    def prune_waiting(self) -> None:
        """Remove from the waiting retries what is done."""
        with self._turn:
            self.waiting.prune()

    def _take_over(self) -> None:
        self.waiting.take_over(self.guards.still_mine, self.receipts.without_done)

    def _keep(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch of RETRY down; each message is worked off when it is due. A batch may come twice."""
        is_known = RETRY in self._started

        def append() -> None:
            nonlocal is_known
            self._check_stop()
            self._refuse_if_outdated()
            self._take_over()
            fresh = rows if is_known else self.waiting.without_held(self.receipts.without_done(rows))
            is_known = False  # should it be tried again: this try may have been stored, and only its answer lost
            self.waiting.append(fresh)

        with self._turn:
            self._describe(RETRY, batch_id, "keeping messages until they are due")
            self._through_outages(append)
        self._started.add(RETRY)
        self.metrics.waiting(self.waiting.count())
        self.on_kept()

    def publish_again(self) -> None:
        """At start: what is not known to have gone out may not have; the broker drops what did.

        Where it is known to have gone out nothing is sent: the broker forgets a producer after hours of silence.
        Raises SafetyError where more has gone out than the receipts know, StopRequestedError.
        """
        self._through_outages(self.receipts.sync)
        self._through_outages(self._look_what_is_published)
        while self._published < self.receipts.newest_chunk:
            self._publish(self._published + 1)

    def _look_what_is_published(self) -> None:
        newest = self.receipts.newest_chunk
        mark = Mark.parse(self.guards.published(), self.receipts.table_id)
        if mark is not None:
            mark.check(newest)
        topics = self.settings.topics
        targets = {
            topics.retry: self.identity.retry_partitions,
            topics.dead_letter: self.identity.dead_letter_partitions,
        }
        remembered = remembered_copies(targets, self.settings.pulsar, self._producer_prefix())
        refuse_outdated(remembered, newest)
        # no chunk is begun before the one before it has gone out
        published = max(0, newest - 1) if mark is None else mark.done
        if published < newest and (mark is None or mark.begun > mark.done):
            forgotten = [partition for partition, last in remembered.items() if last < 0]
            since_ms = self.receipts.begun_ms(published + 1) - _CLOCKS_DIFFER_MS
            self._stored = stored_copies(self.settings, forgotten, self.receipts.table_id, since_ms)
            refuse_outdated(self._stored, newest)
        self._published = published
        self._counted = newest  # the journal has told what earlier runs deleted

    def maintain(self) -> None:
        """Merge the receipts' small files; drop what is older than [state] keeps. Between two chunks."""
        state, now_ms = self.settings.state, self.clock.now_ms()
        with self._turn:
            try:
                receipts.expire(state.dir, now_ms - state.receipts_days * DAY_MS)
                receipts.compact(state.dir)
                self.receipts.sync()
                days = journal.expire(state.dir, now_ms=now_ms, keep_days=state.journal_days)
            except Exception as error:  # tidying up must never stop the work
                self.log(f"maintenance of {state.dir} failed and is tried again later: {error}")
            else:
                self.log(f"maintenance: receipts compacted, {days} days of journal expired")

    def _work_off(self, query: str, batch_id: int, part: DataFrame) -> None:
        counted = part.agg(F.count(F.lit(1)), F.min(c.ROW), F.max(c.ROW)).first()
        if counted is None or not counted[0]:
            return
        total, first, last = counted
        if total <= self.settings.service.chunk_rows:
            self._chunk(query, batch_id, part, total)
            return
        sources = part.select(c.SOURCE).distinct().count()
        step = max(1, self.settings.service.chunk_rows // sources)
        for start in range(first, last + 1, step):
            piece = slice_of(part, start, start + step)
            self._chunk(query, batch_id, piece, piece.count())

    def _chunk(self, query: str, batch_id: int, rows: DataFrame, total: int) -> None:
        """One chunk, through outages: what can't be reached is waited for; nothing counts as a try meanwhile."""
        if not total:
            return
        with self._turn:
            self._settle()
            started_ms = self.clock.now_ms()
            chunk = self.receipts.newest_chunk + 1

            def commit() -> None:
                self.receipts.catch_up()  # an earlier try may have committed, and only its answer was lost
                if self.receipts.newest_chunk < chunk:
                    self._sweep(query, batch_id, rows, total, chunk)

            self._through_outages(commit)
            swept_ms = self.clock.now_ms()
            self._describe(query, batch_id, "publishing copies")
            summary = self._finish(chunk)
        took = (
            f"swept in {(swept_ms - started_ms) / 1000:.1f} s, in all {(self.clock.now_ms() - started_ms) / 1000:.1f} s"
        )
        self._account(query, chunk, summary, took)

    def _settle(self) -> None:
        """What a query left behind that broke off between its commit and the end: no chunk overtakes another."""
        self._check_stop()
        if self._published < 0:
            raise AssertionError("a chunk before publish_again")
        self._through_outages(self.receipts.catch_up)
        while self._published < self.receipts.newest_chunk:
            chunk = self._published + 1
            self._look_after(chunk, self._finish(chunk))

    def _finish(self, chunk: int) -> ChunkSummary:
        """What belongs to a chunk that is committed; where it breaks off, whoever has the next turn goes on."""
        summary = self._own(chunk)
        self._through_outages(self.receipts.sync)
        if self._counted < chunk:
            self._through_outages(lambda: self._count(chunk, summary))
            self._counted = chunk
        if summary.copies:
            self._publish(chunk)
        else:
            self._mark(chunk)
        return summary

    def _publish(self, chunk: int) -> None:
        def send() -> None:
            self._refuse_if_outdated()  # else a second try would take the producers from the other
            self.guards.mark_published(str(Mark(self.receipts.table_id, self._published, chunk)))
            receipts_of_chunk, table_id = self.receipts.of_chunk(chunk), self.receipts.table_id
            publish_copies(receipts_of_chunk, self.settings.pulsar, table_id, self._producer_prefix(), self._stored)

        self._through_outages(send)
        self._mark(chunk)

    def _mark(self, chunk: int) -> None:
        self._through_outages(lambda: self.guards.mark_published(str(Mark(self.receipts.table_id, chunk, chunk))))
        self._published = chunk

    def _own(self, chunk: int) -> ChunkSummary:
        """What we committed; a chunk of this number that another run wrote means that one of us is outdated."""
        summary = self.receipts.summary(chunk)
        if summary.epochs != {self.identity.rules.epoch[1]}:
            failure = FencedError(f"chunk {chunk} of the receipts was written by another run; this one stops")
            self._fail(failure)
            raise failure
        return summary

    def _count(self, chunk: int, summary: ChunkSummary) -> None:
        """Into the blast radius, before another chunk is judged. What was gone may be a task's that was run twice."""
        is_doubtful = any(outcome == Outcome.ALREADY_GONE for outcome, _ in summary.outcomes)
        self.blast_radius.count(self.receipts.deleted_by_owner(chunk), is_doubtful=is_doubtful)

    def _sweep(self, query: str, batch_id: int, rows: DataFrame, total: int, chunk: int) -> None:
        self._check_go()
        self._describe(query, batch_id, f"in-use sets for {total} requests")
        named = rows.where(F.col(c.REFERENCE_KEY).isNotNull())
        owners = named.groupBy(c.TENANT, c.REFERENCE_KEY).count().collect()
        keys = [row[c.REFERENCE_KEY] for row in owners[:_KEYS_PER_CHUNK]]
        references = self.cache.references(keys)
        baselines, doubt = self.watch.before(references, keys)
        if doubt:
            if not self.blast_radius.lets(query, doubt):
                self._hold(doubt, query, doubt)
            self.watch.baseline.forget([ALL])
        broadcast = self.spark.sparkContext.broadcast((references, baselines))
        parallelism = self.settings.two_phase.ledger_deletion_parallelism
        task = SweepTask(
            query=RETRY if query == RETRY else REQUESTS,
            batch_id=batch_id,
            chunk=chunk,
            settings=self.settings,
            rules=self.identity.rules,
            secret=self.identity.secret,
            owners=broadcast,
            retry_partitions=self.identity.retry_partitions,
            dead_letter_partitions=self.identity.dead_letter_partitions,
            tasks=tasks_for(total, parallelism),
            now_ms=self.guards.agreed_ms(),
        )
        try:
            grouped = grouped_by_owner(rows, total=total, parallelism=parallelism)
            asked = {(row[c.TENANT], row[c.REFERENCE_KEY]): row["count"] for row in owners}
            most = self._within_limits(task, Chunk(query, batch_id, task.now_ms), grouped, asked)
            self._describe(query, batch_id, f"sweeping {total} requests of {len(references)} owners")
            task = replace(task, most_deletes=most)
            try:
                self.receipts.append(grouped.mapInArrow(task, self.receipts.schema), chunk)
            except Exception:
                self.blast_radius.interrupted()
                raise
        finally:
            broadcast.destroy()

    def _within_limits(
        self, task: SweepTask, chunk: Chunk, grouped: DataFrame, most: Planned
    ) -> tuple[int, ...] | None:
        """Hold the chunk while it would break the blast radius; returns most deletes by task (None: no need)."""

        def plan() -> Plan:
            self._describe(task.query, task.batch_id, "dry run: how much would be deleted")
            return planned(grouped, task)

        why, by_task = self.blast_radius.judge(chunk, most, plan)
        if why is None:
            return by_task
        self._hold(why, chunk.query)
        return by_task

    def _hold(self, why: str, query: str, what: str = "") -> None:
        """Delete nothing until a person has looked and resumed. Raises what _check_go does."""
        self.blast_radius.trip(why, query, what)
        self.metrics.tripped(True)
        self._check_go()

    def _stop_if_lost(self, chunk: int) -> None:
        """What was kept as in use and is gone all the same was deleted by somebody, us perhaps: nobody goes on."""
        missing = self.watch.missing(chunk, self.stop)
        if missing:
            why = f"{len(missing)} kept and in use, and yet gone, for example {missing[0]} (chunk {chunk})"
            self.blast_radius.breaker.trip(why)
            failure = SafetyError(f"{why}. Find out who deletes; `ledger-reaper undo` puts back what we did")
            self._fail(failure)
            raise failure

    def _account(self, query: str, chunk: int, summary: ChunkSummary, took: str) -> None:
        self.metrics.count(query, summary)
        self.metrics.cache(self.cache)
        parts = ", ".join(f"{n} {outcome}/{reason}" for (outcome, reason), n in sorted(summary.outcomes.items()))
        self.log(f"{query}: chunk {chunk}: {summary.total} requests, {took}: {parts}")
        self._look_after(chunk, summary)

    def _look_after(self, chunk: int, summary: ChunkSummary) -> None:
        if summary.has_refreshed:
            self.cache.forget(self.receipts.refreshed_keys(chunk, _FORGET_AT_ONCE))
        self.watch.after(chunk)
        if any(reason == Reason.KEPT_AND_GONE for _outcome, reason in summary.outcomes):
            self._through_outages(lambda: self._stop_if_lost(chunk))

    def _through_outages(self, step: Callable[[], None]) -> None:
        waits = iter(_OUTAGE_WAITS_S)
        wait_s = 0
        while True:
            try:
                step()
                return
            except Exception as error:
                failure = translated(error)
                if not isinstance(failure, UnavailableError):
                    self._fail(failure)
                    raise failure from error
                wait_s = next(waits, wait_s)
                self.log(f"waiting {wait_s} s: {failure}")
                self.metrics.outage()
                if self.stop.wait(wait_s):
                    raise StopRequestedError from error

    def _fail(self, failure: Exception) -> None:
        if isinstance(failure, SafetyError):
            self.fatal.append(failure)
            self.stop.set()

    def _check_go(self) -> None:
        self._check_stop()
        told = ""
        while why := self._held():
            if why != told:
                self.log(why)
                held.note(self.settings.state.dir, why, now_ms=self.clock.now_ms())
            told = why
            if self.stop.wait(self.settings.service.trigger_seconds):
                raise StopRequestedError
        if told:
            self.log("resumed")
        if told or not self._started:
            held.note(self.settings.state.dir, "", now_ms=self.clock.now_ms())
        self._refuse_if_outdated()
        self.blast_radius.go_on()

    def _held(self) -> str:
        """Why nothing is deleted now, for the log; "" where it may go on."""
        limit = self.blast_radius.held()
        self.metrics.tripped(bool(limit))
        if why := self.guards.paused():
            return f"paused: {why}"
        return f"LIMIT REACHED, nothing more is deleted: {limit}. Look, then `ledger-reaper resume`." if limit else ""

    def _refuse_if_outdated(self) -> None:
        if not self.guards.still_mine():
            raise FencedError("another instance of this service has taken over; this one stops")

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise StopRequestedError

    def _describe(self, query: str, batch_id: int, what: str) -> None:
        """What the Spark UI shows beside a job."""
        self.spark.sparkContext.setJobDescription(f"{query}, batch {batch_id}: {what}")

    def _producer_prefix(self) -> str:
        return f"ledger-reaper-{self.settings.service.name}-{self.receipts.table_id}"
