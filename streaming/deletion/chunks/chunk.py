"""Sweeps a chunk: reads what is in use, applies the limits, sweeps in the executors, and commits the receipts.

Nothing of an owner is read before a request for it was admitted (streaming.sweep.messages).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession

from streaming.config.policies import admission_of
from streaming.config.settings import Settings
from streaming.deletion.chunks.held_tenants import HeldTenants
from streaming.deletion.gate import Gate
from streaming.deletion.instance import Identity
from streaming.in_use.baseline import ALL
from streaming.in_use.cache import InUseCache
from streaming.in_use.source_watch import SourceWatch
from streaming.queries.streams import Describe, grouped_by_owner, tasks_for
from streaming.schemas import REQUESTS, RETRY
from streaming.state.receipts import Receipts
from streaming.sweep.measured import Measures, taken
from streaming.sweep.messages import AdmittedOwners, count_requests
from streaming.sweep.task import SweepTask, planned
from udfs.blast_radius import Chunk, DryRunPlan, Planned
from udfs.records import Counts, Reference

_KEYS_PER_CHUNK = 100_000  # owners whose sets are broadcast; executors read the rest themselves


@dataclass(slots=True, kw_only=True)
class ChunkSweep:
    """One per service; the caller must hold the fair lock."""

    spark: SparkSession
    settings: Settings
    identity: Identity
    receipts: Receipts
    owners: "OwnersInUse"
    gate: Gate
    describe: Describe
    measures: Accumulator[Measures]  # of the sweep that runs

    def __call__(self, query: str, batch_id: int, rows: DataFrame, chunk: int) -> None:
        """Sweep rows of a query's batch, and commit their receipts as this chunk; do nothing without rows.

        Raises what Gate.wait_until_open and the executors do; the receipts may be stored even so.
        """
        self.gate.wait_until_open()
        self.describe(query, batch_id, "finding the owners of the requests")
        # decides how the sweep reads a message's properties: this service wrote them only in the retry topic (decision
        # 23)
        kind = RETRY if query == RETRY else REQUESTS
        most_bytes = self.settings.service.max_request_bytes
        # only owners of admitted requests are read: a refused tenant must not make us read others' topics (decision 24)
        asked = count_requests(rows, AdmittedOwners(kind, admission_of(self.settings), most_bytes))
        if not asked.total:
            return
        owners = self.owners(query, asked.by_owner)
        broadcast = self.spark.sparkContext.broadcast((owners.references, owners.baselines))
        parallelism = self.settings.two_phase.ledger_deletion_parallelism
        # ages are judged by the earlier of two clocks, so that a fast clock makes no ledger look old enough (decision
        # 22)
        now_ms = self.gate.coordination.agreed_ms()
        task = SweepTask(
            query=kind,
            batch_id=batch_id,
            chunk=chunk,
            settings=self.settings,
            rules=self.identity.rules,
            owners=broadcast,
            retry_partitions=self.identity.retry_partitions,
            dead_letter_partitions=self.identity.dead_letter_partitions,
            tasks=tasks_for(asked.total, parallelism),
            now_ms=now_ms,
            held=owners.held,
            journal_ahead_ms=max(0, self.gate.coordination.later_ms() - now_ms),
            measures=self.measures,
        )
        # requests of held tenants wait, so they are no deletes that could break a limit
        deletes = {owner: n for owner, n in asked.by_owner.items() if owner[0] not in owners.held}
        try:
            grouped = grouped_by_owner(rows, total=asked.total, parallelism=parallelism)
            task = self._bound(query, task, grouped, deletes)
            self.describe(query, batch_id, f"sweeping {asked.total} requests of {len(owners.references)} owners")
            try:
                self.receipts.append(grouped, chunk, task)
            except Exception:
                # deletes of a chunk without receipts are counted from the journal, which names each before it happens
                # (decision 17)
                self.gate.blast_radius.interrupted()
                raise
        finally:
            broadcast.destroy()
            self.gate.metrics.swept(taken(self.measures))

    def _bound(self, query: str, task: SweepTask, grouped: DataFrame, asked: Planned) -> SweepTask:
        """Return the task with the most that it may delete. Waits while a limit holds the chunk."""

        def plan() -> DryRunPlan:
            self.describe(task.query, task.batch_id, "dry run: how much would be deleted")
            return planned(grouped, task)

        by_task = self.gate.bound(Chunk(query, task.batch_id, task.now_ms), asked, plan)
        if by_task is None:
            return task
        return replace(task, most_deletes=by_task, plan=self.gate.coordination.start_plan())


@dataclass(frozen=True, slots=True)
class KnownOwners:
    """Held tenants, and the in-use sets of other tenants' owners."""

    held: Mapping[str, str]  # tenant -> why it is held
    references: Mapping[str, Reference]  # by reference key
    baselines: Mapping[str, Counts]  # by reference key


@dataclass(slots=True)
class OwnersInUse:
    """Reads what a chunk needs about owners: which tenants are held, and what other tenants' owners refer to.

    One per service; the caller must hold the fair lock.
    """

    cache: InUseCache
    watch: SourceWatch
    gate: Gate
    tenants: HeldTenants

    def __call__(self, query: str, admitted: Iterable[tuple[str, str]]) -> KnownOwners:
        """Read what a query's chunk needs. admitted: (tenant, reference key) of the owners of its admitted requests.

        Raises what Gate.wait_until_open does.
        """
        # first: owners of held tenants are not read, so that their requests wait without costing others a read
        # (decision 21)
        held = self.tenants.now()
        keys = list(islice((key for tenant, key in admitted if tenant not in held), _KEYS_PER_CHUNK))
        references = self.cache.references(keys)
        baselines, doubts = self.watch.before(references, keys)
        # owners of several tenants are gone at once: the sources are doubted, and the chunk waits for the operator
        if doubts.everything:
            self.gate.hold_if_doubted(query, doubts.everything)
            # the operator has resumed, so what was known of all owners no longer counts as the state before
            self.watch.baseline.forget([ALL])
        # these tenants alone explain the loss: they are held, and the requests of others continue
        if doubts.tenants:
            held = self.tenants.hold(doubts.tenants)
        return KnownOwners(held, references, baselines)
