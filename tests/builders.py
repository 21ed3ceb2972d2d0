"""Builders with readable defaults: requests, ledgers, owners' znodes, references, views."""

import json
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace

from streaming.adapters.memory.tree import MemoryTree, NoNodeError, parent_of
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    OffloadState,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.formats.schema_locator import serialize_schema_locator
from udfs.paths import Layout, ledger_path, topic_of
from udfs.records import (
    ONLY_IF_NAMED,
    BrokerView,
    LedgerComponent,
    LedgerFacts,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    PendingDelete,
    Presence,
    Reference,
    SnapshotContext,
)
from udfs.snapshots.keys import SegmentKey, SnapshotKind

TOPIC = "public/default/persistent/orders"
OTHER_TOPIC = "public/default/persistent/payments"
SCHEMA = "public/default/orders"
CURSOR = "billing"
SEGMENT = "public/default/segment/orders/0000-7fff-0"  # of a scalable topic
LAYOUT_PATH = "/topics/public/default/orders"

NOW_MS = 1_700_000_000_000
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

ROOT = "/ledgers"
OF_LEDGERS = tuple(component for component in LedgerComponent if component not in ONLY_IF_NAMED)
UUID = "01234567-89ab-cdef-0123-456789abcdef"


def data_request(ledger_id: int = 5, topic: str = TOPIC) -> PendingDelete:
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
    )


def cursor_request(ledger_id: int = 5, topic: str = TOPIC, cursor: str = CURSOR) -> PendingDelete:
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.MANAGED_CURSOR,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
        cursor_name=cursor,
    )


def schema_request(ledger_id: int = 5, schema: str = SCHEMA, topic: str = TOPIC) -> PendingDelete:
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.SCHEMA_STORAGE,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
        schema_id=schema,
    )


def compacted_request(ledger_id: int = 5, topic: str = TOPIC) -> PendingDelete:
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.COMPACTED_LEDGER,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
    )


def bucket_request(ledger_id: int = 5, topic: str = TOPIC) -> PendingDelete:
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.DELAYED_INDEX_BUCKET,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
    )


def snapshot_request(
    kind: SnapshotKind = SnapshotKind.SEGMENT, number: int = 0, place: tuple[int, int] = (5, 0), topic: str = TOPIC
) -> PendingDelete:
    owner = topic_of(topic)
    key = str(SegmentKey(number, owner)) if kind is SnapshotKind.SEGMENT else owner
    return PendingDelete(
        managed_ledger=topic,
        component=LedgerComponent.TRANSACTION_SNAPSHOT,
        ledger_type=LedgerType.COMPACTED_MESSAGE,
        ledger_id=place[0],
        snapshot_context=SnapshotContext(kind, key, place[1]),
    )


def segment_request(ledger_id: int = 5, segment: str = SEGMENT) -> PendingDelete:
    return PendingDelete(
        managed_ledger=segment,
        component=LedgerComponent.SEGMENT,
        ledger_type=LedgerType.SEGMENT,
        ledger_id=ledger_id,
    )


def data_custom(topic: str = TOPIC) -> dict[str, bytes]:
    """Return the customMetadata of a data ledger, as LedgerMetadataUtils writes it."""
    return {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": topic.encode()}


def cursor_custom(topic: str = TOPIC, cursor: str = CURSOR) -> dict[str, bytes]:
    return data_custom(topic) | {"pulsar/cursor": cursor.encode()}


def schema_custom(schema: str = SCHEMA) -> dict[str, bytes]:
    return {"application": b"pulsar", "component": b"schema", "pulsar/schemaId": schema.encode()}


def compacted_custom(topic: str = "persistent://public/default/orders") -> dict[str, bytes]:
    return {
        "application": b"pulsar",
        "component": b"compacted-ledger",
        "pulsar/compactedTopic": topic.encode(),
        "pulsar/compactedTo": b"\x08\x07\x10\xff\x01",
    }


def bucket_custom(topic: str = "persistent://public/default/orders", cursor: str = CURSOR) -> dict[str, bytes]:
    return {
        "application": b"pulsar",
        "component": b"delayed-index-bucket",
        "pulsar/delayedIndexBucketKey": b"#pulsar.internal.delayed.bucket_1_9",
        "pulsar/delayedIndexTopic": topic.encode(),
        "pulsar/delayedIndexCursor": cursor.encode(),
    }


def custom_of(request: PendingDelete) -> dict[str, bytes]:
    """Return the customMetadata of the ledger for which the request is valid."""
    match request.component:
        case LedgerComponent.MANAGED_LEDGER:
            return data_custom(request.managed_ledger)
        case LedgerComponent.MANAGED_CURSOR:
            return cursor_custom(request.managed_ledger, str(request.cursor_name))
        case LedgerComponent.SCHEMA_STORAGE:
            return schema_custom(str(request.schema_id))
        case LedgerComponent.COMPACTED_LEDGER:
            return compacted_custom(topic_of(request.managed_ledger))
        case LedgerComponent.DELAYED_INDEX_BUCKET:
            return bucket_custom(topic_of(request.managed_ledger))
        case LedgerComponent.TRANSACTION_SNAPSHOT | LedgerComponent.SEGMENT:
            raise AssertionError("no request for a ledger")


def metadata(
    custom: Mapping[str, bytes] | None = None,
    *,
    state: LedgerState = LedgerState.CLOSED,
    ctime_ms: int | None = None,
    length_bytes: int = 1_000,
) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        state=state,
        length_bytes=length_bytes if closed else 0,
        last_entry_id=9 if closed else -1,
        ctime_ms=ctime_ms,
        custom_metadata=data_custom() if custom is None else custom,
    )


def facts(request: PendingDelete | None = None, *, last_change_ms: int = 0, **changes: object) -> LedgerFacts:
    """Return facts of the requested ledger: CLOSED, with the right owner; `changes` replace fields of the metadata."""
    request = request or data_request()
    changed = replace(metadata(custom_of(request)), **changes)  # type: ignore[arg-type]
    path = ledger_path(Layout.HIERARCHICAL, ROOT, request.ledger_id)
    return LedgerFacts(
        ledger_id=request.ledger_id, path=path, version=1, metadata=changed, last_change_ms=last_change_ms
    )


def reference(
    key: str = f"data:{TOPIC}",
    *,
    in_use: Iterable[int] = (8, 9),
    newest_id: int | None = None,
    presence: Presence = Presence.PRESENT,
    checks: tuple[tuple[str, int], ...] = (),
) -> Reference:
    ids = array("q", sorted(in_use))
    newest = max(ids, default=-1) if newest_id is None else newest_id
    return Reference(
        key=key, presence=presence, read_at_ms=NOW_MS, checks=checks, in_use=ids, newest_id=newest, detail="no answer"
    )


def gone(key: str = f"data:{TOPIC}") -> Reference:
    return Reference(key=key, presence=Presence.GONE, read_at_ms=NOW_MS)


def list_znode(*entries: int | LedgerInfo) -> bytes:
    """Return a ManagedLedgerInfo of these ledgers; the last is the current ledger."""
    infos = [
        LedgerInfo(ledger_id=entry, entries=10, timestamp_ms=1) if isinstance(entry, int) else entry
        for entry in entries
    ]
    if infos and isinstance(entries[-1], int):
        infos[-1] = LedgerInfo(ledger_id=entries[-1])
    return serialize_managed_ledger(ManagedLedgerInfo(tuple(infos)))


def offloaded(
    ledger_id: int, *, complete: bool = True, bookkeeper_deleted: bool = True, uuid: str = UUID
) -> LedgerInfo:
    state = OffloadState(uuid=uuid, complete=complete, bookkeeper_deleted=bookkeeper_deleted, driver_name="S3")
    return LedgerInfo(ledger_id=ledger_id, entries=10, timestamp_ms=1, offload=state)


def cursor_znode(
    ledger_id: int = -1, *, properties: Mapping[str, int] | None = None, buckets: Iterable[int] = ()
) -> bytes:
    """Return a ManagedCursorInfo.

    Args:
        ledger_id: the cursor's ledger; -1 for a cursor that was closed cleanly.
        properties: of the cursor's position.
        buckets: the delayed-delivery buckets that the cursor names.
    """
    named = {f"#pulsar.internal.delayed.bucket_{n}_{n + 9}": str(id_) for n, id_ in enumerate(buckets)}
    return serialize_cursor(
        ManagedCursorInfo(cursors_ledger_id=ledger_id, properties=properties or {}, cursor_properties=named)
    )


def locator_znode(*ledger_ids: int) -> bytes:
    """Return a SchemaLocator with a version for each ledger, oldest first."""
    return serialize_schema_locator([(ledger_id, 0) for ledger_id in ledger_ids])


def layout_znode(*active: int, sealed: Iterable[int] = (), next_id: int | None = None, **changes: object) -> bytes:
    """Return the layout of a scalable topic with these segments, as Pulsar 5.0.0-M1 writes it.

    Segments with an even id have the lower half of the hashes, the others the upper half.

    Args:
        active: ids.
        sealed: ids.
        next_id: by default one more than the highest id.
        changes: replace fields of each segment.
    """
    ids = sorted([*active, *sealed])
    segments = {
        str(number): {
            "segmentId": number,
            "hashRange": {"start": 0x8000 * (number % 2), "end": 0x7FFF + 0x8000 * (number % 2)},
            "state": "ACTIVE" if number in active else "SEALED",
            "parentIds": [],
            "childIds": [],
            "createdAtEpoch": 0,
            "sealedAtEpoch": -1 if number in active else 1,
            "createdAtMs": NOW_MS,
            "sealedAtMs": -1 if number in active else NOW_MS,
            "active": number in active,
            "sealed": number not in active,
            "legacy": False,
        }
        | changes
        for number in ids
    }
    return json.dumps(
        {
            "epoch": 0,
            "nextSegmentId": max(ids, default=-1) + 1 if next_id is None else next_id,
            "segments": segments,
            "properties": {},
        }
    ).encode()


def view(
    *ledgers: int,
    presence: Presence = Presence.PRESENT,
    cursors: Mapping[str, int] | None = None,
    compacted_ledger: int = -1,
    compacted_by_cursor: int = -1,
) -> BrokerView:
    return BrokerView(
        presence=presence,
        ledgers=ledgers,
        cursors=cursors or {},
        compacted_ledger=compacted_ledger,
        compacted_by_cursor=compacted_by_cursor,
        detail="503",
    )


def unloaded() -> BrokerView:
    """Return the brokers' view of an existing topic that is not loaded."""
    return BrokerView(presence=Presence.PRESENT, is_loaded=False)


def exists(tree: MemoryTree, path: str) -> bool:
    try:
        tree.read(path)
    except NoNodeError:
        return False
    return True


def put(tree: MemoryTree, path: str, data: bytes = b"") -> None:
    """Create a znode and its missing ancestors, or overwrite it."""
    if exists(tree, path):
        tree.write(path, data)
        return
    missing = []
    parent = parent_of(path)
    while not exists(tree, parent):
        missing.append(parent)
        parent = parent_of(parent)
    for ancestor in reversed(missing):
        tree.create(ancestor, b"")
    tree.create(path, data)
