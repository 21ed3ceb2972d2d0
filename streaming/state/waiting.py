"""Retries that are not due yet: a Delta table beside the receipts, so that none waits for another's delay.

1. A batch of RETRY is written here as it comes and committed at once; what happens to it is decided here.
2. Passes ascend in time: each takes the rows whose ready_ms lies behind the last pass and up to now. What arrives
   later than its due time is made ready behind the last pass, so a pass never looks back.
   Where a clock was ahead at the last pass, passes start over before it; no row waits longer than any delay is.
3. A row leaves only after its pass has its receipts. How far passes of earlier runs came is where rows have receipts:
   passes of a run leave such rows out until they are behind the last of them, whatever its clock says.
4. Each run begins a generation, as a Delta transaction, before it reads. Every append is a later transaction of its
   generation, so that a run which stalled can neither add rows behind a newer one's passes nor remove that one's.
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
from streaming.state.commits import commit, has, written
from streaming.state.filesystem import shown
from streaming.state.tables import Durable, Table, complete, created, frame, opened, refuse_torn, scan, table_path, tidy
from udfs import columns as c
from udfs.retry import MAX_DELAY_MS, ORIGIN_MESSAGE_ID
from udfs.units import MINUTE_MS

if TYPE_CHECKING:  # whoever only counts what waits starts without Spark
    from pyspark.sql import DataFrame, SparkSession

TABLE = "waiting"
_BEFORE_ALL = -1
_APP = "ledger-reaper-waiting"
_SET_BACK_MS = MINUTE_MS  # a clock that is set back by less delays retries by as much
_KEEP_HOURS = 1  # for those who count what waits; whoever works rows off does not prune meanwhile
_APPENDS = 1 << 32  # of one generation; the transaction's version is generation * that + number


class Waiting:
    """Writer's side of the table. One per service; append, begin and prune must not overlap (the service's turn)."""

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
        self._begun_ms = self.done_ms = self._receipts_until_ms = _BEFORE_ALL
        self._version = 0
        self._in_doubt: list[AddAction] = []  # of an append whose answer did not come
        self._durable = Durable(self.path)

    def take_over(self, still_mine: Callable[[], bool], without_done: "Callable[[DataFrame], DataFrame]") -> None:
        """Begin a generation; once a run, before anything else. Raises FencedError where a newer run has.

        still_mine: whether this is the newest run. without_done: leaves out messages that have a receipt.
        """
        if self._version:
            return
        from pyspark.sql import functions as F

        begun = self._begin_generation(still_mine)
        if not still_mine():  # after the commit: whoever comes later must see it, or be refused
            raise FencedError("another instance of this service has taken over the waiting retries; this one stops")
        self._bring_back(self._clock.now_ms(), version=begun * _APPENDS)
        if self.next_ms() is not None:
            rows = self._read().select(c.READY_MS, *c.POSITION)
            done = rows.join(without_done(rows), list(c.POSITION), "left_anti").agg(F.max(c.READY_MS)).first()
            self._receipts_until_ms = _BEFORE_ALL if done is None or done[0] is None else int(done[0])
        self._version = begun * _APPENDS

    def _begin_generation(self, still_mine: Callable[[], bool]) -> int:
        while True:
            table = self._existing()
            begun = _version_of(table) // _APPENDS + 1
            try:
                commit(table, [], schemas.WAITING, _APP, begun * _APPENDS)
            except FencedError:
                if not still_mine():
                    raise
            else:
                self._durable.sync()
                return begun

    @property
    def may_have_receipts(self) -> bool:
        """Whether earlier runs may have worked off rows of the next pass."""
        return self._begun_ms < self._receipts_until_ms

    def append(self, messages: "DataFrame") -> None:
        """Keep messages (schemas.MESSAGE) until they are due; all, or none. Raises FencedError.

        UnavailableError: they may be kept all the same; a second try with them, or with some of them, adds none twice.
        """
        self._require_taken_over()
        table = self._existing()
        if self._in_doubt and has(table, self._in_doubt):
            self._version += 1
            messages = self.without_held(messages)
        self._in_doubt = []
        self._refuse_other(table, self._version)
        ready = _Ready(self._begun_ms + 1, self._clock.now_ms())
        files = written(messages, self.path, schemas.WAITING, ready, version=self._version + 1)
        if files:
            self._in_doubt = files
            commit(table, files, schemas.WAITING, _APP, self._version + 1)
            self._version += 1
            self._in_doubt = []
        self._durable.sync()

    def without_held(self, messages: "DataFrame") -> "DataFrame":
        """Leave out messages that wait here already, or did so: a batch may come twice."""
        held = self._read().select(*c.POSITION).distinct()
        return messages.join(held, list(c.POSITION), "left_anti")

    def begin(self, now_ms: int) -> "DataFrame":
        """Begin a pass: what is due and in no earlier pass of this run, each source's rows numbered by due time."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        self._require_taken_over()
        if self._was_ahead(now_ms):
            self._start_over()
        self._bring_back(now_ms, version=self._version)
        until_ms = max(now_ms, self._begun_ms)
        rows = self._read().where((F.col(c.READY_MS) > self._begun_ms) & (F.col(c.READY_MS) <= until_ms))
        self._begun_ms = until_ms
        order = Window.partitionBy(c.SOURCE).orderBy(c.READY_MS, *c.POSITION).rowsBetween(Window.unboundedPreceding, 0)
        # row numbers of many batches repeat; chunks are cut by them
        return rows.withColumn(c.ROW, F.sum(F.expr(schemas.ROWS)).over(order) - F.lit(1)).drop(c.READY_MS)

    def end(self) -> None:
        """The pass that was begun last has its receipts."""
        self.done_ms = self._begun_ms

    def give_back(self) -> None:
        """The pass that was begun last broke off: its rows are in the next one, and some may have their receipts."""
        self._receipts_until_ms = max(self._receipts_until_ms, self._begun_ms)
        self._begun_ms = self.done_ms

    def next_ms(self) -> int | None:
        """When the next pass is worth while; None: nothing waits. Raises UnavailableError."""
        table = self._opened()
        times = _scan(table, ds.field(c.READY_MS) > self.done_ms, [c.READY_MS])
        least = min((least for batch in times if (least := pc.min(batch.column(0)).as_py()) is not None), default=None)
        now_ms = self._clock.now_ms()
        # begin() then corrects what was dated by a clock that was ahead
        return now_ms if least is not None and (self._was_ahead(now_ms) or least > now_ms + MAX_DELAY_MS) else least

    def count(self) -> int:
        """How many wait."""
        table = self._opened()
        waiting = ds.field(c.READY_MS) > self.done_ms
        return sum(batch.num_rows for batch in _scan(table, waiting, [c.READY_MS]))

    def prune(self) -> None:
        """Remove what passes have done, and merge small files. Raises FencedError."""
        table = self._opened()
        if table is not None and self.done_ms > _BEFORE_ALL:
            self._refuse_other(table, self._version)
            # Allowed here, and after any pause: only files of this very snapshot lose rows, and those have receipts.
            table.delete(f"{c.READY_MS} <= {int(self.done_ms)}")
            tidy(table, _APP, keep_hours=_KEEP_HOURS)
            self._durable.sync()

    def _was_ahead(self, now_ms: int) -> bool:
        """Whether the clock was far ahead at the last pass: what arrives would wait until that time comes."""
        return now_ms < self._begun_ms - _SET_BACK_MS

    def _start_over(self) -> None:
        """Remove what passes have done, and let the next one begin before the last. None may be under way."""
        self.prune()
        self._begun_ms = self.done_ms = _BEFORE_ALL

    def _bring_back(self, now_ms: int, *, version: int) -> None:
        """Make ready what would wait longer than any delay is: a clock was ahead when it was written, or is behind now.

        version: that the table's transaction must have, else another run has it.
        """
        table = self._existing()
        latest_ms = now_ms + MAX_DELAY_MS
        if any(batch.num_rows for batch in _scan(table, ds.field(c.READY_MS) > latest_ms, [c.READY_MS])):
            self._refuse_other(table, version)
            ready_ms = max(now_ms, self._begun_ms + 1)
            table.update(updates={c.READY_MS: str(ready_ms)}, predicate=f"{c.READY_MS} > {latest_ms}")
            self._durable.sync()

    def _require_taken_over(self) -> None:
        if not self._version:
            raise AssertionError("take_over comes first")

    def _existing(self) -> Table:
        table = self._opened()
        if table is None:
            raise SafetyError(f"the retries at {shown(self.path)} vanished while the service runs; restore them first")
        return table

    def _refuse_other(self, table: Table, version: int) -> None:
        if (found := _version_of(table)) != version:
            raise FencedError(
                f"{shown(self.path)} is at transaction {found} of another run, not at {version}; this one stops"
            )

    def _read(self) -> "DataFrame":
        return frame(self._spark, self._existing(), schemas.WAITING)


@dataclass(frozen=True, slots=True)
class _Ready:
    """What a task does: says from when on a message is ready. That is when it is due, but for two bounds.

    Any publisher's clock may be wrong, and its message must not wait for that. It was published before we read it: from
    now on it waits its own delay at most, and never more than a week.
    """

    earliest_ms: int  # after the pass that was begun last
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
    """Reader's side, without Spark: position, READY_MS and `more` columns of what has no receipt yet.

    Raises UnavailableError.
    """
    table = opened(state_dir, TABLE)
    held = {_position(row) for batch in _scan(table, None, list(c.POSITION)) for row in batch.to_pylist()}
    if not held:
        return
    since = ds.field(c.POSITION_LEDGER) >= min(position[1] for position in held)
    for row in receipts.rows(state_dir, since, columns=list(c.POSITION)):
        held.discard(_position(row))
    for batch in _scan(table, None, [*c.POSITION, c.READY_MS, *more]):
        for row in batch.to_pylist():
            if _position(row) in held:
                held.discard(_position(row))
                yield row


def origins(state_dir: str, done_ms: int) -> Iterator[list[str]]:
    """Reader's side: message ids of the original requests of what is ready after done_ms, some at a time.

    "" where a message names none. Raises UnavailableError.
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
