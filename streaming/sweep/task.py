"""What runs in a Spark executor for each partition of messages: a sweep, or the plan of one.

A SweepTask is pickled and sent to the executors. It opens its clients there, once per worker process.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.clients import Clients, clients_for
from streaming.clock import Clock, StartedClock
from streaming.config.policies import admission_of, delays_of
from streaming.config.settings import Settings
from streaming.coordination.own_znodes import signing_key
from streaming.coordination.pause import Pause
from streaming.coordination.plans import is_first_run
from streaming.in_use.loader import InUseLoader
from streaming.ports import ObjectStore, SweepStore
from streaming.state.journal import ParquetJournal, SnapshotEntry
from streaming.sweep.buckets import offload_policy
from streaming.sweep.dry_run import DryRunObjects, DryRunStore, NoJournal
from streaming.sweep.jobs import GroupSweeper, Job, Journal, Limiter, SweepRules, Swept
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.lots import lots
from streaming.sweep.messages import Message, MessageReader
from streaming.sweep.offload_jobs import ObjectJournal, OffloadRules
from streaming.sweep.offloaded import OffloadedCopies
from streaming.sweep.offloads import OffloadSweeper
from streaming.sweep.pace import Capped, Pace, Pausable
from streaming.sweep.receipt import CopyTopic, ReceiptWriter, Run
from streaming.sweep.stores import places_for
from udfs import columns as c
from udfs.blast_radius import DryRunPlan
from udfs.formats.internal_stats import Position
from udfs.records import Counts, LedgerType, Outcome, PendingDelete, Reason, Reference, Rejection, Verdict
from udfs.references import key_of, tenant_of_key
from udfs.sightings import absent_since_ms, subject_of


@dataclass(frozen=True, slots=True)
class SweepTask:
    """Everything a worker needs, as plain values.

    owners: a Spark broadcast of (references by key, baseline counts by key). now_ms: the time that ages are judged by,
    on which the driver and ZooKeeper agree; a worker's own clock may be wrong. most_deletes: by task number, how many
    deletes were planned (None: no limit). plan: the znode at which tasks ask whether they run for the first time.
    held: why each tenant is held of which nothing may be looked at or deleted.
    """

    query: str
    batch_id: int
    chunk: int
    settings: Settings
    rules: SweepRules
    owners: Any
    retry_partitions: int
    dead_letter_partitions: int
    tasks: int
    now_ms: int
    most_deletes: tuple[int, ...] | None = None
    plan: str = ""
    held: Mapping[str, str] = field(default_factory=dict)
    journal_ahead_ms: int = 0  # how far the later of the two clocks is ahead of now_ms

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sweep record batches of schemas.MESSAGE into record batches of schemas.RECEIPT."""
        worker = worker_for(self, clients_for(self.settings), StartedClock(self.now_ms))
        for rows in lots(batches):
            yield pa.RecordBatch.from_pylist(worker.receipts(rows), schema=schemas.RECEIPT)


@dataclass(frozen=True, slots=True)
class PlanTask:
    """The same sweep without effects: record batches of schemas.MESSAGE become counts of schemas.PLAN."""

    task: SweepTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count by owner what a sweep would delete now."""
        worker = worker_for(self.task, clients_for(self.task.settings), StartedClock(self.task.now_ms), is_dry=True)
        deletes: Counter[tuple[str, str]] = Counter()
        for rows in lots(batches):
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
    """Run the plan over rows that are grouped as the sweep will have them: task numbers are the same."""
    counts = grouped.mapInArrow(PlanTask(task), from_arrow_schema(schemas.PLAN)).collect()
    by_owner: Counter[tuple[str, str]] = Counter()
    by_task = [0] * task.tasks
    for row in counts:
        by_owner[row[c.TENANT], row[c.REFERENCE_KEY]] += row[c.DELETES]
        by_task[row[c.TASK]] += row[c.DELETES]
    return DryRunPlan(by_owner, tuple(by_task))


@dataclass(frozen=True, slots=True)
class Worker:
    """Works off the messages of one task: each request goes to the sweeper of its ledger type, each gets a receipt.

    sweepers: made when the first request needs them. owners, held: as in SweepTask. secret: signs sightings
    (udfs.sightings).
    """

    reader: MessageReader
    sweepers: Mapping[LedgerType, Callable[[], GroupSweeper]]
    writer: ReceiptWriter
    owners: tuple[Mapping[str, Reference], Mapping[str, Counts]]
    secret: bytes
    limiter: Limiter
    held: Mapping[str, str]

    def receipts(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Sweep the requests in rows of schemas.MESSAGE; return a receipt for each message."""
        messages = self.reader.read(rows)
        jobs = {
            at: self._job(message.request, message)
            for at, message in enumerate(messages)
            if isinstance(message.request, PendingDelete)
        }
        held = self._put_off(jobs) if self.held else {}
        swept = held | self._sweep({at: job for at, job in jobs.items() if at not in held})
        return [
            self.writer.receipt(message, swept[at] if at in swept else _refused(message.request))
            for at, message in enumerate(messages)
        ]

    def _job(self, request: PendingDelete, message: Message) -> Job:
        _references, baselines = self.owners
        seen_ms = absent_since_ms(self.secret, subject_of(request), message.properties)
        return Job(request, seen_ms, baselines.get(message.row[c.REFERENCE_KEY]))

    def _put_off(self, jobs: Mapping[int, Job]) -> dict[int, Swept]:
        """Put off the requests of held tenants, without a look at anything of theirs."""
        whys = {at: self.held.get(tenant_of_key(key_of(job.request))) for at, job in jobs.items()}
        return {at: Swept(Verdict(Outcome.RETRY, Reason.TENANT_HELD, why)) for at, why in whys.items() if why}

    def _sweep(self, jobs: Mapping[int, Job]) -> dict[int, Swept]:
        references, _baselines = self.owners
        swept: dict[int, Swept] = {}
        for kind, sweeper in self.sweepers.items():
            mine = {at: job for at, job in jobs.items() if job.request.ledger_type is kind}
            if mine:
                done = sweeper().sweep(list(mine.values()), references, limiter=self.limiter)
                swept |= dict(zip(mine, done, strict=True))
        return swept


class _Journals(Journal, ObjectJournal, Protocol):
    """The journal of all kinds of deletes."""

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Make entries of snapshots' messages durable."""
        ...

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> Mapping[str, tuple[Position, bytes]]:
        """Return place and bytes of what was last written of keys."""
        ...


@dataclass(frozen=True, slots=True)
class _Effects:
    """All that a sweep changes anything through; in a dry run nothing stands behind it."""

    store: SweepStore
    objects: Callable[[ObjectStore], ObjectStore]
    journal: _Journals
    limiter: Limiter
    is_dry: bool = False


def worker_for(task: SweepTask, clients: Clients, clock: Clock, *, is_dry: bool = False) -> Worker:
    """Put a worker together. is_dry: it finds out what a sweep would do, and changes nothing.

    Raises UnavailableError where ZooKeeper does not hand over the key of the sightings.
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
                confirm=OffloadedCopies(loader, places_for(settings, loader)),
            )
        ),
        LedgerType.OFFLOAD_LEDGER: cache(lambda: _offload_sweeper(task, loader, effects, clock)),
        LedgerType.COMPACTED_MESSAGE: cache(lambda: _snapshot_sweeper(task, loader, effects, clock)),
    }
    writer = ReceiptWriter(
        Run(task.rules.epoch[1], task.query, task.batch_id, task.chunk),
        settings.two_phase,
        delays_of(settings),
        CopyTopic(settings.topics.retry, task.retry_partitions),
        CopyTopic(settings.topics.dead_letter, task.dead_letter_partitions),
        secret,
        clock,
    )
    reader = MessageReader(task.query, admission_of(settings), settings.service.max_request_bytes)
    return Worker(reader, sweepers, writer, task.owners.value, secret, effects.limiter, task.held)


def _effects(task: SweepTask, clients: Clients, clock: Clock) -> _Effects:
    settings = task.settings
    limiter: Limiter = Pace(settings.limits.deletes_per_second / task.tasks)
    if task.most_deletes is not None:
        number = _task_number()
        # only the journal knows what an earlier run of the task has deleted, and the driver reads that to plan again
        is_first = is_first_run(clients.store, task.plan, number)
        limiter = Capped(limiter, task.most_deletes[number] if is_first else 0)
    limiter = Pausable(limiter, Pause(clients.store, settings.zookeeper.own_root).reason)
    journal = ParquetJournal(settings.state_dir, task.query, task.batch_id, clock, ahead_ms=task.journal_ahead_ms)
    return _Effects(clients.store, lambda store: store, journal, limiter)


def _no_effects(clients: Clients) -> _Effects:
    return _Effects(DryRunStore(clients.store), DryRunObjects, NoJournal(), Pace(0), is_dry=True)


def _offload_sweeper(task: SweepTask, loader: InUseLoader, effects: _Effects, clock: Clock) -> OffloadSweeper:
    settings = task.settings
    grace_ms = settings.tiered_storage.offload_grace_seconds * 1000
    places = places_for(settings, loader)
    policy = offload_policy(places.configuration, task.rules.policy, offload_grace_ms=grace_ms)
    open_store = places.open_store
    places = replace(places, open_store=lambda bucket: effects.objects(open_store(bucket)))
    rules = OffloadRules(task.rules.epoch, policy, task.rules.layout, task.rules.ledgers_root)
    return OffloadSweeper(places, loader, effects.journal, clock, rules)


def _snapshot_sweeper(task: SweepTask, loader: InUseLoader, effects: _Effects, clock: Clock) -> GroupSweeper:
    # few batches have such requests, and the codecs of their values take a while to load
    from streaming.sweep.snapshot_stores import DryRunSnapshots, snapshots_for
    from streaming.sweep.snapshots import Snapshots, SnapshotSweeper

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
    return Swept(Verdict(Outcome.DEAD_LETTER, request.reason, request.detail))
