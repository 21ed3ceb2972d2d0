"""The Avro schemas under which Pulsar's brokers write transaction-buffer snapshots (seen on 4.0.8, version 0 of each).

Fields are in alphabetical order, which is the order of their bytes. A value is bare Avro binary: it has no header.
"""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
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

# The fields after the arrays of each kind: fastavro reads and writes these fields, numpy the arrays.
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


_BYTES = 8  # of a schema version in a message


class SchemaOrigin(StrEnum):
    """Who may have registered a schema version of a snapshot topic. Only values of BROKERS can be judged."""

    BROKERS = "BROKERS"  # the schema above
    UNREGISTERED = "UNREGISTERED"  # the topic has no schema of that version: brokers decode with their own schema
    UNKNOWN = "UNKNOWN"  # perhaps a broker of another version, which added, renamed or removed fields
    FOREIGN = "FOREIGN"  # no broker


def origins(
    kind: SnapshotKind, definitions: Mapping[int, str], *, is_unknown_foreign: bool = False
) -> Callable[[bytes], SchemaOrigin]:
    """Return a function that takes the schema version in a message, and returns who may have registered it.

    Args:
        kind: the kind of the topic.
        definitions: version -> text, of all schemas of the topic.
        is_unknown_foreign: the operator knows that no broker of another version ever used the namespace, so FOREIGN
            replaces UNKNOWN.
    """
    known = {version.to_bytes(_BYTES, "big"): origin_of(kind, text) for version, text in definitions.items()}
    if is_unknown_foreign:
        known = {
            version: SchemaOrigin.FOREIGN if origin is SchemaOrigin.UNKNOWN else origin
            for version, origin in known.items()
        }
    # schemas can be deleted: if another version of Pulsar may have used the topic, it may have registered a schema
    # that is gone
    other = SchemaOrigin.UNKNOWN if SchemaOrigin.UNKNOWN in known.values() else SchemaOrigin.UNREGISTERED

    def of(version: bytes) -> SchemaOrigin:
        # brokers read the first eight bytes, and fail where there are fewer (seen on Pulsar 4.0.8)
        return known.get(version[:_BYTES], other) if len(version) >= _BYTES else SchemaOrigin.FOREIGN

    return of


def origin_of(kind: SnapshotKind, definition: str) -> SchemaOrigin:
    """Return who may have registered the text of a schema for the topic of this kind.

    A broker decodes a message by its own schema version, and skips fields that it does not know. So a schema that has
    all our fields, or the name of the brokers' record, may be the schema of another version of Pulsar.
    """
    try:
        schema = json.loads(definition or "null")
        # names of records, documentation and defaults don't change a byte, and so do not count
        if _shape(schema) == _shape(SCHEMAS[kind]):
            return SchemaOrigin.BROKERS
        if not isinstance(schema, dict) or schema["type"] != "record":
            return SchemaOrigin.FOREIGN  # text, bytes and numbers
        is_other = str(schema["name"]).rpartition(".")[2] != SCHEMAS[kind]["name"]
        return SchemaOrigin.FOREIGN if is_other and _names(SCHEMAS[kind]) - _names(schema) else SchemaOrigin.UNKNOWN
    except (ValueError, TypeError, KeyError, RecursionError):
        return SchemaOrigin.UNKNOWN  # no schema of a record


def _names(record: Any) -> set[str]:
    return {str(field["name"]) for field in record["fields"]}


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
