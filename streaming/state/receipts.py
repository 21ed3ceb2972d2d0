"""The receipts: a Delta table that says what became of every request, and is the outbox of what is to be published.

One chunk of work is one Delta commit, numbered by us, ascending over the life of the table. What RETRY and DLQ
are sent is read back from the commit, never from the computation: a copy exists only if its receipt does.
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
from streaming.state.commits import Work, commit, written
from streaming.state.filesystem import shown
from streaming.state.tables import Durable, Table, complete, created, frame, opened, refuse_torn, scan, table_path, tidy
from udfs import columns as c
from udfs.records import Outcome

if TYPE_CHECKING:  # whoever only reads receipts starts without Spark
    from pyspark.sql import DataFrame, SparkSession

TABLE = "receipts"
_COUNT = "count_all"
_KEEP_HOURS = 48


@dataclass(frozen=True, slots=True)
class ChunkSummary:
    """What a chunk came to: copies by target topic; bytes of deleted ledgers.

    by_type: (ledger type, outcome, reason) -> how many; the type is None where the message was no request.
    """

    by_type: Mapping[tuple[str | None, str, str], int]
    copies: Mapping[str, int]
    deleted_bytes: int
    has_refreshed: bool
    epochs: frozenset[int]

    @property
    def outcomes(self) -> Counter[tuple[str, str]]:
        """(outcome, reason) -> how many."""
        found: Counter[tuple[str, str]] = Counter()
        for (_ledger_type, outcome, reason), count in self.by_type.items():
            found[outcome, reason] += count
        return found

    @property
    def total(self) -> int:
        """Requests in the chunk."""
        return sum(self.by_type.values())


class Receipts:
    """Writer's side of the table. One per service; not shared between services."""

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
        """All receipts, as of now; where there is a condition, of all files that may have some that meet it."""
        return frame(self._spark, self._existing(), schemas.RECEIPT, condition)

    def of_chunk(self, chunk: int) -> "DataFrame":
        """The receipts of one chunk."""
        from pyspark.sql import functions as F

        return self.read(ds.field(c.CHUNK) == chunk).where(F.col(c.CHUNK) == chunk)

    def append(self, rows: "DataFrame", chunk: int, work: Work | None = None) -> None:
        """Write a chunk: the receipts that `work` makes of rows in the tasks (default: rows are the receipts).

        A second call with the same number does and adds nothing: the chunk is the version of the table's transaction.
        Raises what the work does, and FencedError where another run has written in the meantime. It may be stored
        where an error is raised: catch_up.
        """
        table, app = self._existing(), _app(self.table_id)
        if (table.transaction_version(app) or 0) < chunk:
            self._is_in_doubt = True
            files = written(rows, self.path, schemas.RECEIPT, work, version=chunk)
            commit(table, files, schemas.RECEIPT, app, chunk)
        self.newest_chunk = max(self.newest_chunk, chunk)
        self._is_in_doubt = False

    def catch_up(self) -> None:
        """After an append that failed: have newest_chunk say whether it was stored, and only the answer was lost."""
        if self._is_in_doubt:
            if self.has(self.newest_chunk + 1):
                self.newest_chunk += 1
            self._is_in_doubt = False

    def has(self, chunk: int) -> bool:
        """Whether the chunk was committed."""
        return any(True for _ in self._batches(chunk, [c.CHUNK]))

    def summary(self, chunk: int) -> ChunkSummary:
        """Count a chunk by outcome and reason, record batch by record batch."""
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
        return ChunkSummary(by_type, copies, deleted_bytes, has_refreshed, frozenset(epochs))

    def _batches(self, chunk: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """One chunk's rows; Delta's statistics name the few files that hold them, so no Spark job is needed."""
        for batch in scan(self._existing(), ds.field(c.CHUNK) == chunk, columns):
            if batch.num_rows:
                yield batch

    def _counted(self, chunk: int, keys: list[str], summed: str = "") -> Iterator[dict[str, Any]]:
        """Count one chunk's rows by keys (_COUNT), and sum a column up; a group comes once for each record batch.

        Arrow counts them: made into rows of Python's, 50,000 receipts keep everybody waiting.
        """
        wanted: list[Any] = [([], _COUNT), *([(summed, "sum")] if summed else ())]
        for batch in self._batches(chunk, [*keys, *([summed] if summed else ())]):
            yield from pa.Table.from_batches([batch]).group_by(keys).aggregate(wanted).to_pylist()

    def begun_ms(self, chunk: int) -> int:
        """When a committed chunk was begun, in ms since 1970."""
        return int(min(pc.min(batch.column(0)).as_py() for batch in self._batches(chunk, [c.AT_MS])))

    def refreshed_keys(self, chunk: int, limit: int) -> list[str]:
        """Reference keys whose cached set an executor found stale; at most `limit`."""
        keys: dict[str, None] = {}
        for batch in self._batches(chunk, [c.REFERENCE_KEY, c.REFRESHED]):
            keys |= dict.fromkeys(row[c.REFERENCE_KEY] for row in batch.to_pylist() if row[c.REFRESHED])
        return list(keys)[:limit]

    def deleted_by_owner(self, chunk: int) -> Counter[tuple[str, str]]:
        """How many a chunk deleted, by (tenant, owner)."""
        counted: Counter[tuple[str, str]] = Counter()
        for row in self._counted(chunk, [c.OUTCOME, c.TENANT, c.REFERENCE_KEY]):
            if row[c.OUTCOME] == Outcome.DELETED:
                counted[row[c.TENANT], row[c.REFERENCE_KEY]] += row[_COUNT]
        return counted

    def without_done(self, messages: "DataFrame", oldest: int | None = None) -> "DataFrame":
        """Leave out messages that have a receipt: after a crash, part of a batch may be worked off already.

        A receipt of a whole entry (its index is -1) is one for each message in it: what the broker told nothing of at
        first, it may send later.

        oldest: a ledger before which there is no message, if one is known.
        """
        from pyspark.sql import functions as F

        if oldest is None:
            found = messages.agg(F.min(c.POSITION_LEDGER)).first()
            if found is None or found[0] is None:
                return messages
            oldest = found[0]
        newer = ds.field(c.POSITION_LEDGER) >= oldest
        if not any(True for _ in rows(self._state_dir, newer, columns=[c.POSITION_LEDGER])):
            return messages
        done = self.read(newer).where(F.col(c.POSITION_LEDGER) >= oldest).select(*c.POSITION).distinct()
        entry = (c.SOURCE, c.POSITION_LEDGER, c.POSITION_ENTRY)
        index = F.col(f"done.{c.POSITION_BATCH}")
        is_done = F.col(f"message.{c.POSITION_BATCH}").eqNullSafe(index) | (index == -1)
        for name in entry:
            is_done &= F.col(f"message.{name}") == F.col(f"done.{name}")
        return messages.alias("message").join(done.alias("done"), is_done, "left_anti")

    def _existing(self) -> Table:
        table = self._opened()
        if table is None:
            raise SafetyError(f"the receipts at {shown(self.path)} vanished while the service runs; restore them first")
        return table


def _app(table_id: str) -> str:
    """Whose transactions the chunks are."""
    return f"ledger-reaper-{table_id}"


def certificates(state_dir: str, condition: Any) -> Iterator[tuple[str, str, int]]:
    """(reference key, certificate of its sources, newest at_ms) of receipts that meet a condition; some come twice."""
    table = opened(state_dir, TABLE)
    if table is None or not _present(table, [c.SOURCES]):
        return
    for batch in scan(table, condition, [c.REFERENCE_KEY, c.SOURCES, c.AT_MS]):
        counted = pa.Table.from_batches([batch]).group_by([c.REFERENCE_KEY, c.SOURCES]).aggregate([(c.AT_MS, "max")])
        for row in counted.to_pylist():
            if row[c.REFERENCE_KEY] and row[c.SOURCES]:
                yield row[c.REFERENCE_KEY], row[c.SOURCES], row[f"{c.AT_MS}_max"]


def newest_retries(state_dir: str) -> Iterator[str | None]:
    """Reader's side: message ids of the original requests that the newest chunk put off. Raises UnavailableError."""
    table = opened(state_dir, TABLE)
    chunk = 0 if table is None else table.transaction_version(_app(str(table.metadata().id))) or 0
    if table is not None and chunk:
        condition = (ds.field(c.CHUNK) == chunk) & (ds.field(c.OUTCOME) == str(Outcome.RETRY))
        for batch in scan(table, condition, [c.ORIGIN_MESSAGE_ID]):
            yield from batch.column(0).to_pylist()


def _newest_chunk(table: Table) -> int:
    """From the statistics of the table's files; 0 where there is none."""
    if not table.file_uris():
        return 0
    return max((pc.max(batch.column(0)).as_py() or 0 for batch in scan(table, columns=[c.CHUNK])), default=0)


def rows(state_dir: str, condition: Any = None, *, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Reader's side, without Spark: rows that meet a pyarrow.dataset expression. Raises UnavailableError.

    A column that the table of an older version lacks is None.
    """
    table = opened(state_dir, TABLE)
    if table is None:
        return
    present = None if columns is None else _present(table, columns)
    lacking = dict.fromkeys(set(columns or ()).difference(present or ()))
    for batch in scan(table, condition, present):
        yield from ({**row, **lacking} for row in batch.to_pylist()) if lacking else batch.to_pylist()


def _present(table: Table, columns: Collection[str]) -> list[str]:
    """Those of the columns that the table has; one of an older version lacks some."""
    known = {field.name for field in table.schema().fields}
    return [name for name in columns if name in known]


def newest(
    state_dir: str, condition: Any, *, columns: list[str], most: int
) -> tuple[Counter[tuple[str, str]], list[dict[str, Any]]]:
    """Count by (outcome, reason) the rows that meet a condition; and the newest of them, the oldest first.

    The rest is never made into rows of Python's. Raises UnavailableError.
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
    found = pa.Table.from_batches(
        scan(table, recent if condition is None else condition & recent, present),
        pa.schema([schemas.RECEIPT.field(name) for name in present]),
    )
    order = pc.sort_indices(found, sort_keys=[(c.CHUNK, "ascending"), (c.AT_MS, "ascending")])
    blank = dict.fromkeys(columns)
    return outcomes, [blank | row for row in found.take(order[-most:]).to_pylist()]


def counted(state_dir: str, condition: Any) -> Iterator[dict[str, Any]]:
    """Yield rows {outcome, count, newest_ms} of receipts that meet a condition; one outcome may come several times.

    Raises UnavailableError.
    """
    table = opened(state_dir, TABLE)
    for batch in scan(table, condition, [c.OUTCOME, c.AT_MS]) if table is not None else ():
        grouped = pa.Table.from_batches([batch]).group_by([c.OUTCOME])
        for row in grouped.aggregate([(c.AT_MS, "count"), (c.AT_MS, "max")]).to_pylist():
            yield {c.OUTCOME: row[c.OUTCOME], "count": row[f"{c.AT_MS}_count"], "newest_ms": row[f"{c.AT_MS}_max"]}


def newest_answers(state_dir: str, origins: Collection[str], since_ms: int) -> dict[str, dict[str, Any]]:
    """What was answered last, since then, to each request (by its original message id). Raises UnavailableError."""
    wanted = ds.field(c.ORIGIN_MESSAGE_ID).isin(sorted(origins)) & (ds.field(c.AT_MS) >= since_ms)
    columns = [c.ORIGIN_MESSAGE_ID, c.CHUNK, c.AT_MS, c.OUTCOME, c.REASON, c.REFERENCE_KEY, c.TOPIC_NAME]
    newest: dict[str, dict[str, Any]] = {}
    for row in rows(state_dir, wanted, columns=columns):
        known = newest.get(row[c.ORIGIN_MESSAGE_ID])
        if known is None or row[c.CHUNK] >= known[c.CHUNK]:
            newest[row[c.ORIGIN_MESSAGE_ID]] = row
    return newest


def total(state_dir: str, condition: Any, column: str) -> int:
    """Sum of a column over the rows that meet the condition, without Spark; nothing is 0. Raises UnavailableError."""
    table = opened(state_dir, TABLE)
    if table is None:
        return 0
    return sum(pc.sum(batch.column(0)).as_py() or 0 for batch in scan(table, condition, [column]))


def compact(state_dir: str) -> None:
    """Merge small files and drop those that no reader of the last two days can need."""
    table = opened(state_dir, TABLE)
    if table is not None:
        tidy(table, _app(str(table.metadata().id)), keep_hours=_KEEP_HOURS)


def expire(state_dir: str, before_ms: int, *, now_ms: int) -> None:
    """Remove receipts older than that, but for the newest chunk: its number is what the next one goes on from.

    Chunks are numbered in the order of time. So a receipt after one that stays is as young, whatever a clock that was
    behind wrote into it; one that a clock dated later than now says nothing of those after it.
    """
    table = opened(state_dir, TABLE)
    if table is not None:
        is_young = (ds.field(c.AT_MS) >= int(before_ms)) & (ds.field(c.AT_MS) <= int(now_ms))
        young = scan(table, is_young, [c.CHUNK])
        first_young = min((pc.min(batch.column(0)).as_py() for batch in young if batch.num_rows), default=None)
        end = _newest_chunk(table) if first_young is None else min(first_young, _newest_chunk(table))
        table.delete(f"{c.AT_MS} < {int(before_ms)} and {c.CHUNK} < {end}")
