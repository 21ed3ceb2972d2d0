"""The receipts: a Delta table with the outcome of every request, which is also the outbox of copies to publish.

One chunk of work is one Delta commit. Chunks are numbered, ascending over the life of the table. Copies for RETRY and
DLQ are read back from the commit.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from streaming import schemas
from streaming.errors import SafetyError
from streaming.state.delta.commits import Work, commit, written
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
from udfs.records import Outcome

if TYPE_CHECKING:  # commands that only read receipts start without Spark
    from pyspark.sql import DataFrame, SparkSession

    from udfs.formats.internal_stats import Position

TABLE = "receipts"
_COUNT = "count_all"
_KEEP_HOURS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSummary:
    """Result of a chunk."""

    by_type: Mapping[tuple[str | None, str, str], int]  # (ledger type or None for a non-request, outcome, reason)
    copies: Mapping[str, int]  # by target topic
    deleted_bytes: int  # of deleted ledgers
    has_refreshed: bool
    epochs: frozenset[int]

    @property
    def outcomes(self) -> Counter[tuple[str, str]]:
        """Number of requests by (outcome, reason)."""
        counts: Counter[tuple[str, str]] = Counter()
        for (_ledger_type, outcome, reason), count in self.by_type.items():
            counts[outcome, reason] += count
        return counts

    @property
    def total(self) -> int:
        """Number of requests in the chunk."""
        return sum(self.by_type.values())


class Receipts:
    """The writer's side of the table. One per service; services do not share a table."""

    def __init__(
        self, spark: "SparkSession", state_dir: str, open_table: Callable[[str, str], Table | None] = opened
    ) -> None:
        self._spark = spark
        self._state_dir = state_dir
        self._opened = partial(open_table, state_dir, TABLE)
        self.path = table_path(state_dir, TABLE)
        refuse_torn(self.path)
        table = self._opened() or created(self.path, schemas.RECEIPT, "ledger-reaper receipts")
        complete(table, schemas.RECEIPT)
        self.table_id = str(table.metadata().id)
        self.newest_chunk = _newest_chunk(table)
        self._is_in_doubt = False
        self.sync = Durable(self.path).sync

    def read(self, condition: ds.Expression | None = None) -> "DataFrame":
        """Return all receipts as of now; with a condition, leave out files of which no row can meet it."""
        return frame(self._spark, self._existing(), schemas.RECEIPT, condition)

    def of_chunk(self, chunk: int) -> "DataFrame":
        """Return the receipts of one chunk."""
        from pyspark.sql import functions as F

        # read back from the commit, never taken from the computation: a copy exists only if its receipt does
        return self.read(ds.field(c.CHUNK) == chunk).where(F.col(c.CHUNK) == chunk)

    def append(self, rows: "DataFrame", chunk: int, work: Work | None = None) -> None:
        """Write a chunk. Its receipts are `rows`, or with `work`, what `work` returns for them in Spark's tasks.

        The chunk is the version of the table's transaction, so a second call with the same number does nothing.
        Raises what `work` raises, and FencedError if another run has written since the table was opened. The chunk may
        be stored although an error is raised; catch_up() finds out.
        """
        table, app = self._existing(), _app(self.table_id)
        if (table.transaction_version(app) or 0) < chunk:
            self._is_in_doubt = True
            files = written(rows, self.path, schemas.RECEIPT, work, version=chunk)
            commit(table, files, schemas.RECEIPT, app, chunk)
        self.newest_chunk = max(self.newest_chunk, chunk)
        self._is_in_doubt = False

    def catch_up(self) -> None:
        """After a failed append(), set newest_chunk to that chunk if it was stored and only the answer was lost."""
        if self._is_in_doubt:
            if self.has(self.newest_chunk + 1):
                self.newest_chunk += 1
            self._is_in_doubt = False

    def has(self, chunk: int) -> bool:
        """Whether the chunk was committed."""
        return any(True for _ in self._batches(chunk, [c.CHUNK]))

    def summary(self, chunk: int) -> ChunkSummary:
        """Count a chunk's receipts, one record batch at a time."""
        copies: Counter[str] = Counter()
        deleted_bytes = 0
        has_refreshed = False
        epochs: set[int] = set()
        by_type: Counter[tuple[str | None, str, str]] = Counter()
        keys = [c.OUTCOME, c.REASON, c.REFRESHED, c.TARGET, c.EPOCH, c.LEDGER_TYPE]
        for row in self._counted(chunk, keys, c.BYTES):
            epochs.add(row[c.EPOCH])
            by_type[row[c.LEDGER_TYPE], row[c.OUTCOME], row[c.REASON]] += row[_COUNT]
            has_refreshed = has_refreshed or bool(row[c.REFRESHED])
            if row[c.TARGET]:
                copies[row[c.TARGET]] += row[_COUNT]
            if row[c.OUTCOME] == Outcome.DELETED:
                deleted_bytes += row[f"{c.BYTES}_sum"] or 0
        return ChunkSummary(
            by_type=by_type,
            copies=copies,
            deleted_bytes=deleted_bytes,
            has_refreshed=has_refreshed,
            epochs=frozenset(epochs),
        )

    def _batches(self, chunk: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        # Delta's statistics name the few files that contain the chunk, so no Spark job is needed
        for batch in scan(self._existing(), ds.field(c.CHUNK) == chunk, columns):
            if batch.num_rows:
                yield batch

    def _counted(self, chunk: int, keys: list[str], summed: str = "") -> Iterator[dict[str, Any]]:
        """Count one chunk's rows by `keys` (_COUNT) and sum a column; a group appears once for each record batch."""
        # Arrow counts: converting 50,000 receipts to Python rows would stall every query
        aggregations: list[Any] = [([], _COUNT), *([(summed, "sum")] if summed else ())]
        for batch in self._batches(chunk, [*keys, *([summed] if summed else ())]):
            yield from pa.Table.from_batches([batch]).group_by(keys).aggregate(aggregations).to_pylist()

    def started_ms(self, chunk: int) -> int:
        """Return when a committed chunk was started, in ms since 1970."""
        return int(min(pc.min(batch.column(0)).as_py() for batch in self._batches(chunk, [c.AT_MS])))

    def refreshed_keys(self, chunk: int, limit: int) -> list[str]:
        """Return at most `limit` reference keys whose cached set an executor found stale."""
        keys: dict[str, None] = {}
        for batch in self._batches(chunk, [c.REFERENCE_KEY, c.REFRESHED]):
            keys |= dict.fromkeys(row[c.REFERENCE_KEY] for row in batch.to_pylist() if row[c.REFRESHED])
        return list(keys)[:limit]

    def deleted_by_owner(self, chunk: int) -> Counter[tuple[str, str]]:
        """Count a chunk's deletes by (tenant, owner)."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self._counted(chunk, [c.OUTCOME, c.TENANT, c.REFERENCE_KEY]):
            if row[c.OUTCOME] == Outcome.DELETED:
                counts[row[c.TENANT], row[c.REFERENCE_KEY]] += row[_COUNT]
        return counts

    def without_done(self, messages: "DataFrame", oldest: int | None = None) -> "DataFrame":
        """Leave out messages that have a receipt: after a crash, part of a batch may have been processed already.

        Args:
            messages: rows with columns.POSITION.
            oldest: a ledger before which there is no message, if known.
        """
        from pyspark.sql import functions as F

        if oldest is None:
            least = messages.agg(F.min(c.POSITION_LEDGER)).first()
            if least is None or least[0] is None:
                return messages
            oldest = least[0]
        newer = ds.field(c.POSITION_LEDGER) >= oldest
        # without a receipt as new as the batch, no join is needed
        if not any(True for _ in rows(self._state_dir, newer, columns=[c.POSITION_LEDGER])):
            return messages
        done = self.read(newer).where(F.col(c.POSITION_LEDGER) >= oldest).select(*c.POSITION).distinct()
        entry = (c.SOURCE, c.POSITION_LEDGER, c.POSITION_ENTRY)
        index = F.col(f"done.{c.POSITION_BATCH}")
        # A receipt with index -1 is for a whole entry, of which the broker sent no message at first. It may send the
        # messages later; then the receipt counts for each of them.
        is_done = F.col(f"message.{c.POSITION_BATCH}").eqNullSafe(index) | (index == -1)
        for name in entry:
            is_done &= F.col(f"message.{name}") == F.col(f"done.{name}")
        return messages.alias("message").join(done.alias("done"), is_done, "left_anti")

    def _existing(self) -> Table:
        table = self._opened()
        if table is None:
            raise SafetyError(
                f"the receipts at {shown(self.path)} vanished while the service runs; restore them, then start again"
            )
        return table


def _app(table_id: str) -> str:
    return f"ledger-reaper-{table_id}"  # the application whose transactions the chunks are


def certificates(state_dir: str, condition: Any) -> Iterator[tuple[str, str, int]]:
    """Yield (reference key, certificate of its sources, newest at_ms) of receipts that meet a condition; may repeat."""
    table = opened(state_dir, TABLE)
    if table is None or not _present(table, [c.SOURCES]):
        return
    for batch in scan(table, condition, [c.REFERENCE_KEY, c.SOURCES, c.AT_MS]):
        counted = pa.Table.from_batches([batch]).group_by([c.REFERENCE_KEY, c.SOURCES]).aggregate([(c.AT_MS, "max")])
        for row in counted.to_pylist():
            if row[c.REFERENCE_KEY] and row[c.SOURCES]:
                yield row[c.REFERENCE_KEY], row[c.SOURCES], row[f"{c.AT_MS}_max"]


def newest_retries(state_dir: str) -> Iterator[str | None]:
    """Yield the original message ids of the requests to which the newest chunk gave RETRY. Raises UnavailableError."""
    table = opened(state_dir, TABLE)
    chunk = _committed(table)
    if table is not None and chunk:
        condition = (ds.field(c.CHUNK) == chunk) & (ds.field(c.OUTCOME) == str(Outcome.RETRY))
        for batch in scan(table, condition, [c.ORIGIN_MESSAGE_ID]):
            yield from batch.column(0).to_pylist()


def newest_chunk(state_dir: str) -> int:
    """Return the number of the newest chunk; 0 if there is none. Raises UnavailableError."""
    return _committed(opened(state_dir, TABLE))


def _committed(table: Table | None) -> int:
    return 0 if table is None else table.transaction_version(_app(str(table.metadata().id))) or 0


def _newest_chunk(table: Table) -> int:
    if not table.file_uris():
        return 0
    return max((pc.max(batch.column(0)).as_py() or 0 for batch in scan(table, columns=[c.CHUNK])), default=0)


def rows(state_dir: str, condition: Any = None, *, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows that meet a pyarrow.dataset expression, without Spark. Raises UnavailableError.

    A column that the table of an older version does not have is None.
    """
    table = opened(state_dir, TABLE)
    if table is None:
        return
    present = None if columns is None else _present(table, columns)
    missing = dict.fromkeys(set(columns or ()).difference(present or ()))
    for batch in scan(table, condition, present):
        yield from ({**row, **missing} for row in batch.to_pylist()) if missing else batch.to_pylist()


def _present(table: Table, columns: Collection[str]) -> list[str]:
    """Return the columns that the table has; a table of an older version does not have all."""
    present = {field.name for field in table.schema().fields}
    return [name for name in columns if name in present]


def newest_positions(
    state_dir: str, is_wanted: Callable[[str], bool], condition: Any = None, *, table: str = TABLE
) -> "dict[str, Position]":
    """Return the newest entry that has a receipt, by source, for the sources that are wanted. Raises UnavailableError.

    Sources are full names of partitions. table: another table of messages, instead of the receipts.
    """
    positions: dict[str, Position] = {}
    found = opened(state_dir, table)
    keys = [c.SOURCE, c.POSITION_LEDGER]
    for batch in scan(found, condition, [*keys, c.POSITION_ENTRY]) if found is not None else ():
        for row in pa.Table.from_batches([batch]).group_by(keys).aggregate([(c.POSITION_ENTRY, "max")]).to_pylist():
            source, position = row[c.SOURCE], (row[c.POSITION_LEDGER], row[f"{c.POSITION_ENTRY}_max"])
            if source and is_wanted(source):
                positions[source] = max(position, positions.get(source, position))
    return positions


def newest(
    state_dir: str, condition: Any, *, columns: list[str], most: int
) -> tuple[Counter[tuple[str, str]], list[dict[str, Any]]]:
    """Count the rows that meet a condition by (outcome, reason), and return the newest `most` of them, oldest first.

    Only those are converted to Python rows. Raises UnavailableError.
    """
    outcomes: Counter[tuple[str, str]] = Counter()
    chunks: Counter[int] = Counter()
    if (table := opened(state_dir, TABLE)) is None:
        return outcomes, []
    keys = [c.OUTCOME, c.REASON, c.CHUNK]
    for batch in scan(table, condition, keys):
        for row in pa.Table.from_batches([batch]).group_by(keys).aggregate([([], "count_all")]).to_pylist():
            outcomes[row[c.OUTCOME], row[c.REASON]] += row["count_all"]
            chunks[row[c.CHUNK] or 0] += row["count_all"]
    descending = sorted(chunks, reverse=True)
    enough = zip(descending, accumulate(chunks[chunk] for chunk in descending), strict=True)
    oldest = next((chunk for chunk, since in enough if since >= most), min(chunks, default=0))
    recent = ds.field(c.CHUNK) >= oldest
    present = _present(table, columns)
    candidates = pa.Table.from_batches(
        scan(table, recent if condition is None else condition & recent, present),
        pa.schema([schemas.RECEIPT.field(name) for name in present]),
    )
    order = pc.sort_indices(candidates, sort_keys=[(c.CHUNK, "ascending"), (c.AT_MS, "ascending")])
    blank = dict.fromkeys(columns)
    return outcomes, [blank | row for row in candidates.take(order[-most:]).to_pylist()]


def counted(state_dir: str, condition: Any) -> Iterator[dict[str, Any]]:
    """Yield rows {outcome, count, newest_ms} of receipts that meet a condition; outcomes may repeat.

    Raises UnavailableError.
    """
    table = opened(state_dir, TABLE)
    for batch in scan(table, condition, [c.OUTCOME, c.AT_MS]) if table is not None else ():
        grouped = pa.Table.from_batches([batch]).group_by([c.OUTCOME])
        for row in grouped.aggregate([(c.AT_MS, "count"), (c.AT_MS, "max")]).to_pylist():
            yield {c.OUTCOME: row[c.OUTCOME], "count": row[f"{c.AT_MS}_count"], "newest_ms": row[f"{c.AT_MS}_max"]}


def newest_answers(state_dir: str, origins: Collection[str], since_ms: int) -> dict[str, dict[str, Any]]:
    """Return the newest receipt since then of each request, by its original message id. Raises UnavailableError."""
    condition = ds.field(c.ORIGIN_MESSAGE_ID).isin(sorted(origins)) & (ds.field(c.AT_MS) >= since_ms)
    columns = [c.ORIGIN_MESSAGE_ID, c.CHUNK, c.AT_MS, c.OUTCOME, c.REASON, c.REFERENCE_KEY, c.TOPIC_NAME]
    newest: dict[str, dict[str, Any]] = {}
    for row in rows(state_dir, condition, columns=columns):
        newest_yet = newest.get(row[c.ORIGIN_MESSAGE_ID])
        if newest_yet is None or row[c.CHUNK] >= newest_yet[c.CHUNK]:
            newest[row[c.ORIGIN_MESSAGE_ID]] = row
    return newest


def total(state_dir: str, condition: Any, column: str) -> int:
    """Sum a column over the rows that meet the condition; 0 without rows. Raises UnavailableError."""
    table = opened(state_dir, TABLE)
    if table is None:
        return 0
    return sum(pc.sum(batch.column(0)).as_py() or 0 for batch in scan(table, condition, [column]))


def compact(state_dir: str) -> None:
    """Merge small files, and delete files that no reader of the last two days can need."""
    table = opened(state_dir, TABLE)
    if table is not None:
        tidy(table, _app(str(table.metadata().id)), keep_hours=_KEEP_HOURS)


def expire(state_dir: str, before_ms: int, *, now_ms: int) -> None:
    """Remove receipts older than before_ms, except the newest chunk: its number determines the next one's."""
    table = opened(state_dir, TABLE)
    if table is not None:
        # Chunks are numbered in the order of time, so a receipt after a young one is young too, whatever time a slow
        # clock wrote into it. A receipt dated later than now by a fast clock proves nothing about those after it.
        is_young = (ds.field(c.AT_MS) >= int(before_ms)) & (ds.field(c.AT_MS) <= int(now_ms))
        young = scan(table, is_young, [c.CHUNK])
        first_young = min((pc.min(batch.column(0)).as_py() for batch in young if batch.num_rows), default=None)
        end = _newest_chunk(table) if first_young is None else min(first_young, _newest_chunk(table))
        table.delete(f"{c.AT_MS} < {int(before_ms)} and {c.CHUNK} < {end}")
