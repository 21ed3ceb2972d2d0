"""RocksDB through rocksdict, with the options with which RocketMQ's brokers open its files."""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SstFileWriter,
    WriteBatch,
)

from streaming.errors import SafetyError, UnavailableError

DEFAULT_FAMILY = "default"
_BATCH_ROWS = 20_000
_LOCKED = ("IO error: While lock file:", "IO error: lock hold by current process")  # by another process, or by this one
# Files that RocksDB and rocksdict write even in read-only mode.
_NOT_READ = ("LOCK", "LOG", "rocksdict-config.json")
Rows = Iterable[tuple[bytes, bytes]]


class Database:
    """An open database, created by `opened`."""

    def __init__(self, root: Rdict, families: Iterable[str]) -> None:
        self._root = root
        self._families = {
            name: root if name == DEFAULT_FAMILY else root.get_column_family(name) for name in families
        }  # fmt: skip

    def has(self, family: str) -> bool:
        """Whether the database has this column family."""
        return family in self._families

    def put_all(self, family: str, rows: Rows) -> None:
        """Write rows; rows with the same keys are replaced."""
        handle = self._root.get_column_family_handle(family)
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value, handle)
            if len(batch) == _BATCH_ROWS:
                self._root.write(batch)
                batch = WriteBatch(raw_mode=True)
        self._root.write(batch)

    def delete(self, family: str, key: bytes) -> None:
        """Delete a row; a missing row is no error."""
        self._families[family].delete(key)

    def put_atomically(self, rows: Mapping[str, Rows], deleted: Mapping[str, Rows] | None = None) -> None:
        """Write rows of several column families in one batch; when this returns, the batch is durable.

        After a crash before that, the database contains the whole batch or nothing of it.

        Args:
            rows: by column family.
            deleted: by column family, ranges of keys (first, end), without `end`. Their rows are deleted first.
        """
        batch = WriteBatch(raw_mode=True)
        for family, ranges in (deleted or {}).items():
            handle = self._root.get_column_family_handle(family)
            for first, end in ranges:
                batch.delete_range(first, end, handle)
        for family, family_rows in rows.items():
            handle = self._root.get_column_family_handle(family)
            for key, value in family_rows:
                batch.put(key, value, handle)
        self._root.write(batch)
        self._root.flush_wal(True)

    def take_in(self, files: Iterable[str]) -> None:
        """Move sorted files that do not overlap into the column family `default`."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._root.ingest_external_file(list(files), options)

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return a row's value; None if there is none. Raises SafetyError where a file is damaged."""
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise _damage(error) from error
        return value

    def rows(self, family: str, first: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows in the order of their keys: from the key `first` up to but not including `end`; None: to the last.

        Raises SafetyError where a file is damaged.
        """
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        options.set_readahead_size(2 << 20)
        cursor = self._families[family].iter(options)
        cursor.seek(first) if first else cursor.seek_to_first()
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        _require_sound(cursor)  # a cursor also ends at a damaged block

    def last_before(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row whose key is at most this one; None if there is none. Raises SafetyError as `rows`."""
        cursor = self._families[family].iter()
        cursor.seek_for_prev(key)
        _require_sound(cursor)
        return (cursor.key(), cursor.value()) if cursor.valid() else None

    def flush(self) -> None:
        """Write everything into files."""
        for family in self._families.values():
            family.flush(True)

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        for name, family in self._families.items():
            if name != DEFAULT_FAMILY:
                family.close()
        self._root.close()


@contextmanager
def opened(
    folder: Path, families: Iterable[str] = (), *, compressed: bool = False, read_only: bool = False
) -> Iterator[Database]:
    """Open a database with these column families besides `default`; if it is writable and missing, it is created.

    A read-only database is opened with all its families, and nothing is written into its folder, which may be on a
    read-only file system. Raises SafetyError if the database can't be opened, UnavailableError if another process has
    locked it, and OSError if the disk is full.

    Args:
        folder: of the database.
        families: column families besides `default`.
        compressed: compress the family `default`.
        read_only: open it without writing.
    """
    with _links_to(folder) if read_only else nullcontext(folder) as at:
        try:
            names = list(Rdict.list_cf(str(at), _options())) if read_only else [DEFAULT_FAMILY, *families]
            access = AccessType.read_only(False) if read_only else AccessType.read_write()
            options = {name: _options(compressed=compressed and name == DEFAULT_FAMILY) for name in names}
            root = Rdict(str(at), _options(), column_families=options, access_type=access)
        except Exception as error:
            raise _opening_error(folder, str(error).replace(str(at), str(folder))) from error
        database = Database(root, names)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def _links_to(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder with links to a database's files; RocksDB writes into this folder while it reads."""
    with TemporaryDirectory(prefix="ledger-reaper-read-") as links:
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise SafetyError(f"the database in {folder} can't be opened: {error.strerror}") from error
        for entry in entries:
            if entry.is_file() and not entry.name.startswith(_NOT_READ):
                os.symlink(os.path.abspath(entry.path), os.path.join(links, entry.name))  # noqa: PTH100, PTH118, PTH211
        yield Path(links)


def exists(folder: Path) -> bool:
    """Whether a folder contains a database: the file CURRENT exists."""
    return (folder / "CURRENT").is_file()


def write_sst(path: Path, keys_and_values: Iterable[tuple[list[bytes], list[bytes]]]) -> int:
    """Write a sorted file of rows, which come in order, and return its size in bytes. `take_in` accepts such files."""
    writer = SstFileWriter(_options(compressed=True))
    writer.open(str(path))
    for keys, values in keys_and_values:
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
    writer.finish()
    return path.stat().st_size


def _options(*, compressed: bool = False) -> Options:
    table = BlockBasedOptions()
    table.set_format_version(5)  # the version that the RocksDB of RocketMQ 5.3 reads
    table.set_bloom_filter(16, False)
    table.set_block_size(32 << 10)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4() if compressed else DBCompressionType.none())
    return options


def _require_sound(cursor: RdictIter) -> None:
    try:
        cursor.status()
    except Exception as error:
        raise _damage(error) from error


def _damage(error: Exception) -> SafetyError:
    return SafetyError(f"a database is damaged: {error}")


def _opening_error(folder: Path, error_text: str) -> Exception:
    if os.strerror(errno.ENOSPC) in error_text:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    text = f"the database in {folder} can't be opened: {error_text}"
    return UnavailableError(text) if error_text.startswith(_LOCKED) else SafetyError(text)
