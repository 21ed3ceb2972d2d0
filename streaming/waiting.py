"""Retries that are not due yet: a Delta table beside the receipts, so that none waits for another's delay.

1. A batch of RETRY is written here as it comes and committed at once; what happens to it is decided here.
2. Passes ascend in time: each takes the rows whose ready_ms lies behind the last pass and up to now. What arrives
   later than its due time is made ready behind the last pass, so a pass never looks back.
3. A row leaves only after its pass has its receipts. At start nobody knows how far the last pass came: the first one
   leaves out what has a receipt.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from streaming import columns as c
from streaming import receipts
from streaming.tables import opened, table_path

TABLE = "waiting"
_BEFORE_ALL = -1


class Waiting:
    """Writer's side of the table. One per service; append, begin and prune must not overlap (the service's turn)."""

    def __init__(self, spark: SparkSession, state_dir: str) -> None:
        self._spark = spark
        self._state_dir = state_dir
        self.path = table_path(state_dir, TABLE)
        if opened(state_dir, TABLE) is None:
            DeltaTable.create(self.path, c.WAITING, name="ledger-reaper waiting retries")
        self._begun_ms = self.done_ms = _BEFORE_ALL

    def append(self, messages: DataFrame) -> None:
        """Keep messages (columns.MESSAGE) until they are due."""
        ready = F.greatest(F.col(c.DUE_MS), F.lit(self._begun_ms + 1))
        rows = messages.select(ready.alias(c.READY_MS), *c.MESSAGE.names)
        rows.write.format("delta").mode("append").save(self.path)

    def without_held(self, messages: DataFrame) -> DataFrame:
        """Leave out messages that wait here already, or did so: a batch may come twice."""
        held = self._read().select(*c.POSITION).distinct()
        return messages.join(held, list(c.POSITION), "left_anti")

    def begin(self, now_ms: int) -> DataFrame:
        """Begin a pass: what is due and in no earlier pass of this run, each source's rows numbered by due time."""
        until_ms = max(now_ms, self._begun_ms)
        rows = self._read().where((F.col(c.READY_MS) > self._begun_ms) & (F.col(c.READY_MS) <= until_ms))
        self._begun_ms = until_ms
        order = Window.partitionBy(c.SOURCE).orderBy(c.READY_MS, *c.POSITION)
        # row numbers of many batches repeat; chunks are cut by them
        return rows.withColumn(c.ROW, F.row_number().over(order) - F.lit(1)).drop(c.READY_MS)

    def end(self) -> None:
        """The pass that was begun last has its receipts."""
        self.done_ms = self._begun_ms

    def next_ms(self) -> int | None:
        """When the next pass is worth while; None: nothing waits. Raises UnavailableError."""
        table = opened(self._state_dir, TABLE)
        times = _scan(table, ds.field(c.READY_MS) > self.done_ms, [c.READY_MS])
        return min((least for batch in times if (least := pc.min(batch.column(0)).as_py()) is not None), default=None)

    def count(self) -> int:
        """How many wait."""
        table = opened(self._state_dir, TABLE)
        waiting = ds.field(c.READY_MS) > self.done_ms
        return sum(batch.num_rows for batch in _scan(table, waiting, [c.READY_MS]))

    def prune(self) -> None:
        """Remove what passes have done, and merge small files."""
        table = opened(self._state_dir, TABLE)
        if table is not None and self.done_ms > _BEFORE_ALL:
            table.delete(f"{c.READY_MS} <= {int(self.done_ms)}")
            table.optimize.compact()
            table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
            table.create_checkpoint()

    def _read(self) -> DataFrame:
        return self._spark.read.format("delta").load(self.path)


def outstanding(state_dir: str) -> Iterator[dict[str, Any]]:
    """Reader's side, without Spark: rows (columns.WAITING) that have no receipt yet. Raises UnavailableError."""
    table = opened(state_dir, TABLE)
    held = {_position(row) for batch in _scan(table, None, list(c.POSITION)) for row in batch.to_pylist()}
    if not held:
        return
    since = ds.field(c.POSITION_LEDGER) >= min(position[1] for position in held)
    for row in receipts.rows(state_dir, since, columns=list(c.POSITION)):
        held.discard(_position(row))
    for batch in _scan(table, None, None):
        for row in batch.to_pylist():
            if _position(row) in held:
                held.discard(_position(row))
                yield row


def _position(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in c.POSITION)


def _scan(table: DeltaTable | None, condition: Any, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    if table is not None:
        yield from table.to_pyarrow_dataset().to_batches(filter=condition, columns=columns)
