"""The undo journal: Parquet files that are written before a delete and never changed afterwards.

`<state>/journal/day=YYYY-MM-DD/<query>-<batch>-<random>.parquet`; each run of a batch writes files of its own.
The later of the driver's clock and ZooKeeper's names the day, and days expire by the earlier one: a wrong clock, ahead
or behind, makes us keep files longer.
What is kept of objects in tiered storage lies beside it in `<state>/object-journal`, and what is kept of snapshots'
messages in `<state>/snapshot-journal`, in the same way.
On a local disk file and folder are fsynced; elsewhere the store's answer to the put is the promise.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streaming.clock import Clock
from streaming.errors import UnavailableError
from streaming.state.filesystem import flush, make_folder, open_filesystem
from udfs.offload_target import Bucket
from udfs.records import Reference
from udfs.references import tenant_of_key
from udfs.units import DAY_MS

SCHEMA = pa.schema(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("ledger_id", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("version", pa.int32()),
        pa.field("data", pa.binary()),
        pa.field("acl", pa.binary()),
        pa.field("reference_key", pa.string()),
        pa.field("presence", pa.string()),
        pa.field("checks", pa.list_(pa.string())),
    ]
)
# objects: "<key>@<version id>", nothing after the last @ in a bucket without versions
OBJECT_SCHEMA = pa.schema(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("ledger_id", pa.int64()),
        pa.field("uuid", pa.string()),
        pa.field("endpoint", pa.string()),
        pa.field("bucket", pa.string()),
        pa.field("objects", pa.list_(pa.string())),
        pa.field("index", pa.binary()),
        pa.field("user_metadata", pa.map_(pa.string(), pa.string())),
        pa.field("reference_key", pa.string()),
        pa.field("presence", pa.string()),
        pa.field("checks", pa.list_(pa.string())),
    ]
)
# messages of snapshot topics; topic: the compacted topic's full name; uuid: what receipts call the message
SNAPSHOT_SCHEMA = pa.schema(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("key", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("uuid", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("reference_key", pa.string()),
        pa.field("presence", pa.string()),
        pa.field("checks", pa.list_(pa.string())),
    ]
)
_LEDGERS, _OBJECTS, _SNAPSHOTS = "journal", "object-journal", "snapshot-journal"
_SCHEMAS = {_LEDGERS: SCHEMA, _OBJECTS: OBJECT_SCHEMA, _SNAPSHOTS: SNAPSHOT_SCHEMA}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What is needed to undo one delete: the znode as it was, and the word that allowed it to go."""

    ledger_id: int
    path: str
    data: bytes
    version: int
    acl: bytes
    reference: Reference


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """What is kept of an offload attempt before its objects go. objects: (key, version id; "" in a bucket without).

    Undo needs a bucket with versions; without, the index (where there was one) still tells what the data were.
    """

    ledger_id: int
    uuid: str
    bucket: Bucket
    objects: tuple[tuple[str, str], ...]
    index: bytes | None
    user_metadata: Mapping[str, str]
    reference: Reference


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """What is kept of a snapshot's message before its key gets a tombstone: all that is needed to publish it again."""

    topic: str
    key: str
    ledger_id: int
    entry_id: int
    uuid: str
    value: bytes
    reference: Reference


class ParquetJournal:
    """Writes entries of one task; safe to use from many tasks at once, each file has one writer."""

    def __init__(self, state_dir: str, query: str, batch_id: int, clock: Clock, *, ahead_ms: int = 0) -> None:
        """ahead_ms: how far the clock by which days are named is ahead of `clock`."""
        self._filesystem, self._root = open_filesystem(state_dir)
        self._state_dir = state_dir
        self._query = query
        self._batch_id = batch_id
        self._clock = clock
        self._ahead_ms = ahead_ms

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError: then nothing may be deleted."""
        self._write(_LEDGERS, [_ledger_row(entry) for entry in entries], SCHEMA)

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Make entries of objects durable, as write does."""
        self._write(_OBJECTS, [_object_row(entry) for entry in entries], OBJECT_SCHEMA)

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Make entries of snapshots' messages durable, as write does."""
        self._write(_SNAPSHOTS, [_snapshot_row(entry) for entry in entries], SNAPSHOT_SCHEMA)

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> dict[str, tuple[tuple[int, int], bytes]]:
        """Return key -> (place, bytes) of what was last written of these keys, by any run. Raises UnavailableError."""
        where = (ds.field("topic") == topic) & ds.field("key").isin(list(keys))
        rows = sorted(snapshot_entries(self._state_dir, JournalQuery(where=where)), key=lambda row: row["at_ms"])
        return {row["key"]: ((row["ledger_id"], row["entry_id"]), row["value"]) for row in rows}

    def _write(self, kind: str, rows: Sequence[dict[str, object]], schema: pa.Schema) -> None:
        if not rows:
            return
        now_ms = self._clock.now_ms()
        folder = f"{self._root}/{kind}/day={_day(now_ms + self._ahead_ms)}"
        name = f"{self._query}-{self._batch_id}-{uuid4().hex}.parquet"
        run = {"at_ms": now_ms, "query": self._query, "batch_id": self._batch_id}
        table = pa.Table.from_pylist([run | row for row in rows], schema=schema)
        try:
            make_folder(self._filesystem, folder)
            self._store(table, folder, name)
        except (OSError, pa.ArrowException) as error:
            raise UnavailableError(f"the journal in {folder} can't be written, nothing is deleted: {error}") from error

    def _store(self, table: pa.Table, folder: str, name: str) -> None:
        if not isinstance(self._filesystem, pafs.LocalFileSystem):
            content = pa.BufferOutputStream()  # first all of it: closing a stream puts what there is, were it a half
            pq.write_table(table, content, compression="zstd")
            with self._filesystem.open_output_stream(f"{folder}/{name}") as out:
                out.write(content.getvalue())
            return
        unfinished = Path(folder, f".{name}.unfinished")
        try:
            with unfinished.open("wb") as file:
                pq.write_table(table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(Path(folder, name))
        except OSError:
            unfinished.unlink(missing_ok=True)  # a full disk is tried again and again
            raise
        for changed in (folder, str(Path(folder).parent), self._root):  # a new day's folder is an entry of its parent
            flush(changed)


def _ledger_row(entry: JournalEntry) -> dict[str, object]:
    return {
        "ledger_id": entry.ledger_id,
        "path": entry.path,
        "version": entry.version,
        "data": entry.data,
        "acl": entry.acl,
        **_basis(entry.reference),
    }


def _object_row(entry: ObjectEntry) -> dict[str, object]:
    return {
        "ledger_id": entry.ledger_id,
        "uuid": entry.uuid,
        "endpoint": entry.bucket.endpoint,
        "bucket": entry.bucket.name,
        "objects": [f"{key}@{version}" for key, version in entry.objects],
        "index": entry.index,
        "user_metadata": list(entry.user_metadata.items()),
        **_basis(entry.reference),
    }


def _snapshot_row(entry: SnapshotEntry) -> dict[str, object]:
    return {
        "topic": entry.topic,
        "key": entry.key,
        "ledger_id": entry.ledger_id,
        "entry_id": entry.entry_id,
        "uuid": entry.uuid,
        "value": entry.value,
        **_basis(entry.reference),
    }


def _basis(reference: Reference) -> dict[str, object]:
    return {
        "reference_key": reference.key,
        "presence": str(reference.presence),
        "checks": [f"{path}@{version}" for path, version in reference.checks],
    }


@dataclass(frozen=True, slots=True)
class JournalQuery:
    """Which rows of the journal: since when (days before are not even listed), what meets `where`, which columns.

    batch: (query, batch id) whose files alone are read.
    """

    since_ms: int = 0
    where: ds.Expression | None = None
    columns: tuple[str, ...] | None = None
    batch: tuple[str, int] | None = None


_ALL = JournalQuery()


def entries(state_dir: str, wanted: JournalQuery = _ALL) -> Iterator[dict[str, Any]]:
    """Journal rows (SCHEMA's columns), oldest file first; none where nothing was journaled. Raises UnavailableError."""
    for batch in _batches(state_dir, _LEDGERS, wanted):
        yield from batch.to_pylist()


def object_entries(state_dir: str, wanted: JournalQuery = _ALL) -> Iterator[dict[str, Any]]:
    """Rows of the objects' journal (OBJECT_SCHEMA's columns), as entries does."""
    for batch in _batches(state_dir, _OBJECTS, wanted):
        yield from batch.to_pylist()


def snapshot_entries(state_dir: str, wanted: JournalQuery = _ALL) -> Iterator[dict[str, Any]]:
    """Rows of the snapshots' journal (SNAPSHOT_SCHEMA's columns), as entries does."""
    for batch in _batches(state_dir, _SNAPSHOTS, wanted):
        yield from batch.to_pylist()


def begun(state_dir: str, query: str, batch_id: int, *, since_ms: int) -> Counter[tuple[str, str]]:
    """What a batch has written down since then to delete it, by (tenant, reference key); each ledger or upload once.

    Raises UnavailableError.
    """
    counted: Counter[tuple[str, str]] = Counter()
    exactly = ("ledger_id", "uuid")
    for kind, identity in ((_LEDGERS, ("path",)), (_OBJECTS, exactly), (_SNAPSHOTS, exactly)):
        columns = ("reference_key", *identity)
        batches = list(_batches(state_dir, kind, JournalQuery(since_ms, columns=columns, batch=(query, batch_id))))
        if batches:
            each = pa.Table.from_batches(batches).group_by(list(columns)).aggregate([])
            counted.update((tenant_of_key(key), key) for key in each["reference_key"].to_pylist())
    return counted


def _batches(state_dir: str, kind: str, wanted: JournalQuery) -> Iterator[pa.RecordBatch]:
    filesystem, root = open_filesystem(state_dir)
    where = ds.field("at_ms") >= wanted.since_ms
    if wanted.where is not None:
        where &= wanted.where
    columns = None if wanted.columns is None else list(wanted.columns)
    try:
        files = _files(filesystem, f"{root}/{kind}", wanted)
        if files:
            dataset = ds.dataset(files, schema=_SCHEMAS[kind], format="parquet", filesystem=filesystem)
            yield from (batch for batch in dataset.to_batches(filter=where, columns=columns) if batch.num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise UnavailableError(f"the journal in {root}/{kind} can't be read: {error}") from error


def _files(filesystem: pafs.FileSystem, folder: str, wanted: JournalQuery) -> list[str]:
    prefix = "" if wanted.batch is None else f"{wanted.batch[0]}-{wanted.batch[1]}-"
    oldest = f"day={_day(wanted.since_ms)}"
    days = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return sorted(
        info.path
        for day in days
        if day.base_name.startswith("day=") and day.base_name >= oldest
        for info in filesystem.get_file_info(pafs.FileSelector(day.path, allow_not_found=True))
        if info.base_name.startswith(prefix) and info.path.endswith(".parquet")
    )


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def expire(state_dir: str, *, now_ms: int, keep_days: int) -> int:
    """Remove whole days older than keep_days; returns how many days' folders went."""
    filesystem, root = open_filesystem(state_dir)
    oldest = _day(now_ms - keep_days * DAY_MS)
    old = []
    for kind in _SCHEMAS:
        days = filesystem.get_file_info(pafs.FileSelector(f"{root}/{kind}", allow_not_found=True))
        old += [info.path for info in days if info.base_name.startswith("day=") and info.base_name[4:] < oldest]
    for path in old:
        filesystem.delete_dir(path)
    return len(old)
