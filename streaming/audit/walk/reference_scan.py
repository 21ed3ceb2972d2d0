"""Reads every reference to a ledger in ZooKeeper: in topics' lists, their cursors, and schema locators.

udfs/owners/references.py finds the references in a znode, for the audit as for the service.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.audit import audit_columns as a
from streaming.clients import clients_for
from streaming.config.settings import Settings
from streaming.in_use.loader import znode_read
from streaming.ports import MetadataStore, Unreadable, Znode
from streaming.sweep.jobs import Limiter
from streaming.sweep.pace import Pace
from udfs import columns as c
from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import LedgerInfo, OffloadState, parse_cursor, parse_managed_ledger
from udfs.offload_drivers import normal_endpoint, target_of
from udfs.owners.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR, ZnodeRead, reference_of
from udfs.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, checked_schema_id, managed_ledger_name, namespace_of
from udfs.records import LedgerComponent, Presence

_OWNERS_PER_READ = 500

_Node = Znode | Unreadable | None


@dataclass(frozen=True, slots=True)
class ReferenceTask:
    """A task: turns owners (audit_columns.LOCATION) into their references (audit_columns.REFERENCE)."""

    settings: Settings
    reads_per_second: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read every owner of every batch. Raises UnavailableError."""
        reader = ReferenceReader(clients_for(self.settings).store, Pace(self.reads_per_second))
        for batch in batches:
            owners = batch.to_pylist()
            rows = [_problem(owner[a.PATH], owner[c.DETAIL]) for owner in owners if owner[c.DETAIL] is not None]
            paths = [owner[a.PATH] for owner in owners if owner[c.DETAIL] is None]
            yield pa.RecordBatch.from_pylist(rows, schema=a.REFERENCE)
            for start in range(0, len(paths), _OWNERS_PER_READ):
                rows = reader.rows(paths[start : start + _OWNERS_PER_READ])
                yield pa.RecordBatch.from_pylist(rows, schema=a.REFERENCE)


class ReferenceReader:
    """Reads topics with their cursors, and schemas, many at a time."""

    def __init__(self, store: MetadataStore, pace: Limiter) -> None:
        self._store = store
        self._pace = pace

    def rows(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        """Return rows of audit_columns.REFERENCE for topics and schemas; owners that are gone by now have none."""
        self._pace.wait_for(len(paths))
        nodes = dict(zip(paths, self._store.read_many(paths), strict=True))
        schemas = [path for path in paths if path.startswith(f"{SCHEMAS_ROOT}/")]
        topics = [path for path in paths if path.startswith(f"{MANAGED_LEDGERS_ROOT}/")]
        rows = [row for path in schemas for row in _schema_rows(path, nodes[path])]
        # a cursor may be created after this: the checks read each suspect's owner again, so a reference that the walk
        # missed costs time, but never a ledger
        children = self._children(topics, rows)
        cursors = self._cursors(children)
        for path in topics:
            rows += _topic_rows(path, nodes[path], {name: cursors[f"{path}/{name}"] for name in children[path]})
        return rows

    def _children(self, topics: Sequence[str], rows: list[dict[str, Any]]) -> dict[str, list[str]]:
        by_topic: dict[str, list[str]] = {}
        self._pace.wait_for(len(topics))
        for path, names in zip(topics, self._store.children_many(topics), strict=True):
            by_topic[path] = names if isinstance(names, list) else []
            if isinstance(names, Unreadable):
                rows.append(_problem(path, f"its cursors can't be listed: {names.detail}"))
        return by_topic

    def _cursors(self, children: Mapping[str, list[str]]) -> dict[str, _Node]:
        paths = [f"{topic}/{name}" for topic, names in children.items() for name in names]
        self._pace.wait_for(len(paths))
        return dict(zip(paths, self._store.read_many(paths), strict=True))


def _schema_rows(path: str, node: _Node) -> Iterator[dict[str, Any]]:
    try:
        schema_id = checked_schema_id(path.removeprefix(f"{SCHEMAS_ROOT}/"))
    except ValueError as error:
        yield _problem(path, str(error))
        return
    tenant, namespace, encoded = schema_id.split("/")
    owner = _Labels(f"{tenant}/{namespace}/persistent/{encoded}", f"{tenant}/{namespace}")
    yield from _in_use_rows(
        f"schema:{schema_id}", [znode_read(path, node)], LedgerComponent.SCHEMA_STORAGE, owner, sizes={}
    )


def _topic_rows(path: str, node: _Node, cursors: Mapping[str, _Node]) -> Iterator[dict[str, Any]]:
    if node is None:
        return
    try:
        name = managed_ledger_name(path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/"))
        owner = _Labels(name, namespace_of(name))
    except ValueError as error:
        yield _problem(path, str(error))
        return
    top = znode_read(path, node)
    ledgers = _ledgers(node)
    sizes = {ledger.ledger_id: ledger.size_bytes for ledger in ledgers}
    yield from _in_use_rows(f"data:{name}", [top], LedgerComponent.MANAGED_LEDGER, owner, sizes=sizes)
    yield from _offload_rows(f"data:{name}", ledgers, owner)
    reads = {cursor: znode_read(f"{path}/{cursor}", found) for cursor, found in cursors.items()}
    for cursor, read in reads.items():
        if read.data is not None or read.error:
            key = f"cursor:{name}/{cursor}"
            yield from _in_use_rows(key, [read], LedgerComponent.MANAGED_CURSOR, owner, sizes={})
    readable = [read for read in reads.values() if not read.error]
    buckets = [top, *readable]
    yield from _in_use_rows(f"buckets:{name}", buckets, LedgerComponent.DELAYED_INDEX_BUCKET, owner, sizes={})
    yield from _compacted_rows(f"compacted:{name}", reads.get(COMPACTION_CURSOR), owner)


@dataclass(frozen=True, slots=True)
class _Labels:
    """The names of a row's owner, as findings show them."""

    managed_ledger: str
    namespace: str


def _in_use_rows(
    key: str, reads: Sequence[ZnodeRead], component: LedgerComponent, owner: _Labels, *, sizes: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    if reads[0].data is None and not reads[0].error:
        return
    reference = reference_of(key, reads, None, read_at_ms=0)
    if reference.presence is not Presence.PRESENT:
        is_for_buckets = component is LedgerComponent.DELAYED_INDEX_BUCKET
        # any cursor may name a bucket, so if a cursor can't be parsed, that cursor and all buckets are unknown
        yield _problem(f"{reads[0].path}/*" if is_for_buckets else reads[0].path, reference.detail)
        return
    for ledger_id in reference.in_use:
        yield _row(key, component, owner, ledger_id) | {a.IN_BOOKKEEPER: True, c.BYTES: sizes.get(ledger_id, 0)}


def _compacted_rows(key: str, cursor: ZnodeRead | None, owner: _Labels) -> Iterator[dict[str, Any]]:
    """Return the compacted ledger if the cursor's znode names it; otherwise the checks read it from the broker."""
    if cursor is None or not cursor.data:
        return
    try:
        ledger_id = parse_cursor(cursor.data).properties.get(COMPACTED_LEDGER_PROPERTY, -1)
    except FormatError:
        return
    if ledger_id >= 0:
        row = _row(key, LedgerComponent.COMPACTED_LEDGER, owner, ledger_id)
        yield row | {a.IN_BOOKKEEPER: True, c.BYTES: 0}


def _offload_rows(key: str, ledgers: Sequence[LedgerInfo], owner: _Labels) -> Iterator[dict[str, Any]]:
    for ledger in ledgers:
        if ledger.offload is not None:
            uuids = [ledger.offload.uuid, *ledger.offload.segment_uuids]
            for uuid in uuids:
                if uuid is not None:
                    yield _row(key, LedgerComponent.MANAGED_LEDGER, owner, ledger.ledger_id) | {
                        a.IN_BOOKKEEPER: False,
                        c.UUID: uuid,
                        a.STORE: store_named(ledger.offload),
                        a.IS_COMPLETE: ledger.offload.complete and not ledger.offload.segment_uuids,
                        c.BYTES: ledger.size_bytes,
                    }


def store_named(offload: OffloadState) -> str:
    """Return the bucket that an offload names, as audit_columns.STORE; "" if it names none."""
    target = target_of(offload.driver_name, offload.driver_properties)
    return store_label(target.endpoint, target.bucket) if target.bucket else ""


def store_label(endpoint: str, bucket: str) -> str:
    """Return a bucket as audit_columns.STORE, equal for every spelling of its endpoint."""
    return f"{normal_endpoint(endpoint)} {bucket}"


def _ledgers(node: _Node) -> Sequence[LedgerInfo]:
    if not isinstance(node, Znode):
        return ()
    try:
        return parse_managed_ledger(node.data).ledgers
    except FormatError:
        return ()  # the topic's own reference can't be parsed either, and reports the problem


def _row(key: str, component: LedgerComponent, owner: _Labels, ledger_id: int) -> dict[str, Any]:
    return {
        c.LEDGER_ID: ledger_id,
        c.REFERENCE_KEY: key,
        c.COMPONENT: str(component),
        a.MANAGED_LEDGER: owner.managed_ledger,
        a.NAMESPACE: owner.namespace,
    }


def _problem(path: str, detail: str) -> dict[str, Any]:
    return {a.PATH: path, c.DETAIL: detail}
