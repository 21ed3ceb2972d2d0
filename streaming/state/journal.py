"""The undo journal: Parquet files that are written before a delete and never changed afterwards.

`<state>/journal/day=YYYY-MM-DD/<query>-<batch>-<random>.parquet`; each run of a batch writes its own files.
`<state>/object-journal` has the same layout for objects in tiered storage, `<state>/snapshot-journal` for messages of
snapshot topics.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streaming.clock import Clock
from streaming.errors import UnavailableError
from streaming.state.filesystem import folder_of, open_filesystem
from udfs.offload_drivers import Bucket
from udfs.owners.references import tenant_of_key
from udfs.records import Reference
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
OBJECT_SCHEMA = pa.schema(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("ledger_id", pa.int64()),
        pa.field("uuid", pa.string()),
        pa.field("endpoint", pa.string()),
        pa.field("bucket", pa.string()),
        # "<key>@<version id>", nothing after the last @ in a bucket without versions
        pa.field("objects", pa.list_(pa.string())),
        pa.field("index", pa.binary()),
        pa.field("user_metadata", pa.map_(pa.string(), pa.string())),
        pa.field("reference_key", pa.string()),
        pa.field("presence", pa.string()),
        pa.field("checks", pa.list_(pa.string())),
    ]
)
SNAPSHOT_SCHEMA = pa.schema(
    [
        pa.field("at_ms", pa.int64()),
        pa.field("query", pa.string()),
        pa.field("batch_id", pa.int64()),
        pa.field("topic", pa.string()),  # full name of the compacted topic
        pa.field("key", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("uuid", pa.string()),  # the message's id in receipts
        pa.field("value", pa.binary()),
        pa.field("reference_key", pa.string()),
        pa.field("presence", pa.string()),
        pa.field("checks", pa.list_(pa.string())),
    ]
)
_LEDGERS, _OBJECTS, _SNAPSHOTS = "journal", "object-journal", "snapshot-journal"
_SCHEMAS = {_LEDGERS: SCHEMA, _OBJECTS: OBJECT_SCHEMA, _SNAPSHOTS: SNAPSHOT_SCHEMA}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A ledger's znode before its delete, with the proof that allowed the delete."""

    ledger_id: int
    path: str
    data: bytes
    version: int
    acl: bytes
    reference: Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEntry:
    """An offload attempt before its objects are deleted.

    Undo needs a bucket with versions; without versions, the index, if there was one, still describes the data.
    """

    ledger_id: int
    uuid: str
    bucket: Bucket
    objects: tuple[tuple[str, str], ...]  # (key, version id), the id "" in a bucket without versions
    index: bytes | None
    user_metadata: Mapping[str, str]
    reference: Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEntry:
    """A snapshot's message before its key gets a tombstone: all that is needed to publish it again."""

    topic: str
    key: str
    ledger_id: int
    entry_id: int
    uuid: str
    value: bytes
    reference: Reference


class ParquetJournal:
    """Writes the entries of one task. Many tasks may write at once, because each file has one writer."""

    def __init__(self, state_dir: str, query: str, batch_id: int, clock: Clock, *, ahead_ms: int = 0) -> None:
        """Open the journal.

        Args:
            state_dir: the state directory, a local path or a URI.
            query: names the files, with batch_id.
            batch_id: names the files, with query.
            clock: the service's, the earlier of the driver's and ZooKeeper's clocks.
            ahead_ms: how far the clock that names the days is ahead of `clock`.
        """
        self._folder = folder_of(state_dir)
        self._state_dir = state_dir
        self._query = query
        self._batch_id = batch_id
        self._clock = clock
        self._ahead_ms = ahead_ms

    def write(self, entries: Sequence[JournalEntry]) -> None:
        """Return after the entries are durable. If it raises UnavailableError, nothing may be deleted."""
        bases: dict[int, dict[str, object]] = {}  # by id(): thousands of ledgers rest on the reference of one owner
        for entry in entries:
            if id(entry.reference) not in bases:
                bases[id(entry.reference)] = _basis(entry.reference)
        self._write(_LEDGERS, [_ledger_row(entry, bases[id(entry.reference)]) for entry in entries], SCHEMA)

    def write_objects(self, entries: Sequence[ObjectEntry]) -> None:
        """Make entries of objects durable, like write()."""
        self._write(_OBJECTS, [_object_row(entry) for entry in entries], OBJECT_SCHEMA)

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Make entries of snapshots' messages durable, like write()."""
        self._write(_SNAPSHOTS, [_snapshot_row(entry) for entry in entries], SNAPSHOT_SCHEMA)

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> dict[str, tuple[tuple[int, int], bytes]]:
        """Return the newest entry of each key, by any run: key -> (position, value). Raises UnavailableError."""
        where = (ds.field("topic") == topic) & ds.field("key").isin(list(keys))
        rows = sorted(snapshot_entries(self._state_dir, JournalQuery(where=where)), key=lambda row: row["at_ms"])
        return {row["key"]: ((row["ledger_id"], row["entry_id"]), row["value"]) for row in rows}

    def _write(self, kind: str, rows: list[dict[str, object]], schema: pa.Schema) -> None:
        if not rows:
            return
        now_ms = self._clock.now_ms()
        # The later of the driver's and ZooKeeper's clock names the day, and days expire by the earlier clock: a wrong
        # clock, fast or slow, makes us keep files longer.
        folder = f"{kind}/day={_day(now_ms + self._ahead_ms)}"
        # each attempt of a task writes files of its own, because two attempts may run at once (decision 28)
        name = f"{self._query}-{self._batch_id}-{uuid4().hex}.parquet"
        run = {"at_ms": now_ms, "query": self._query, "batch_id": self._batch_id}
        for row in rows:
            row.update(run)
        table = pa.Table.from_pylist(rows, schema=schema)
        try:
            content = pa.BufferOutputStream()
            # into memory: closing a stream on S3 would also store a file that was cut short (decision 10)
            pq.write_table(table, content, compression="zstd")
            self._folder.write_new(f"{folder}/{name}", content.getvalue())
        except (UnavailableError, pa.ArrowException) as error:
            raise UnavailableError(f"the journal can't be written, nothing is deleted: {error}") from error


def _ledger_row(entry: JournalEntry, basis: Mapping[str, object]) -> dict[str, object]:
    return {
        "ledger_id": entry.ledger_id,
        "path": entry.path,
        "version": entry.version,
        "data": entry.data,
        "acl": entry.acl,
        **basis,
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
    """Which rows and columns of the journal to read."""

    since_ms: int = 0  # earlier days are not even listed
    where: ds.Expression | None = None
    columns: tuple[str, ...] | None = None
    batch: tuple[str, int] | None = None  # read only the files of this (query, batch id)


_ALL = JournalQuery()


def entries(state_dir: str, query: JournalQuery = _ALL) -> Iterator[dict[str, Any]]:
    """Yield rows of the ledgers' journal (columns of SCHEMA), oldest day first; none without a journal.

    Raises UnavailableError.
    """
    for batch in _batches(state_dir, _LEDGERS, query):
        yield from batch.to_pylist()


def object_entries(state_dir: str, query: JournalQuery = _ALL) -> Iterator[dict[str, Any]]:
    """Yield rows of the objects' journal (columns of OBJECT_SCHEMA), like entries()."""
    for batch in _batches(state_dir, _OBJECTS, query):
        yield from batch.to_pylist()


def snapshot_entries(state_dir: str, query: JournalQuery = _ALL) -> Iterator[dict[str, Any]]:
    """Yield rows of the snapshots' journal (columns of SNAPSHOT_SCHEMA), like entries()."""
    for batch in _batches(state_dir, _SNAPSHOTS, query):
        yield from batch.to_pylist()


def started(state_dir: str, query: str, batch_id: int, *, since_ms: int) -> Counter[tuple[str, str]]:
    """Count the deletes that a batch has journaled since `since_ms`, by (tenant, reference key).

    Each ledger, upload or message counts once. Raises UnavailableError.
    """
    counts: Counter[tuple[str, str]] = Counter()
    exactly = ("ledger_id", "uuid")
    for kind, identity in ((_LEDGERS, ("path",)), (_OBJECTS, exactly), (_SNAPSHOTS, exactly)):
        columns = ("reference_key", *identity)
        batches = list(_batches(state_dir, kind, JournalQuery(since_ms, columns=columns, batch=(query, batch_id))))
        if batches:
            # a batch that ran twice journaled its deletes twice
            distinct = pa.Table.from_batches(batches).group_by(list(columns)).aggregate([])
            counts.update((tenant_of_key(key), key) for key in distinct["reference_key"].to_pylist())
    return counts


def _batches(state_dir: str, kind: str, query: JournalQuery) -> Iterator[pa.RecordBatch]:
    filesystem, root = open_filesystem(state_dir)
    where = ds.field("at_ms") >= query.since_ms
    if query.where is not None:
        where &= query.where
    columns = None if query.columns is None else list(query.columns)
    try:
        files = _files(filesystem, f"{root}/{kind}", query)
        if files:
            dataset = ds.dataset(files, schema=_SCHEMAS[kind], format="parquet", filesystem=filesystem)
            yield from (batch for batch in dataset.to_batches(filter=where, columns=columns) if batch.num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise UnavailableError(f"the journal in {root}/{kind} can't be read: {error}") from error


def _files(filesystem: pafs.FileSystem, folder: str, query: JournalQuery) -> list[str]:
    prefix = "" if query.batch is None else f"{query.batch[0]}-{query.batch[1]}-"
    oldest = f"day={_day(query.since_ms)}"
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
    """Delete whole days older than keep_days, and return how many folders of days were deleted."""
    filesystem, root = open_filesystem(state_dir)
    oldest = _day(now_ms - keep_days * DAY_MS)
    old = []
    for kind in _SCHEMAS:
        days = filesystem.get_file_info(pafs.FileSelector(f"{root}/{kind}", allow_not_found=True))
        old += [info.path for info in days if info.base_name.startswith("day=") and info.base_name[4:] < oldest]
    for path in old:
        filesystem.delete_dir(path)
    return len(old)
