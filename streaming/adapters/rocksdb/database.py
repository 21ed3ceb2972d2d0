"""RocksDB by rocksdict, with the options under which RocketMQ's brokers open its files."""

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
# What RocksDB and rocksdict write even where they only read.
_NOT_READ = ("LOCK", "LOG", "rocksdict-config.json")
Rows = Iterable[tuple[bytes, bytes]]


class Database:
    """An open database; `opened` makes one."""

    def __init__(self, root: Rdict, families: Iterable[str]) -> None:
        self._root = root
        self._families = {
            name: root if name == DEFAULT_FAMILY else root.get_column_family(name) for name in families
        }  # fmt: skip

    def has(self, family: str) -> bool:
        """Whether it has this column family."""
        return family in self._families

    def put_all(self, family: str, rows: Rows) -> None:
        """Write rows; a row of the same key is replaced."""
        handle = self._root.get_column_family_handle(family)
        batch = WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value, handle)
            if len(batch) == _BATCH_ROWS:
                self._root.write(batch)
                batch = WriteBatch(raw_mode=True)
        self._root.write(batch)

    def delete(self, family: str, key: bytes) -> None:
        """Delete a row; none is there afterwards, whether there was one or not."""
        self._families[family].delete(key)

    def put_atomically(self, rows: Mapping[str, Rows], gone: Mapping[str, Rows] | None = None) -> None:
        """Write rows of several column families in one batch, which is durable at the return or not there at all.

        gone: ranges of keys, from the first up to the second, whose rows are deleted before that.
        """
        batch = WriteBatch(raw_mode=True)
        for family, ranges in (gone or {}).items():
            handle = self._root.get_column_family_handle(family)
            for first, end in ranges:
                batch.delete_range(first, end, handle)
        for family, some in rows.items():
            handle = self._root.get_column_family_handle(family)
            for key, value in some:
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
            found: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise _damage(error) from error
        return found

    def rows(self, family: str, first: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows in the order of their keys: from the key first up to the key end, or to the last.

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
        _require_sound(cursor)  # at a damaged block a cursor ends, as behind the last row

    def last_before(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the last row whose key is at most this one; None if there is none. Raises SafetyError as `rows`."""
        cursor = self._families[family].iter()
        cursor.seek_for_prev(key)
        _require_sound(cursor)
        return (cursor.key(), cursor.value()) if cursor.valid() else None

    def flush(self) -> None:
        """Bring all that was written into files."""
        for family in self._families.values():
            family.flush(True)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        for name, family in self._families.items():
            if name != DEFAULT_FAMILY:
                family.close()
        self._root.close()


@contextmanager
def opened(
    folder: Path, families: Iterable[str] = (), *, compressed: bool = False, read_only: bool = False
) -> Iterator[Database]:
    """Open a database with these column families besides `default`; where it may be written, it is made if missing.

    compressed: the family `default`. Read-only it is opened with all families that it has, and nothing is written into
    the folder, which may be on a read-only file system. Raises SafetyError where it can't be opened, and OSError where
    the disk is full.
    """
    with _links_to(folder) if read_only else nullcontext(folder) as at:
        try:
            names = list(Rdict.list_cf(str(at), _options())) if read_only else [DEFAULT_FAMILY, *families]
            access = AccessType.read_only(False) if read_only else AccessType.read_write()
            made = {name: _options(compressed=compressed and name == DEFAULT_FAMILY) for name in names}
            root = Rdict(str(at), _options(), column_families=made, access_type=access)
        except Exception as error:
            raise _opening_error(folder, str(error).replace(str(at), str(folder))) from error
        database = Database(root, names)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def _links_to(folder: Path) -> Iterator[Path]:
    """A temporary folder with a link to each file of a database. What RocksDB writes while it reads goes there."""
    with TemporaryDirectory(prefix="ledger-reaper-read-") as made:
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            raise SafetyError(f"the database in {folder} can't be opened: {error.strerror}") from error
        for entry in entries:
            if entry.is_file() and not entry.name.startswith(_NOT_READ):
                os.symlink(os.path.abspath(entry.path), os.path.join(made, entry.name))  # noqa: PTH100, PTH118, PTH211
        yield Path(made)


def exists(folder: Path) -> bool:
    """Whether a folder holds a database: its file CURRENT is there."""
    return (folder / "CURRENT").is_file()


def write_sst(path: Path, keys_and_values: Iterable[tuple[list[bytes], list[bytes]]]) -> int:
    """Write a sorted file of rows, which come in order, and return its bytes. Such a file can be taken in."""
    writer = SstFileWriter(_options(compressed=True))
    writer.open(str(path))
    for keys, values in keys_and_values:
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
    writer.finish()
    return path.stat().st_size


def _options(*, compressed: bool = False) -> Options:
    table = BlockBasedOptions()
    table.set_format_version(5)  # what the RocksDB of RocketMQ 5.3 reads
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


def _opening_error(folder: Path, said: str) -> Exception:
    if os.strerror(errno.ENOSPC) in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    text = f"the database in {folder} can't be opened: {said}"
    return UnavailableError(text) if "lock" in said.lower() else SafetyError(text)
