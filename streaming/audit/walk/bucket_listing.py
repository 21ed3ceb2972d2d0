"""Lists the objects in the buckets of tiered_storage.allowed, and reads the topics that unreferenced objects name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.audit.walk.reference_scan import store_label
from streaming.clients import objects_for
from streaming.clock import Clock, SystemClock
from streaming.config.policies import allowed_buckets
from streaming.config.settings import Settings
from streaming.errors import RefusedError, UnavailableError
from streaming.ports import ObjectStore, Unreadable
from udfs import columns as c
from udfs.formats.errors import FormatError
from udfs.formats.offload_index import index_name, object_name, parse_object_name, parse_offload_index
from udfs.offload_drivers import Bucket
from udfs.owners.references import key_of
from udfs.records import LedgerType, StoredObject
from udfs.verdicts.finding_classes import Unclaimed, claim_of_objects

# Names start with a random UUID, so these prefixes give sixteen listings of equal length that can run in parallel.
PREFIXES = "0123456789abcdef"
_ROWS_PER_BATCH = 5_000
_NAMES_PER_READ = 1_000


def buckets_by_label(settings: Settings) -> dict[str, Bucket]:
    """Return the allowed buckets by their label (audit_columns.STORE)."""
    return {store_label(bucket.endpoint, bucket.name): bucket for bucket in allowed_buckets(settings)}


def bucket_path(label: str) -> str:
    """Return the name of a bucket among unreadable paths."""
    return f"s3 {label}"


@dataclass(frozen=True, slots=True)
class ListObjectsTask:
    """A task: turns (bucket label, prefix) in audit_columns.LOCATION into objects (audit_columns.OBJECT)."""

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """List every prefix. A store that refuses, or does not answer, becomes a row with the problem."""
        buckets = buckets_by_label(self.settings)
        for batch in batches:
            for location in batch.to_pylist():
                label = location[a.PATH]
                try:
                    rows: list[dict[str, Any]] = []
                    for row in _objects(objects_for(self.settings, buckets[label]), label, location[c.DETAIL]):
                        rows.append(row)
                        if len(rows) == _ROWS_PER_BATCH:
                            yield pa.RecordBatch.from_pylist(rows, schema=a.OBJECT)
                            rows = []
                    yield pa.RecordBatch.from_pylist(rows, schema=a.OBJECT)
                except (UnavailableError, RefusedError) as error:
                    # a bucket that can't be listed makes the audit incomplete, but never makes anything an orphan
                    problem = {a.PATH: bucket_path(label), c.DETAIL: str(error)}
                    yield pa.RecordBatch.from_pylist([problem], schema=a.OBJECT)


def _objects(store: ObjectStore, label: str, prefix: str) -> Iterator[dict[str, Any]]:
    for key, size, modified_ms in store.list_keys(prefix):
        name = parse_object_name(key)
        if name is not None:  # no broker offloads under other names: those objects are another application's
            yield {
                a.STORE: label,
                c.UUID: name.uuid,
                c.LEDGER_ID: name.ledger_id,
                a.IS_INDEX: name.is_index,
                c.BYTES: size,
                a.LAST_CHANGE_MS: modified_ms,
            }


@dataclass(frozen=True, slots=True)
class ClaimObjectsTask:
    """A task: turns objects that no reference names (reference_join.pairs_of) into suspects (audit_columns.SUSPECT)."""

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the index of every pair, or the data object's user metadata if there is no index."""
        buckets = buckets_by_label(self.settings)
        clock: Clock = SystemClock()
        for batch in batches:
            by_store: dict[str, list[dict[str, Any]]] = {}
            for row in batch.to_pylist():
                by_store.setdefault(row[a.STORE], []).append(row)
            for label, rows in by_store.items():
                for start in range(0, len(rows), _NAMES_PER_READ):
                    group = rows[start : start + _NAMES_PER_READ]
                    metadata = _read(self.settings, buckets[label], group)
                    now_ms = clock.now_ms()
                    claimed = [_suspect(row, *found, now_ms=now_ms) for row, found in zip(group, metadata, strict=True)]
                    yield pa.RecordBatch.from_pylist(claimed, schema=a.SUSPECT)


# custom metadata of the ledger, user metadata of the object, and why either could not be read
_Metadata = tuple[Mapping[str, bytes] | None, Mapping[str, str], str]


def _read(settings: Settings, bucket: Bucket, rows: Sequence[Mapping[str, Any]]) -> list[_Metadata]:
    store = objects_for(settings, bucket)
    names = [(row[c.UUID], row[c.LEDGER_ID]) for row in rows]
    try:
        indexes = store.read_many([index_name(*name) for name in names])
        heads = iter(store.head_many([object_name(*n) for n, i in zip(names, indexes, strict=True) if i is None]))
        return [_metadata(index if index is not None else next(heads)) for index in indexes]
    except (UnavailableError, RefusedError) as error:
        return [(None, {}, str(error))] * len(rows)


def _metadata(stored: StoredObject | Unreadable | None) -> _Metadata:
    if isinstance(stored, Unreadable):
        return None, {}, stored.detail
    if stored is None:
        return None, {}, "the objects are gone by now"
    if stored.content is None:
        return None, stored.user_metadata, "there is no readable index object"
    try:
        return parse_offload_index(stored.content).metadata.custom_metadata, stored.user_metadata, ""
    except FormatError as error:
        return None, stored.user_metadata, str(error)


def _suspect(
    row: Mapping[str, Any], custom: Mapping[str, bytes] | None, user: Mapping[str, str], fault: str, *, now_ms: int
) -> dict[str, Any]:
    suspect = {
        c.LEDGER_ID: row[c.LEDGER_ID],
        c.LEDGER_TYPE: str(LedgerType.OFFLOAD_LEDGER),
        c.UUID: row[c.UUID],
        a.STORE: row[a.STORE],
        c.BYTES: row[c.BYTES],
        a.LAST_CHANGE_MS: row[a.LAST_CHANGE_MS],
        a.IS_REFERENCE: False,
        a.SEEN_MS: now_ms,
    }
    claim = claim_of_objects(row[c.LEDGER_ID], row[c.UUID], custom, user)
    if isinstance(claim, Unclaimed):
        detail = f"{claim.detail}: {fault}" if fault else claim.detail
        return suspect | {
            a.CLASS: str(claim.finding_class),
            c.REASON: str(claim.reason),
            c.DETAIL: detail,
            a.CANDIDATE: False,
        }
    return suspect | {
        c.COMPONENT: str(claim.component),
        a.MANAGED_LEDGER: claim.managed_ledger,
        c.REFERENCE_KEY: key_of(claim),
    }
