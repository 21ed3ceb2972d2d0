"""Retries that are not due yet: a Delta table beside the receipts, so that no retry waits for the delay of another.

1. A batch of RETRY is written here at once, before any of its messages is processed.
2. Passes ascend in time: each takes the rows whose ready_ms is after the last pass and not after now.
3. A row is removed only after all rows of its pass have receipts. Rows with receipts show how far earlier runs got. A
   new run skips such rows until it has passed the last of them, whatever its clock shows.
4. Each run starts a generation, as a Delta transaction, before it reads. Every append is a later transaction of its
   generation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.transaction import AddAction

from streaming import schemas
from streaming.clock import Clock, SystemClock
from streaming.errors import FencedError, SafetyError
from streaming.state import receipts
from streaming.state.delta.commits import commit, has, written
from streaming.state.delta.delta_tables import (
    Durable,
    Table,
    complete,
    created,
    frame,
    opened,
    refuse_torn,
    scan,
    table_path,
    tidy,
)
from streaming.state.filesystem import shown
from udfs import columns as c
from udfs.requests.retry import ORIGIN_MESSAGE_ID
from udfs.units import MAX_DELAY_MS, MINUTE_MS

if TYPE_CHECKING:  # commands that only count waiting retries start without Spark
    from pyspark.sql import DataFrame, SparkSession

TABLE = "waiting"
_BEFORE_ALL = -1
_APP = "ledger-reaper-waiting"
_SET_BACK_MS = MINUTE_MS  # a clock set back by less only delays retries by that much
_KEEP_HOURS = 1  # for commands that count waiting rows; no pass is under way during prune()
_APPENDS = 1 << 32  # of one generation; the transaction's version is generation * _APPENDS + number


class Waiting:
    """The writer's side of the table. One per service; append(), start_pass() and prune() must not overlap."""

    def __init__(
        self,
        spark: "SparkSession",
        state_dir: str,
        open_table: Callable[[str, str], Table | None] = opened,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._clock = clock or SystemClock()
        self._opened = partial(open_table, state_dir, TABLE)
        self.path = table_path(state_dir, TABLE)
        refuse_torn(self.path)
        table = self._opened()
        if table is None:
            created(self.path, schemas.WAITING, "ledger-reaper waiting retries")
        else:
            complete(table, schemas.WAITING)
        self._pass_ms = self.done_ms = self._receipts_until_ms = _BEFORE_ALL
        self._version = 0
        self._in_doubt: list[AddAction] = []  # files of an append whose outcome is unknown
        self._durable = Durable(self.path)

    def take_over(self, still_mine: Callable[[], bool], without_done: "Callable[[DataFrame], DataFrame]") -> None:
        """Start a generation; once per run, before anything else. Raises FencedError if a newer run has started one.

        Args:
            still_mine: whether this is the newest run.
            without_done: leaves out messages that have a receipt.
        """
        if self._version:
            return
        from pyspark.sql import functions as F

        generation = self._start_generation(still_mine)
        # asked after the commit: either a later run has taken over and this run stops, or that run will see the commit
        if not still_mine():
            raise FencedError("another instance of this service has taken over the waiting retries; this one stops")
        self._bound_delays(self._clock.now_ms(), version=generation * _APPENDS)
        if self.next_ms() is not None:
            rows = self._read().select(c.READY_MS, *c.POSITION)
            done = rows.join(without_done(rows), list(c.POSITION), "left_anti").agg(F.max(c.READY_MS)).first()
            self._receipts_until_ms = _BEFORE_ALL if done is None or done[0] is None else int(done[0])
        self._version = generation * _APPENDS

    def _start_generation(self, still_mine: Callable[[], bool]) -> int:
        while True:
            table = self._existing()
            generation = _version_of(table) // _APPENDS + 1
            try:
                # a run that stalled before this can neither add rows before a newer run's passes nor remove that run's
                # rows
                commit(table, [], schemas.WAITING, _APP, generation * _APPENDS)
            except FencedError:
                # another run may have started a generation in the same moment; the newest instance tries again
                if not still_mine():
                    raise
            else:
                self._durable.sync()
                return generation

    @property
    def may_have_receipts(self) -> bool:
        """Whether earlier runs may have processed rows of the next pass."""
        return self._pass_ms < self._receipts_until_ms

    def append(self, messages: "DataFrame") -> None:
        """Keep messages (schemas.MESSAGE) until they are due; all, or none. Raises FencedError.

        After UnavailableError they may be stored; a second call with all or some of them adds none twice.
        """
        self._require_taken_over()
        table = self._existing()
        # the answer to the last append was lost: if the table has its files, they must not be added twice
        if self._in_doubt and has(table, self._in_doubt):
            self._version += 1
            messages = self.without_held(messages)
        self._in_doubt = []
        self._refuse_other(table, self._version)
        # a message that arrives after its due time is ready after the last pass, so that no pass goes back in time
        ready = _Ready(self._pass_ms + 1, self._clock.now_ms())
        files = written(messages, self.path, schemas.WAITING, ready, version=self._version + 1)
        if files:
            self._in_doubt = files
            commit(table, files, schemas.WAITING, _APP, self._version + 1)
            self._version += 1
            self._in_doubt = []
        self._durable.sync()

    def without_held(self, messages: "DataFrame") -> "DataFrame":
        """Leave out messages that the table has: a batch may come twice."""
        held = self._read().select(*c.POSITION).distinct()
        return messages.join(held, list(c.POSITION), "left_anti")

    def start_pass(self, now_ms: int) -> "DataFrame":
        """Start a pass and return its rows: those due and in no earlier pass of this run, numbered per source."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        self._require_taken_over()
        if self._was_ahead(now_ms):
            # passes start over from before the fast clock's pass; otherwise new messages would wait until that time
            self._start_over()
        self._bound_delays(now_ms, version=self._version)
        until_ms = max(now_ms, self._pass_ms)
        rows = self._read().where((F.col(c.READY_MS) > self._pass_ms) & (F.col(c.READY_MS) <= until_ms))
        self._pass_ms = until_ms
        order = Window.partitionBy(c.SOURCE).orderBy(c.READY_MS, *c.POSITION).rowsBetween(Window.unboundedPreceding, 0)
        # chunks are cut by row numbers, and those of different batches repeat
        return rows.withColumn(c.ROW, F.sum(F.expr(schemas.ROWS)).over(order) - F.lit(1)).drop(c.READY_MS)

    def end_pass(self) -> None:
        """Record that all rows of the pass have receipts."""
        self.done_ms = self._pass_ms

    def abandon_pass(self) -> None:
        """Return the rows of a failed pass to the next pass. Some of them may have receipts."""
        # a part of the pass may have been processed before it failed
        self._receipts_until_ms = max(self._receipts_until_ms, self._pass_ms)
        self._pass_ms = self.done_ms

    def next_ms(self) -> int | None:
        """Return when the next row will be due; None if no row waits. Raises UnavailableError."""
        table = self._opened()
        times = _scan(table, ds.field(c.READY_MS) > self.done_ms, [c.READY_MS])
        least = min((least for batch in times if (least := pc.min(batch.column(0)).as_py()) is not None), default=None)
        now_ms = self._clock.now_ms()
        # if a fast clock dated the rows, the next pass is due now, because start_pass() corrects them
        return now_ms if least is not None and (self._was_ahead(now_ms) or least > now_ms + MAX_DELAY_MS) else least

    def count(self) -> int:
        """Return how many retries wait."""
        table = self._opened()
        waiting = ds.field(c.READY_MS) > self.done_ms
        return sum(batch.num_rows for batch in _scan(table, waiting, [c.READY_MS]))

    def prune(self) -> None:
        """Remove the rows of completed passes, and merge small files. Raises FencedError."""
        table = self._opened()
        if table is not None and self.done_ms > _BEFORE_ALL:
            self._refuse_other(table, self._version)
            # Allowed here, and after any pause: only files of this snapshot lose rows, and those rows have receipts.
            table.delete(f"{c.READY_MS} <= {int(self.done_ms)}")
            tidy(table, _APP, keep_hours=_KEEP_HOURS)
            self._durable.sync()

    def _was_ahead(self, now_ms: int) -> bool:
        """Whether the clock was far ahead at the last pass."""
        return now_ms < self._pass_ms - _SET_BACK_MS

    def _start_over(self) -> None:
        """Remove the rows of completed passes, and let the next pass start from the beginning of time.

        No pass may be under way.
        """
        self.prune()
        self._pass_ms = self.done_ms = _BEFORE_ALL

    def _bound_delays(self, now_ms: int, *, version: int) -> None:
        """Make rows due that would wait longer than the longest delay.

        Args:
            now_ms: the time, in ms since 1970.
            version: that the table's transaction must have; another version is another run's, and this run stops.
        """
        table = self._existing()
        latest_ms = now_ms + MAX_DELAY_MS
        # a clock was fast at the write, or is slow now
        if any(batch.num_rows for batch in _scan(table, ds.field(c.READY_MS) > latest_ms, [c.READY_MS])):
            self._refuse_other(table, version)
            ready_ms = max(now_ms, self._pass_ms + 1)
            table.update(updates={c.READY_MS: str(ready_ms)}, predicate=f"{c.READY_MS} > {latest_ms}")
            self._durable.sync()

    def _require_taken_over(self) -> None:
        if not self._version:
            raise AssertionError("take_over() was not called")

    def _existing(self) -> Table:
        table = self._opened()
        if table is None:
            raise SafetyError(
                f"the retries at {shown(self.path)} vanished while the service runs; restore them, then start again"
            )
        return table

    def _refuse_other(self, table: Table, version: int) -> None:
        if (current := _version_of(table)) != version:
            raise FencedError(
                f"{shown(self.path)} is at transaction {current} of another run, not at {version}; this run stops"
            )

    def _read(self) -> "DataFrame":
        return frame(self._spark, self._existing(), schemas.WAITING)


@dataclass(frozen=True, slots=True)
class _Ready:
    """The work of a task: adds READY_MS, the time from which a pass takes a message: its due time, within two bounds.

    A publisher's clock may be wrong, and must not delay its message. The message was published before we read it, so
    from now on it waits at most its own delay, and at most MAX_DELAY_MS.
    """

    earliest_ms: int  # after the pass that was started last
    now_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            due = batch.column(batch.schema.get_field_index(c.DUE_MS))
            published = batch.column(batch.schema.get_field_index(c.PUBLISH_MS))
            delay = pc.min_element_wise(pc.max_element_wise(pc.subtract(due, published), 0), MAX_DELAY_MS)
            latest = pc.add(delay, self.now_ms)
            bounded = pc.max_element_wise(pc.min_element_wise(due, latest), self.earliest_ms)
            yield pa.RecordBatch.from_arrays(
                [bounded.cast(pa.int64()), *batch.columns], [c.READY_MS, *batch.schema.names]
            )


def outstanding(state_dir: str, *more: str) -> Iterator[dict[str, Any]]:
    """Yield position, READY_MS and the columns `more` of retries without a receipt. Raises UnavailableError."""
    table = opened(state_dir, TABLE)
    held = {_position(row) for batch in _scan(table, None, list(c.POSITION)) for row in batch.to_pylist()}
    if not held:
        return
    # receipts of older ledgers can't belong to these rows, and their files are not opened
    since = ds.field(c.POSITION_LEDGER) >= min(position[1] for position in held)
    for row in receipts.rows(state_dir, since, columns=list(c.POSITION)):
        held.discard(_position(row))
    for batch in _scan(table, None, [*c.POSITION, c.READY_MS, *more]):
        for row in batch.to_pylist():
            if _position(row) in held:
                held.discard(_position(row))
                yield row


def times(state_dir: str, done_ms: int) -> Iterator[pa.Array]:
    """Yield, in arrays, when each row is due (ms since 1970) that is due after done_ms. Raises UnavailableError."""
    for batch in _scan(opened(state_dir, TABLE), ds.field(c.READY_MS) > done_ms, [c.READY_MS]):
        yield batch.column(0)


def origins(state_dir: str, done_ms: int) -> Iterator[list[str]]:
    """Yield, in batches, the original requests' message ids of rows due after done_ms; "" if a message names none.

    Raises UnavailableError.
    """
    table = opened(state_dir, TABLE)
    for batch in _scan(table, ds.field(c.READY_MS) > done_ms, [c.MESSAGE_PROPERTIES]):
        yield [dict(properties or ()).get(ORIGIN_MESSAGE_ID) or "" for properties in batch.column(0).to_pylist()]


def _version_of(table: Table | None) -> int:
    return (table.transaction_version(_APP) or 0) if table is not None else 0


def _position(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in c.POSITION)


def _scan(table: Table | None, condition: Any, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    if table is not None:
        yield from scan(table, condition, columns)
