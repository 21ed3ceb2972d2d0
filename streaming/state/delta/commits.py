"""Commits to a Delta table: tasks write Parquet files, and the driver commits all of them, or none.

1. The table contains only the files that a commit names: output of a failed or repeated task is never read.
2. A commit carries a transaction (application, version). The store accepts it only if no other transaction of the
   application was committed since the table was opened. So a batch is stored once, and of two writers one continues.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyarrow.fs import LocalFileSystem

from streaming.errors import FencedError, UnavailableError
from streaming.state.delta.leftovers import file_name
from streaming.state.durable import flush
from streaming.state.filesystem import below, folder_of, open_filesystem, translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streaming.state.delta.delta_tables import Table

_FILE = pa.schema(
    [
        pa.field("path", pa.string()),  # below the table's folder
        pa.field("size", pa.int64()),
        pa.field("modified_ms", pa.int64()),
        pa.field("stats", pa.string()),  # JSON in the form of Delta's protocol ("Per-file Statistics")
    ]
)
_GROUP_ROWS, _GROUP_BYTES = 50_000, 16 * 1024 * 1024
_TRIES = 20
_COMMIT_ID = "ledgerReaperCommit"  # in a commit's information: a random text by which its writer recognises it


class Work(Protocol):
    """Turns the rows of a task into the rows to write: sweep.task.SweepTask for receipts, or state.waiting's _Ready."""

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterator[pa.RecordBatch]:
        """Yield the record batches to write."""
        ...


def written(
    rows: "DataFrame", path: str, schema: pa.Schema, work: Work | None = None, *, version: int | None = None
) -> list[AddAction]:
    """Run a job that writes the output of `work` (default: the rows) to a table's folder, at most one file per task.

    The rows are in the table only after commit(). Raises what `work` raises; UnavailableError if a task can't write.

    Args:
        version: the transaction version that commit() will get; upkeep removes the files if that commit never happens.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    files = rows.mapInArrow(_Writer(path, schema, work, version), from_arrow_schema(_FILE)).collect()
    return [_added(row) for row in files]


def written_here(
    batches: Iterable[pa.RecordBatch], path: str, schema: pa.Schema, *, version: int | None = None
) -> list[AddAction]:
    """Write rows to a table's folder in this process, without Spark: one file, or none if there are no rows.

    The rows are in the table only after commit(). `version` is that of written(). Raises UnavailableError.
    """
    return [_added(row) for files in _Writer(path, schema, None, version)(batches) for row in files.to_pylist()]


def commit(  # noqa: PLR0913  what to commit, and as what
    table: "Table",
    files: Sequence[AddAction],
    schema: pa.Schema,
    app: str,
    version: int,
    *,
    mode: Literal["append", "overwrite"] = "append",
) -> None:
    """Add files to a table in one transaction of an application, and update `table` to that commit.

    Raises FencedError if another transaction of the application was committed since the table was opened, and
    UnavailableError, after which the files may still have been added.

    Args:
        mode: "overwrite" replaces all files of the table.
    """
    transaction_before, version_before = table.transaction_version(app), table.version()
    # The store may accept a commit whose answer is lost, and refuse the next try of the same commit. The id shows which
    # of the commits since then is ours.
    commit_id = uuid4().hex
    properties = CommitProperties(app_transactions=[Transaction(app, version)], custom_metadata={_COMMIT_ID: commit_id})
    try:
        for _ in range(_TRIES):
            try:
                table.create_write_transaction(list(files), mode, schema, commit_properties=properties)
            except CommitFailedError as error:
                refused = error
            else:
                table.update_incremental()
                return
            table.update_incremental()
            if _has_commit(table, commit_id, version_before):  # the store accepted our first try and refused the second
                return
            if (current := table.transaction_version(app)) != transaction_before:
                raise FencedError(f"{table.table_uri} is at transaction {current} of another run; this run stops")
            # the other commit merged files or removed old rows, which does not affect ours
    except FencedError:
        raise
    except Exception as error:
        raise UnavailableError(f"{table.table_uri} can't be written: {error}") from error
    raise UnavailableError(f"{table.table_uri} can't be written: {refused}") from refused


def _has_commit(table: "Table", commit_id: str, version_before: int) -> bool:
    # table.history() would hold the GIL while it waits for the store, and so stop every other thread
    log = folder_of(below(table.location, "_delta_log"))
    commits = (log.read(f"{version:020}.json") or b"" for version in range(version_before + 1, table.version() + 1))
    return any(_commit_id(line) == commit_id for commit in commits for line in commit.splitlines())


def _commit_id(action: bytes) -> str | None:
    information: dict[str, Any] = json.loads(action).get("commitInfo", {})
    return information.get(_COMMIT_ID)


def has(table: DeltaTable, files: Sequence[AddAction]) -> bool:
    """Whether the table had all these files when it was opened."""
    paths = set(table.get_add_actions().column("path").to_pylist())
    return all(file.path in paths for file in files)


def _added(row: Any) -> AddAction:
    return AddAction(
        path=row["path"],
        size=row["size"],
        partition_values={},
        modification_time=row["modified_ms"],
        data_change=True,
        stats=row["stats"],
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    """The work of a task. Yields a record batch of _FILE with one row, or nothing if there are no rows to write."""

    path: str
    schema: pa.Schema
    work: Work | None
    version: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = self.work(iter(batches)) if self.work else batches
        file: _File | None = None
        try:
            for group in _groups(rows, self.schema):
                file = file or _File(self.path, self.schema, self.version)
                file.write(group)
            if file is not None:
                yield pa.RecordBatch.from_pylist([file.close()], schema=_FILE)
        except BaseException:
            if file is not None:
                file.discard()
            raise


class _File:
    """A Parquet file being written. Every method raises UnavailableError if the store refuses."""

    def __init__(self, folder: str, schema: pa.Schema, version: int | None) -> None:
        self._filesystem, root = open_filesystem(folder)
        self._name = file_name(version)
        self._path = f"{root}/{self._name}"
        self._metadata: list[pq.FileMetaData] = []
        with translated(self._path, "written"):
            self._out = self._filesystem.open_output_stream(self._path)
            collector = {"metadata_collector": self._metadata}
            self._writer = pq.ParquetWriter(self._out, schema, compression="zstd", **collector)

    def write(self, group: pa.Table) -> None:
        """Write the rows as one row group."""
        with translated(self._path, "written"):
            self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> dict[str, object]:
        """Return a row of _FILE after the store has the whole file."""
        with translated(self._path, "written"):
            self._writer.close()
            size = self._out.tell()
            self._out.close()
            if isinstance(self._filesystem, LocalFileSystem):
                # before the task reports the file, since a commit may name it then; other stores promise durability
                # with close()
                flush(self._path)
        stats = json.dumps(_statistics(self._metadata[0]))
        return {"path": self._name, "size": size, "modified_ms": time.time_ns() // 1_000_000, "stats": stats}

    def discard(self) -> None:
        """Delete the incomplete file."""
        with contextlib.suppress(OSError, pa.ArrowException):  # no commit names the file, so it may also stay
            self._out.close()
            self._filesystem.delete_file(self._path)


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Combine batches into row groups; a batch larger than a group stays whole."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        if sum(part.num_rows for part in held) >= _GROUP_ROWS or sum(part.nbytes for part in held) >= _GROUP_BYTES:
            yield _table(held, schema)
            held = []
    if held:
        yield _table(held, schema)


def _table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(pa.Table.from_batches([batch]).select(schema.names).cast(schema) for batch in batches)


def _statistics(metadata: pq.FileMetaData) -> dict[str, object]:
    """Return Delta's statistics of a file: the bounds of each integer column, by which readers can skip the file."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for at in range(metadata.num_columns):
        column = metadata.schema.column(at)
        # only whole numbers have statistics: deltalake's own dataset misreads those of texts (docs/findings.md)
        if column.path != column.name or column.physical_type not in ("INT32", "INT64"):
            continue
        statistics = [group.column(at).statistics for group in groups]
        if not all(group is not None and group.has_null_count for group in statistics):
            continue
        nulls[column.name] = sum(group.null_count for group in statistics)
        if limits := [group for group in statistics if group.has_min_max]:
            least[column.name] = min(group.min for group in limits)
            greatest[column.name] = max(group.max for group in limits)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
