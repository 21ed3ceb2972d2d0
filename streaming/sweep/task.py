"""The code that a Spark executor runs for each partition of messages: a sweep, or the plan of a sweep.

A SweepTask is pickled and sent to the executors. It opens its clients there, once per worker process.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.adapters.s3 import throttling
from streaming.clients import Clients, clients_for, segment_remover
from streaming.clock import Clock, StartedClock
from streaming.config.policies import admission_of, delays_of
from streaming.config.settings import Settings
from streaming.coordination.own_znodes import signing_key
from streaming.coordination.pause import Pause
from streaming.coordination.plans import is_first_run
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore, SegmentRemover, SweepStore
from streaming.state.journal import ParquetJournal, SnapshotEntry
from streaming.sweep.dry_run import DryRunObjects, DryRunSegments, DryRunStore, NoJournal
from streaming.sweep.jobs import GroupSweeper, Job, Journal, Limiter, SweepRules, Swept
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.measured import Measured, Measures
from streaming.sweep.messages import CopyTopic, Message, ReceiptWriter, RowDecoder, Run
from streaming.sweep.pace import Capped, Pace, Pausable
from streaming.sweep.segment_removal import SegmentSweeper
from streaming.sweep.tiered_storage.buckets import offload_buckets, offload_policy
from streaming.sweep.tiered_storage.offload_jobs import ObjectJournal, OffloadRules
from streaming.sweep.tiered_storage.offloaded import OffloadedCopies
from streaming.sweep.tiered_storage.offloads import OffloadSweeper
from udfs import columns as c
from udfs.blast_radius import DryRunPlan
from udfs.formats.internal_stats import Position
from udfs.owners.references import key_of, tenant_of_key
from udfs.owners.sightings import OWNER_ABSENT_SINCE, absent_since_ms, subject_of
from udfs.records import Counts, LedgerType, Outcome, PendingDelete, Reason, Reference, Rejection, Verdict

# How many requests share round trips; a larger number saves no further round trip.
BATCH_ROWS = 5000
# Enough for BATCH_ROWS ordinary requests. If the rows are larger, a batch has fewer of them.
BATCH_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """Everything a worker needs, as plain values."""

    query: str
    batch_id: int
    chunk: int
    settings: Settings
    rules: SweepRules
    owners: Any  # a Spark broadcast of (references by key, baseline counts by key)
    retry_partitions: int
    dead_letter_partitions: int
    tasks: int
    now_ms: int  # ages are judged by this time, on which driver and ZooKeeper agree; a worker's clock may be wrong
    most_deletes: tuple[int, ...] | None = None  # planned deletes by task number; None: no limit
    plan: str = ""  # the znode that shows a task whether it runs for the first time
    held: Mapping[str, str] = field(default_factory=dict)  # tenant -> reason; nothing of the tenant is read or deleted
    journal_ahead_ms: int = 0  # how far the later of the two clocks is ahead of now_ms
    measures: Accumulator[Measures] | None = None  # adds up what the tasks measure

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sweep record batches of schemas.MESSAGE into record batches of schemas.RECEIPT."""
        worker = worker_for(self, clients_for(self.settings), StartedClock(self.now_ms))
        for rows in row_batches(batches):
            yield pa.RecordBatch.from_pylist(worker.receipts(rows), schema=schemas.RECEIPT)
        if self.measures is not None and isinstance(worker.limiter, Measured):
            self.measures.add(worker.limiter.measures())


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A sweep without effects: record batches of schemas.MESSAGE become counts of schemas.PLAN."""

    task: SweepTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count by owner what a sweep would delete now."""
        worker = worker_for(self.task, clients_for(self.task.settings), StartedClock(self.task.now_ms), is_dry=True)
        deletes: Counter[tuple[str, str]] = Counter()
        for rows in row_batches(batches):
            for row in worker.receipts(rows):
                if row[c.OUTCOME] == Outcome.DELETED:
                    deletes[row[c.TENANT], row[c.REFERENCE_KEY]] += 1
        yield pa.RecordBatch.from_pylist(
            [
                {c.TASK: _task_number(), c.TENANT: tenant, c.REFERENCE_KEY: owner, c.DELETES: n}
                for (tenant, owner), n in deletes.items()
            ],
            schema=schemas.PLAN,
        )


def planned(grouped: DataFrame, task: SweepTask) -> DryRunPlan:
    """Run the plan over rows that are grouped as in the sweep, so that task numbers are the same."""
    counts = grouped.mapInArrow(PlanTask(task), from_arrow_schema(schemas.PLAN)).collect()
    by_owner: Counter[tuple[str, str]] = Counter()
    by_task = [0] * task.tasks
    for row in counts:
        by_owner[row[c.TENANT], row[c.REFERENCE_KEY]] += row[c.DELETES]
        by_task[row[c.TASK]] += row[c.DELETES]
    return DryRunPlan(by_owner, tuple(by_task))


def row_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in order, at most BATCH_ROWS and BATCH_BYTES at a time; a larger record batch stays whole."""
    rows: list[dict[str, Any]] = []
    size = 0
    for batch in batches:
        if rows and (len(rows) + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield rows
            rows, size = [], 0
        rows += batch.to_pylist()
        size += batch.nbytes
    if rows:
        yield rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Processes the messages of one task: a request goes to the sweeper of its ledger type; all get receipts."""

    reader: RowDecoder
    sweepers: Mapping[LedgerType, Callable[[], GroupSweeper]]  # created when the first request needs them
    writer: ReceiptWriter
    owners: tuple[Mapping[str, Reference], Mapping[str, Counts]]  # as in SweepTask
    secret: bytes  # signs sightings (udfs.owners.sightings)
    limiter: Limiter
    held: Mapping[str, str]  # as in SweepTask

    def receipts(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Sweep the requests in rows of schemas.MESSAGE; return a receipt for each message."""
        messages = self.reader.read(rows)
        jobs = {
            at: self._job(message.request, message)
            for at, message in enumerate(messages)
            if isinstance(message.request, PendingDelete)
        }
        # nothing of a held tenant is read: its requests must not cost the others time
        held = self._held_back(jobs) if self.held else {}
        swept = held | self._sweep({at: job for at, job in jobs.items() if at not in held})
        return [
            self.writer.receipt(message, swept[at] if at in swept else _refused(message.request))
            for at, message in enumerate(messages)
        ]

    def _job(self, request: PendingDelete, message: Message) -> Job:
        _references, baselines = self.owners
        seen_ms = None
        if OWNER_ABSENT_SINCE in message.properties:
            seen_ms = absent_since_ms(self.secret, subject_of(request), message.properties)
        return Job(request, seen_ms, baselines.get(message.row[c.REFERENCE_KEY]))

    def _held_back(self, jobs: Mapping[int, Job]) -> dict[int, Swept]:
        """Delay the requests of held tenants, without a read of anything of these tenants."""
        reasons = {at: self.held.get(tenant_of_key(key_of(job.request))) for at, job in jobs.items()}
        return {
            at: Swept(verdict=Verdict(Outcome.RETRY, Reason.TENANT_HELD, why)) for at, why in reasons.items() if why
        }

    def _sweep(self, jobs: Mapping[int, Job]) -> dict[int, Swept]:
        references, _baselines = self.owners
        swept: dict[int, Swept] = {}
        for ledger_type, sweeper in self.sweepers.items():
            group = {at: job for at, job in jobs.items() if job.request.ledger_type is ledger_type}
            if group:
                results = sweeper().sweep(list(group.values()), references, limiter=self.limiter)
                swept |= dict(zip(group, results, strict=True))
        return swept


class _Journals(Journal, ObjectJournal, Protocol):
    """The journal of all kinds of deletes."""

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Make entries for messages of snapshot topics durable."""
        ...

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> Mapping[str, tuple[Position, bytes]]:
        """Return position and bytes of the newest entry of each key that has one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effects:
    """Everything through which a sweep causes effects; in a dry run, parts that cause none."""

    store: SweepStore
    objects: Callable[[ObjectStore], ObjectStore]
    remover: Callable[[Callable[[], AbstractContextManager[SegmentRemover]]], AbstractContextManager[SegmentRemover]]
    journal: _Journals
    limiter: Limiter
    is_dry: bool = False


def worker_for(task: SweepTask, clients: Clients, clock: Clock, *, is_dry: bool = False) -> Worker:
    """Create a worker.

    Raises UnavailableError if ZooKeeper does not return the key that signs sightings.

    Args:
        task: the task.
        clients: the clients of this process.
        clock: the clock.
        is_dry: find out what a sweep would do, and change nothing.
    """
    settings = task.settings
    secret = signing_key(clients.store, settings.zookeeper.own_root)
    loader = InUseLoader(clients.store, clients.broker if settings.safety.ask_broker else None, clock)
    effects = _no_effects(clients) if is_dry else _effects(task, clients, clock)
    sweepers: dict[LedgerType, Callable[[], GroupSweeper]] = {
        LedgerType.LEDGER: cache(
            lambda: Sweeper(
                effects.store,
                loader,
                effects.journal,
                clock,
                task.rules,
                confirm=OffloadedCopies(loader, offload_buckets(settings, loader)),
            )
        ),
        LedgerType.OFFLOAD_LEDGER: cache(lambda: _offload_sweeper(task, loader, effects, clock)),
        LedgerType.COMPACTED_MESSAGE: cache(lambda: _snapshot_sweeper(task, loader, effects, clock)),
        LedgerType.SEGMENT: cache(
            lambda: SegmentSweeper(
                effects.store,
                loader,
                effects.journal,
                clock,
                task.rules,
                open_remover=partial(effects.remover, partial(segment_remover, settings)),
            )
        ),
    }
    writer = ReceiptWriter(
        run=Run(task.rules.epoch[1], task.query, task.batch_id, task.chunk),
        two_phase=settings.two_phase,
        delays=delays_of(settings),
        retry=CopyTopic(settings.topics.retry, task.retry_partitions),
        dead_letter=CopyTopic(settings.topics.dead_letter, task.dead_letter_partitions),
        secret=secret,
        clock=clock,
    )
    reader = RowDecoder(task.query, admission_of(settings), settings.service.max_request_bytes)
    return Worker(
        reader=reader,
        sweepers=sweepers,
        writer=writer,
        owners=task.owners.value,
        secret=secret,
        limiter=effects.limiter,
        held=task.held,
    )


def _effects(task: SweepTask, clients: Clients, clock: Clock) -> _Effects:
    settings = task.settings
    pace = Pace(settings.limits.deletes_per_second / task.tasks)
    limiter: Limiter = pace
    if task.most_deletes is not None:
        number = _task_number()
        # A repeated task may delete nothing. Only the journal has the deletes of its earlier run, and the driver reads
        # the journal when it plans again.
        is_first = is_first_run(clients.store, task.plan, number)
        limiter = Capped(limiter, task.most_deletes[number] if is_first else 0)
    limiter = Pausable(limiter, Pause(clients.store, settings.zookeeper.own_root).reason)
    limiter = Measured(limiter, pace, throttling.count)
    journal = ParquetJournal(settings.state_dir, task.query, task.batch_id, clock, ahead_ms=task.journal_ahead_ms)
    return _Effects(
        store=clients.store,
        objects=lambda store: store,
        remover=lambda opened: opened(),
        journal=journal,
        limiter=limiter,
    )


def _no_effects(clients: Clients) -> _Effects:
    store = DryRunStore(clients.store)
    return _Effects(
        store=store,
        objects=DryRunObjects,
        remover=lambda _opened: nullcontext(DryRunSegments(store)),
        journal=NoJournal(),
        limiter=Pace(0),
        is_dry=True,
    )


def _offload_sweeper(task: SweepTask, loader: InUseLoader, effects: _Effects, clock: Clock) -> OffloadSweeper:
    settings = task.settings
    grace_ms = settings.tiered_storage.offload_grace_seconds * 1000
    buckets = offload_buckets(settings, loader)
    policy = offload_policy(buckets.configuration, task.rules.policy, offload_grace_ms=grace_ms)
    open_store = buckets.open_store
    buckets = replace(buckets, open_store=lambda bucket: effects.objects(open_store(bucket)))
    rules = OffloadRules(task.rules.epoch, policy, task.rules.layout, task.rules.ledgers_root)
    return OffloadSweeper(buckets, loader, effects.journal, clock, rules)


def _snapshot_sweeper(task: SweepTask, loader: InUseLoader, effects: _Effects, clock: Clock) -> GroupSweeper:
    # few batches have snapshot requests, and the codecs of their values take a while to load
    from streaming.sweep.snapshots.snapshot_jobs import Snapshots
    from streaming.sweep.snapshots.snapshot_stores import DryRunSnapshots, snapshots_for
    from streaming.sweep.snapshots.snapshot_sweep import SnapshotSweeper

    @contextmanager
    def opened() -> Iterator[Snapshots]:
        with snapshots_for(task.settings) as topics:
            yield DryRunSnapshots(topics) if effects.is_dry else topics

    return SnapshotSweeper(opened, loader, effects.journal, clock, task.rules)


def _task_number() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _refused(request: PendingDelete | Rejection) -> Swept:
    if not isinstance(request, Rejection):
        raise AssertionError(f"{request} was not swept")
    return Swept(verdict=Verdict(Outcome.DEAD_LETTER, request.reason, request.detail))
