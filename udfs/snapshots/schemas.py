"""The Avro schemas under which Pulsar's brokers write transaction-buffer snapshots (seen on 4.0.8, version 0 of each).

Fields stand in alphabetical order, which is the order of their bytes. A value is bare Avro binary: it has no header.
"""

import json
from typing import Any

from fastavro import parse_schema

from udfs.snapshots.keys import SnapshotKind


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def _longs(name: str, *fields: str) -> dict[str, Any]:
    return _record(name, *((field, "long") for field in fields))


def _nullable(kind: Any) -> list[Any]:
    return ["null", kind]


def _list(item: dict[str, Any]) -> list[Any]:
    return _nullable({"type": "array", "items": item})


_TOPIC_NAME = ("topicName", _nullable("string"))
_TXN_ID = _longs("TxnIDData", "leastSigBits", "mostSigBits")
_ABORT = _longs("AbortTxnMetadata", "entryId", "ledgerId", "txnIdLeastBits", "txnIdMostBits")
_INDEX_ENTRY = _longs(
    "TransactionBufferSnapshotIndex",
    "abortedMarkEntryID",
    "abortedMarkLedgerID",
    "segmentEntryID",
    "segmentLedgerID",
    "sequenceID",
)
_METADATA = _record(
    "TransactionBufferSnapshotIndexesMetadata",
    ("aborts", _list(_TXN_ID)),
    ("maxReadPositionEntryId", "long"),
    ("maxReadPositionLedgerId", "long"),
)
_SINGLE = _record(
    "TransactionBufferSnapshot",
    ("aborts", _list(_ABORT)),
    ("maxReadPositionEntryId", "long"),
    ("maxReadPositionLedgerId", "long"),
    _TOPIC_NAME,
)
SCHEMAS: dict[SnapshotKind, dict[str, Any]] = {
    SnapshotKind.PARTS: _SINGLE,
    SnapshotKind.SINGLE: _SINGLE,
    SnapshotKind.SEGMENT: _record(
        "TransactionBufferSnapshotSegment",
        ("aborts", _list(_TXN_ID)),
        ("persistentPositionEntryId", "long"),
        ("persistentPositionLedgerId", "long"),
        ("sequenceId", "long"),
        _TOPIC_NAME,
    ),
    SnapshotKind.INDEX: _record(
        "TransactionBufferSnapshotIndexes",
        ("indexList", _list(_INDEX_ENTRY)),
        ("snapshot", _nullable(_METADATA)),
        _TOPIC_NAME,
    ),
}

# What stands behind the arrays of each kind: the library reads and writes these, numpy the arrays.
SINGLE_REST = parse_schema(
    _record("SingleRest", ("maxReadPositionEntryId", "long"), ("maxReadPositionLedgerId", "long"), _TOPIC_NAME)
)
SEGMENT_REST = parse_schema(
    _record(
        "SegmentRest",
        ("persistentPositionEntryId", "long"),
        ("persistentPositionLedgerId", "long"),
        ("sequenceId", "long"),
        _TOPIC_NAME,
    )
)
METADATA_REST = parse_schema(_longs("MetadataRest", "maxReadPositionEntryId", "maxReadPositionLedgerId"))
INDEX_REST = parse_schema(_record("IndexRest", _TOPIC_NAME))


def is_brokers(kind: SnapshotKind, definition: str) -> bool:
    """Whether the text of a registered Avro schema describes the bytes of this kind, as brokers write them.

    Names of records, documentation and defaults don't change a byte, and so do not count.
    """
    try:
        return bool(_shape(json.loads(definition)) == _shape(SCHEMAS[kind]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _shape(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_shape(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema["type"] == "record":
        return [(str(field["name"]), _shape(field["type"])) for field in schema["fields"]]
    if schema["type"] == "array":
        return ("array", _shape(schema["items"]))
    return schema["type"]
