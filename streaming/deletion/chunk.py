"""Sweeps one chunk: asks who is in use, bounds it by the limits, sweeps in the executors, and commits the receipts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from streaming.config.settings import Settings
from streaming.deletion.gate import Gate
from streaming.deletion.instance import Identity
from streaming.in_use.baseline import ALL
from streaming.in_use.cache import InUseCache
from streaming.in_use.watch import SourceWatch
from streaming.queries.streams import Describe
from streaming.queries.transforms import grouped_by_owner, tasks_for
from streaming.schemas import REQUESTS, RETRY
from streaming.state.receipts import Receipts
from streaming.sweep.task import SweepTask, planned
from udfs import columns as c
from udfs.blast_radius import Chunk, Plan
from udfs.records import Counts, Reference

_KEYS_PER_CHUNK = 100_000  # owners whose sets travel with a broadcast; executors read the rest themselves


@dataclass(slots=True)
class ChunkSweep:
    """One per service; only whoever has the turn may call it."""

    spark: SparkSession
    settings: Settings
    identity: Identity
    receipts: Receipts
    cache: InUseCache
    watch: SourceWatch
    gate: Gate
    describe: Describe

    def __call__(self, query: str, batch_id: int, rows: DataFrame, total: int, chunk: int) -> None:
        """Sweep `total` rows of a query's batch, and commit their receipts as this chunk.

        Raises what Gate.wait_until_open and the executors do; the receipts may be stored all the same.
        """
        self.gate.wait_until_open()
        self.describe(query, batch_id, f"in-use sets for {total} requests")
        named = rows.where(F.col(c.REFERENCE_KEY).isNotNull())
        owners = named.groupBy(c.TENANT, c.REFERENCE_KEY).count().collect()
        references, baselines = self._in_use(query, [row[c.REFERENCE_KEY] for row in owners[:_KEYS_PER_CHUNK]])
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
            now_ms=self.gate.coordination.agreed_ms(),
        )
        try:
            grouped = grouped_by_owner(rows, total=total, parallelism=parallelism)
            task = self._bound(query, task, grouped, owners)
            self.describe(query, batch_id, f"sweeping {total} requests of {len(references)} owners")
            try:
                self.receipts.append(grouped.mapInArrow(task, self.receipts.schema), chunk)
            except Exception:
                self.gate.blast_radius.interrupted()
                raise
        finally:
            broadcast.destroy()

    def _in_use(self, query: str, keys: list[str]) -> tuple[Mapping[str, Reference], Mapping[str, Counts]]:
        """Return what these owners refer to, and the baseline of each (streaming.in_use.baseline)."""
        references = self.cache.references(keys)
        baselines, doubt = self.watch.before(references, keys)
        if doubt:
            self.gate.hold_if_doubted(query, doubt)
            self.watch.baseline.forget([ALL])
        return references, baselines

    def _bound(self, query: str, task: SweepTask, grouped: DataFrame, owners: list[Row]) -> SweepTask:
        """The task with the most that it may delete. Waits while a limit holds it."""

        def plan() -> Plan:
            self.describe(task.query, task.batch_id, "dry run: how much would be deleted")
            return planned(grouped, task)

        asked = {(row[c.TENANT], row[c.REFERENCE_KEY]): row["count"] for row in owners}
        return replace(task, most_deletes=self.gate.bound(Chunk(query, task.batch_id, task.now_ms), asked, plan))
