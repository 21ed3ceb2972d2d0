"""What an executor does with a partition of messages: decode, sweep, write receipts.

A SweepTask is pickled to the workers; clients are opened there, once per worker process.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.clients import Clients, clients_for
from streaming.clock import Clock, StartedClock
from streaming.config.policies import admission_of, delays_of
from streaming.config.settings import Settings
from streaming.coordination.pause import Pause
from streaming.in_use.loader import InUseLoader
from streaming.schemas import REQUESTS
from streaming.state.journal import ParquetJournal
from streaming.sweep.dry_run import DryRunObjects, DryRunStore, NoJournal
from streaming.sweep.jobs import Job, Limiter, SweepRules, Swept
from streaming.sweep.ledgers import Sweeper
from streaming.sweep.offload_jobs import ObjectJournal, OffloadRules
from streaming.sweep.offloads import OffloadSweeper
from streaming.sweep.pace import Capped, Pace, Pausable
from streaming.sweep.stores import configuration_for, places_for
from udfs import columns as c
from udfs.admission import admit, first_topic
from udfs.blast_radius import Plan
from udfs.disposition import delay_ms, dispose
from udfs.formats.message_id import message_id_text
from udfs.judge_offload import OffloadPolicy
from udfs.paths import base_topic, topic_of
from udfs.records import Counts, LedgerType, Outcome, PendingDelete, Reason, Reference, Rejection, Verdict
from udfs.retry import ORIGIN_MESSAGE_ID, as_original, attempt_of, dead_letter_properties, retry_properties
from udfs.sightings import OWNER_ABSENT_SINCE, absent_since_ms, signed, subject_of
from udfs.wire import decode


@dataclass(frozen=True, slots=True)
class SweepTask:
    """Everything a worker needs, as plain values.

    owners: a Spark broadcast of (reference by key, counts that were believed by key). now_ms: the time that ages are
    judged by, as the driver and ZooKeeper agree on it; a worker's own clock may be set to anything.
    """

    query: str
    batch_id: int
    chunk: int
    settings: Settings
    rules: SweepRules
    secret: bytes
    owners: Any
    retry_partitions: int
    dead_letter_partitions: int
    tasks: int
    now_ms: int
    most_deletes: tuple[int, ...] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sweep record batches of columns.MESSAGE into record batches of columns.RECEIPT."""
        worker = _Worker(self, clients_for(self.settings), StartedClock(self.now_ms))
        for batch in batches:
            yield pa.RecordBatch.from_pylist(worker.receipts(batch.to_pylist()), schema=schemas.RECEIPT)


@dataclass(frozen=True, slots=True)
class PlanTask:
    """The same without effects: record batches of columns.MESSAGE to counts of columns.PLAN."""

    task: SweepTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count what would be deleted now, by owner."""
        worker = _Worker(self.task, clients_for(self.task.settings), StartedClock(self.task.now_ms), is_dry=True)
        deletes: Counter[tuple[str, str]] = Counter()
        for batch in batches:
            for row in worker.receipts(batch.to_pylist()):
                if row[c.OUTCOME] == Outcome.DELETED:
                    deletes[row[c.TENANT], row[c.REFERENCE_KEY]] += 1
        yield pa.RecordBatch.from_pylist(
            [
                {c.TASK: _task_number(), c.TENANT: tenant, c.REFERENCE_KEY: owner, c.DELETES: n}
                for (tenant, owner), n in deletes.items()
            ],
            schema=schemas.PLAN,
        )


def planned(grouped: DataFrame, task: SweepTask) -> Plan:
    """Run the plan over rows that are grouped as the sweep will have them: task numbers are the same."""
    counts = grouped.mapInArrow(PlanTask(task), from_arrow_schema(schemas.PLAN)).collect()
    by_owner: Counter[tuple[str, str]] = Counter()
    by_task = [0] * task.tasks
    for row in counts:
        by_owner[row[c.TENANT], row[c.REFERENCE_KEY]] += row[c.DELETES]
        by_task[row[c.TASK]] += row[c.DELETES]
    return Plan(by_owner, tuple(by_task))


class _Worker:
    def __init__(self, task: SweepTask, clients: Clients, clock: Clock, *, is_dry: bool = False) -> None:
        settings = task.settings
        loader = InUseLoader(clients.store, clients.broker if settings.safety.ask_broker else None, clock)
        self._loader = loader
        self._journal = ParquetJournal(settings.state.dir, task.query, task.batch_id, clock)
        self._is_dry = is_dry
        self._ledgers = (
            Sweeper(DryRunStore(clients.store), loader, NoJournal(), clock, task.rules)
            if is_dry
            else Sweeper(clients.store, loader, self._journal, clock, task.rules)
        )
        self._objects: OffloadSweeper | None = None
        self._pace: Limiter = Pace(0 if is_dry else settings.limits.deletes_per_second / task.tasks)
        if task.most_deletes is not None and not is_dry:
            self._pace = Capped(self._pace, task.most_deletes[_task_number()])
        if not is_dry:
            self._pace = Pausable(self._pace, Pause(clients.store, settings.zookeeper.own_root).reason)
        self._admission = admission_of(settings)
        self._task = task
        self._clock = clock
        self._last_position: tuple[Any, ...] = ()

    def receipts(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One receipt per message; a message the source delivered twice counts once (rows are sorted)."""
        messages = [row for row in rows if self._is_new(row)]
        requests = [self._request(row) for row in messages]
        jobs = {
            at: self._job(request, messages[at])
            for at, request in enumerate(requests)
            if isinstance(request, PendingDelete)
        }
        swept = self._sweep(jobs)
        return [
            self._receipt(row, request, swept[at] if at in swept else _refused(request))
            for at, (row, request) in enumerate(zip(messages, requests, strict=True))
        ]

    def _job(self, request: PendingDelete, row: Mapping[str, Any]) -> Job:
        believed: Mapping[str, Counts] = self._task.owners.value[1]
        seen_ms = absent_since_ms(self._task.secret, subject_of(request), self._stamped(row))
        return Job(request, seen_ms, believed.get(row[c.REFERENCE_KEY]))

    def _sweep(self, jobs: Mapping[int, Job]) -> dict[int, Swept]:
        """BookKeeper's requests and tiered storage's, each by a sweeper of its own."""
        references: Mapping[str, Reference] = self._task.owners.value[0]
        swept: dict[int, Swept] = {}
        for kind in LedgerType:
            mine = {at: job for at, job in jobs.items() if job.request.ledger_type is kind}
            if mine:
                sweeper = self._ledgers if kind is LedgerType.LEDGER else self._object_sweeper()
                done = sweeper.sweep(list(mine.values()), references, limiter=self._pace)
                swept |= dict(zip(mine, done, strict=True))
        return swept

    def _object_sweeper(self) -> OffloadSweeper:
        """Made when the first request needs it: clusters without tiered storage never pay for it."""
        if self._objects is None:
            settings, rules = self._task.settings, self._task.rules
            policy = OffloadPolicy(
                patience=rules.policy,
                offload_grace_ms=settings.tiered_storage.offload_grace_seconds * 1000,
                cluster=configuration_for(settings).cluster_name(),
            )
            places = places_for(settings, self._loader)
            journal: ObjectJournal = self._journal
            if self._is_dry:
                open_store = places.open_store
                places = replace(places, open_store=lambda bucket: DryRunObjects(open_store(bucket)))
                journal = NoJournal()
            offload_rules = OffloadRules(rules.epoch, policy)
            self._objects = OffloadSweeper(places, self._loader, journal, self._clock, offload_rules)
        return self._objects

    def _is_new(self, row: Mapping[str, Any]) -> bool:
        position = tuple(row[name] for name in c.POSITION)
        fresh = position != self._last_position
        self._last_position = position
        return fresh

    def _request(self, row: Mapping[str, Any]) -> PendingDelete | Rejection:
        request = decode(row[c.PAYLOAD])
        if isinstance(request, Rejection):
            return request
        return admit(request, first_topic(row[c.SOURCE], _properties(row), self._admission), self._admission)

    def _stamped(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Properties as we wrote them: in a request topic anybody could, so there they count for nothing."""
        properties = _properties(row)
        if self._task.query == REQUESTS:
            properties = as_original(properties)
            properties.pop(OWNER_ABSENT_SINCE, None)
        return properties

    def _receipt(self, row: Mapping[str, Any], request: PendingDelete | Rejection, swept: Swept) -> dict[str, Any]:
        properties = self._stamped(row)
        verdict = swept.verdict
        attempt = attempt_of(properties)
        origin = _origin(row, properties, self._task.query)
        settings = self._task.settings.two_phase
        later = dispose(verdict, attempt=attempt, max_retry_delete_count=settings.max_retry_delete_count)
        receipt = {
            c.CHUNK: self._task.chunk,
            c.AT_MS: self._clock.now_ms(),
            c.EPOCH: self._task.rules.epoch[1],
            c.QUERY: self._task.query,
            c.BATCH_ID: self._task.batch_id,
            **{name: row[name] for name in c.POSITION},
            c.ORIGIN_MESSAGE_ID: origin,
            c.REFERENCE_KEY: row[c.REFERENCE_KEY],
            c.TENANT: row[c.TENANT],
            c.OUTCOME: str(later.outcome),
            c.REASON: str(verdict.reason),
            c.DETAIL: verdict.detail,
            c.ATTEMPT: later.attempt,
            c.BYTES: swept.length_bytes,
            c.REFRESHED: swept.refreshed,
            c.SOURCES: swept.sources or None,
            **_identity(decode(row[c.PAYLOAD]) if isinstance(request, Rejection) else request),
        }
        if later.outcome is Outcome.RETRY:
            wait_ms, tries = self._delay(row, verdict, later.attempt)
            copied = retry_properties(
                properties, real_topic=base_topic(row[c.SOURCE]), origin_id=origin, attempt=tries, delay_ms=wait_ms
            )
            receipt |= self._copy(row, self._task.settings.topics.retry, self._sighted(copied, request, swept))
            receipt |= {c.DELAY_MS: wait_ms, c.ATTEMPT: tries}
        elif later.outcome is Outcome.DEAD_LETTER:
            copied = dead_letter_properties(
                properties,
                real_topic=base_topic(row[c.SOURCE]),
                origin_id=origin,
                attempt=later.attempt,
                reason=f"{verdict.reason}: {verdict.detail}" if verdict.detail else str(verdict.reason),
            )
            receipt |= self._copy(row, self._task.settings.topics.dead_letter, copied)
        return receipt

    def _delay(self, row: Mapping[str, Any], verdict: Verdict, attempt: int) -> tuple[int, int]:
        """How long until the next try, and its number: a fresh request's owner may not have written its list yet."""
        settings = self._task.settings.two_phase
        waits = delays_of(self._task.settings)
        later_ms = delay_ms(
            verdict.reason, waits, attempt=attempt, seed=f"{row[c.POSITION_LEDGER]}:{row[c.POSITION_ENTRY]}"
        )
        fresh_ms = row[c.PUBLISH_MS] + settings.send_delay_seconds * 1000 - self._clock.now_ms()
        if self._task.query == REQUESTS and verdict.reason is Reason.IN_USE and fresh_ms > 0:
            return min(waits.base_ms, max(fresh_ms, 1000)), attempt - 1
        return later_ms, attempt

    def _sighted(self, properties: dict[str, str], request: PendingDelete | Rejection, swept: Swept) -> dict[str, str]:
        properties.pop(OWNER_ABSENT_SINCE, None)
        if swept.absent_since_ms is not None and isinstance(request, PendingDelete):
            properties[OWNER_ABSENT_SINCE] = signed(self._task.secret, subject_of(request), swept.absent_since_ms)
        return properties

    def _copy(self, row: Mapping[str, Any], target: str, properties: Mapping[str, str]) -> dict[str, Any]:
        """The message as it will be published; one owner's copies always go to one partition, in order."""
        is_retry = target == self._task.settings.topics.retry
        partitions = self._task.retry_partitions if is_retry else self._task.dead_letter_partitions
        owner = (row[c.REFERENCE_KEY] or row[c.SOURCE]).encode()
        return {
            c.TARGET: target,
            c.TARGET_PARTITION: crc32(owner) % partitions if partitions else -1,
            c.MESSAGE_KEY: row[c.MESSAGE_KEY],
            c.PAYLOAD: row[c.PAYLOAD],
            c.MESSAGE_PROPERTIES: list(properties.items()),
        }


def _task_number() -> int:
    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def _refused(request: PendingDelete | Rejection) -> Swept:
    if not isinstance(request, Rejection):
        raise AssertionError("a request was not swept")
    return Swept(Verdict(Outcome.DEAD_LETTER, request.reason, request.detail))


def _properties(row: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in (row[c.MESSAGE_PROPERTIES] or ()) if value is not None}


def _origin(row: Mapping[str, Any], properties: Mapping[str, str], query: str) -> str:
    """A message in a request topic is an original by definition, whatever its properties claim."""
    own = message_id_text(
        row[c.POSITION_LEDGER], row[c.POSITION_ENTRY], _partition(row[c.SOURCE]), row[c.POSITION_BATCH]
    )
    return own if query == REQUESTS else properties.get(ORIGIN_MESSAGE_ID, own)


def _partition(source: str) -> int:
    _, found, number = source.rpartition("-partition-")
    return int(number) if found and number.isdigit() else -1


def _identity(request: PendingDelete | Rejection) -> dict[str, Any]:
    if isinstance(request, Rejection):
        return {}
    context = request.offload_context
    return {
        c.LEDGER_ID: request.ledger_id,
        c.LEDGER_TYPE: str(request.ledger_type),
        c.COMPONENT: str(request.component),
        c.TOPIC_NAME: topic_of(request.managed_ledger),
        c.UUID: context.uuid if context else None,
    }
