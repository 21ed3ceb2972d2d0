"""Delta tables of the state directory: opened without Spark, read by pyarrow, and durable through a power loss."""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from pyarrow.fs import LocalFileSystem

from streaming.errors import SafetyError, UnavailableError
from streaming.state.delta.leftovers import remove_leftovers
from streaming.state.delta.object_store_options import options_of, set_region
from streaming.state.delta.spark_files import read_files
from streaming.state.filesystem import below, open_filesystem, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Batches = Iterator[pa.RecordBatch]

_PARQUET = b"PAR1"
_NAMES = re.compile(r"\w+")
_LEAST = "min."  # deltalake's columns with the least values of each file have this prefix
_AHEAD = {"fragment_readahead": 8, "batch_readahead": 4}
_FOOTERS_AT_ONCE = 16
# From an object store we read the columns of a file in one request: reading the gaps between them costs less than
# further requests.
_FROM_AFAR = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(
        pre_buffer=True, cache_options=pa.CacheOptions(hole_size_limit=1024 * 1024, range_size_limit=32 * 1024 * 1024)
    )
)
_NOT_FLUSHED = 3  # tidy() makes at most this many commits between two flushes


class Table(DeltaTable):
    """A table that knows its whole location: `table_uri` does not contain the store's options."""

    def __init__(self, location: str) -> None:
        set_region(location)
        super().__init__(shown(location), storage_options=options_of(location))
        self.location = location


def created(
    location: str, schema: pa.Schema, name: str, configuration: Mapping[str, str | None] | None = None
) -> Table:
    """Create a table, and open it. `configuration` holds Delta's table properties. Raises UnavailableError."""
    set_region(location)
    try:
        DeltaTable.create(
            shown(location), schema, name=name, configuration=configuration, storage_options=options_of(location)
        )
        return Table(location)
    except Exception as error:
        raise UnavailableError(f"{shown(location)} can't be created: {error}") from error


def table_path(state_dir: str, table: str) -> str:
    """Return the path or URI of a table."""
    return below(state_dir, table)


def opened(state_dir: str, table: str) -> Table | None:
    """Open the table as of now; None if there is none. Raises UnavailableError, and SafetyError if it is torn."""
    path = table_path(state_dir, table)
    try:
        return Table(path)
    except TableNotFoundError:
        return None
    except Exception as error:
        refuse_torn(path)
        raise UnavailableError(f"the {table} at {shown(path)} can't be read: {error}") from error


def scan(table: Table, condition: ds.Expression | None = None, columns: list[str] | None = None) -> Batches:
    """Read the rows that meet a condition, with all columns or some; files ruled out by statistics are not opened."""
    dataset = _dataset(table)
    plain, rewritten = _split_by_text_type(list(dataset.get_fragments(filter=condition)), condition)
    if plain:
        files = ds.FileSystemDataset(plain, dataset.schema, dataset.format, dataset.filesystem)
        yield from files.to_batches(filter=condition, columns=columns, **_AHEAD)
    # When deltalake deletes or compacts, it stores text as string_view, which pyarrow can't compare with a string. Such
    # a file is read without the condition, and its rows are filtered here.
    for fragment in rewritten:
        named = [name for name in dataset.schema.names if name in _NAMES.findall(str(condition))]
        read = None if columns is None else list(dict.fromkeys([*columns, *named]))
        for batch in fragment.to_batches(schema=dataset.schema, columns=read):
            kept = pa.Table.from_batches([batch]).filter(condition)
            yield from (kept if columns is None else kept.select(columns)).to_batches()


def _split_by_text_type(files: Sequence[Any], condition: ds.Expression | None) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the files that can be read with the condition, and those that have to be read without it."""
    if condition is None or not files:
        return files, ()
    with ThreadPoolExecutor(min(_FOOTERS_AT_ONCE, len(files))) as pool:  # each thread waits for the store
        kinds = list(pool.map(lambda file: any(map(_is_view, file.physical_schema.types)), files))
    plain = [file for file, is_view in zip(files, kinds, strict=True) if not is_view]
    return plain, [file for file, is_view in zip(files, kinds, strict=True) if is_view]


def _dataset(table: Table) -> ds.FileSystemDataset:
    """The table's files, with their statistics of integer columns only."""
    filesystem, root = open_filesystem(table.location)
    kind = ds.ParquetFileFormat() if isinstance(filesystem, LocalFileSystem) else _FROM_AFAR
    # pa.table() would do the same, and load pandas to check the type of its argument
    files = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()
    # deltalake's own dataset claims that no row has a text if the least value of a text column is unknown
    # (docs/findings.md), so that a topic's receipts would seem to be missing
    numbers = [
        name.removeprefix(_LEAST)
        for name in files.column_names
        if name.startswith(_LEAST) and pa.types.is_integer(files.schema.field(name).type)
    ]
    fragments = [
        kind.make_fragment(
            f"{root}/{file['path']}",
            filesystem,
            partition_expression=_bounds(file, numbers),
            file_size=file["size_bytes"],
        )
        for file in files.to_pylist()
    ]
    return ds.FileSystemDataset(fragments, pa.schema(table.schema()), kind, filesystem)


def _bounds(file: dict[str, Any], numbers: Sequence[str]) -> ds.Expression:
    """Return a condition that every row of a file meets according to the file's statistics."""
    bounds = ds.scalar(True)
    for name in numbers:
        least, greatest = file[_LEAST + name], file[f"max.{name}"]
        if least is not None and greatest is not None and file.get(f"null_count.{name}") == 0:
            bounds &= (ds.field(name) >= least) & (ds.field(name) <= greatest)
    return bounds


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def complete(table: DeltaTable, schema: pa.Schema) -> None:
    """Add the columns that a table of an older version does not have; its old rows have null there."""
    present = {field.name for field in table.schema().fields}
    if missing := [field for field in Schema.from_arrow(schema).fields if field.name not in present]:
        table.alter.add_columns(missing)


def tidy(table: Table, app: str, *, keep_hours: int) -> None:
    """Merge small files, and remove those that no reader needs: keep_hours after they were merged or removed.

    Args:
        app: the application for whose transactions the table's files were written (streaming/state/delta/leftovers.py).
    """
    table.optimize.compact()
    remove_leftovers(table, table.location, app, keep_hours=keep_hours)
    table.create_checkpoint()


def frame(
    spark: "SparkSession", table: Table, schema: pa.Schema, condition: ds.Expression | None = None
) -> "DataFrame":
    """Return the rows for Spark, as of the opening of the table; some may not meet the condition.

    The condition only skips whole files, by their statistics. Spark reads plain Parquet here and needs no Delta.
    """
    fragments = _dataset(table).get_fragments(filter=condition)
    return read_files(spark, table.location, [fragment.path for fragment in fragments], schema)


def refuse_torn(path: str) -> None:
    """Raise SafetyError if one of a table's newest commits, or a file that the newest added, is incomplete.

    For a start. A power loss takes what is not on the disk yet (Durable), and leaves files empty, truncated or full of
    zeros. An object store has a whole file or none.
    """
    if "://" in path:
        return
    commits = sorted((Path(path) / "_delta_log").glob(f"{'[0-9]' * 20}.json"))[-_NOT_FLUSHED:]
    torn = next((number for number, commit in enumerate(commits) if not _is_text(commit)), None)
    if torn is None:
        if not commits or all(_is_parquet(file, size) for file, size in _added(commits[-1])):
            return
        torn = len(commits) - 1
    files = [str(file) for commit in commits[torn:] for file in (commit, _checksum(commit)) if file.exists()]
    raise SafetyError(
        f"the newest commit of {path} is truncated, most likely by a power loss. It was not on the disk yet, so "
        f"nothing of it is published and its messages will be read again. Move {', '.join(files)} away and start again"
    )


def _is_text(commit: Path) -> bool:
    try:
        list(_added(commit))
    except ValueError:
        return False
    return commit.stat().st_size > 0


def _is_parquet(file: Path, size: int) -> bool:
    with suppress(FileNotFoundError), file.open("rb") as opened_file:
        if opened_file.seek(0, os.SEEK_END) == size >= len(_PARQUET):
            opened_file.seek(-len(_PARQUET), os.SEEK_END)
            return opened_file.read() == _PARQUET
    return False


def _added(commit: Path) -> Iterator[tuple[Path, int]]:
    """Yield the data files that a commit added, with their sizes in bytes. Raises ValueError if it can't be parsed."""
    for line in commit.read_text().splitlines():
        added = json.loads(line).get("add")
        if added:
            yield commit.parents[1] / unquote(added["path"]), int(added["size"])


class Durable:
    """Flushes a table's commits to the disk, because deltalake does not wait for the disk. One per writer."""

    def __init__(self, path: str) -> None:
        self._is_disk = "://" not in path
        self._path = Path(path)
        # start with the newest commit, which may be that of a run that was killed before it flushed
        self._next = DeltaTable(path).version() if self._is_disk else 0

    def sync(self) -> None:
        """Return after all commits so far would survive a power loss. Raises SafetyError if the disk refuses."""
        # an object store has durably stored what it has acknowledged
        if not self._is_disk:
            return
        log = self._path / "_delta_log"
        while (commit := log / f"{self._next:020}.json").exists():
            added = (file for file, _size in _added(commit))
            for file in (*added, log / f"{self._next:020}.checkpoint.parquet", log / "_last_checkpoint", commit):
                _flush(file)
                _flush(_checksum(file))
            self._next += 1
        for folder in (log, self._path, self._path.parent):
            _flush(folder)


def _checksum(file: Path) -> Path:
    return file.with_name(f".{file.name}.crc")  # Hadoop's; Hadoop refuses a file whose checksum is wrong


def _flush(path: Path) -> None:
    try:
        opened_file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # the table has no checkpoint or checksum, or the file was merged and removed since
        return
    try:
        os.fsync(opened_file)
    except OSError as error:
        # never retried: a second fsync would succeed whatever was lost; EINVAL: this file system can't flush folders
        if error.errno != errno.EINVAL or not path.is_dir():
            raise SafetyError(
                f"{path} may be lost, the disk reports: {error}. Repair the disk, then start again"
            ) from error
    finally:
        os.close(opened_file)
