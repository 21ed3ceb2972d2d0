"""Requests as messages: PIP-186's PendingDeleteLedgerInfo in JSON.

1. We ignore unknown fields, take null for absent, and refuse a wrong type: a guess could delete something else.
2. decode never raises, whatever the bytes: no message may end the query.
3. We escape untrusted text and shorten it before we put it into a detail, since details end up in logs.
4. The work grows with the payload's length, whatever the content, and a payload that is too long is not parsed:
   otherwise a sender could delay everyone else's requests.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

from udfs.formats.java_uuid import uuid_halves, uuid_text
from udfs.paths import MAX_LEDGER_ID, encode_cursor, managed_ledger_name, schema_id_of, segment_of, topic_of
from udfs.records import (
    LedgerComponent,
    LedgerType,
    OffloadContext,
    PendingDelete,
    Reason,
    Rejection,
    SnapshotContext,
)
from udfs.snapshots.keys import SnapshotKind, is_topic, segment_key_of

# The default of service.max_request_bytes. A request has a few hundred bytes; a larger payload is no request.
MAX_REQUEST_BYTES = 64 * 1024
# The largest value of service.max_request_bytes, because many whole payloads are in memory at once.
MAX_PAYLOAD_BYTES = 1024 * 1024

_MAX_DETAIL_LENGTH = 300
_ONLY_TYPE_OF = {
    LedgerComponent.TRANSACTION_SNAPSHOT: LedgerType.COMPACTED_MESSAGE,
    LedgerComponent.SEGMENT: LedgerType.SEGMENT,
}
BROKERS_KINDS = (SnapshotKind.SINGLE, SnapshotKind.SEGMENT, SnapshotKind.INDEX)
_JSON_TYPES = {
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number with a fraction",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class _RefusedError(Exception):
    """Carries a Rejection out of the depth of a payload; never leaves this module."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.rejection = Rejection(reason, detail[:_MAX_DETAIL_LENGTH])


def decode(payload: bytes | None, most_bytes: int = MAX_REQUEST_BYTES) -> PendingDelete | Rejection:
    """Read a message's payload. Never raises: a payload that is no request becomes a Rejection.

    A payload of more than most_bytes is not parsed.
    """
    try:
        return _request(_json_object(payload, most_bytes))
    except _RefusedError as refused:
        return refused.rejection


def encode(request: PendingDelete) -> bytes:
    """Write a request with its Java field names; decode reads it."""
    fields: dict[str, Any] = {"topicName": request.managed_ledger, "ledgerComponent": request.component}
    if request.cursor_name is not None:
        fields["cursorName"] = request.cursor_name
    if request.schema_id is not None:
        fields["schemaId"] = request.schema_id
    fields |= {"ledgerType": request.ledger_type, "ledgerId": request.ledger_id}
    if request.offload_context is not None:
        fields["offloadContext"] = _offload_fields(request.offload_context)
    if request.snapshot_context is not None:
        context = request.snapshot_context
        fields["snapshotContext"] = {"kind": context.kind, "key": context.key, "entryId": context.entry_id}
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _json_object(payload: bytes | None, most_bytes: int) -> dict[str, Any]:
    if not payload:
        _refuse(Reason.EMPTY_PAYLOAD, "message has no payload: publish requests as JSON")
    if len(payload) > most_bytes:
        # the payload's original length is not known here: streaming/queries/streams.py may have cut it
        _refuse(Reason.TOO_LARGE, f"payload of more than {most_bytes} bytes, the most that a request may have")
    try:
        parsed = _DECODER.decode(bytes(payload).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _refuse(Reason.NOT_JSON, f"payload is no JSON: {_shown(str(error))}")
    if not isinstance(parsed, dict):
        _refuse(Reason.WRONG_TYPE, f"payload is {_JSON_TYPES[type(parsed)]}, expected an object")
    return parsed


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a repeated field: JSON parsers differ on which of its values counts."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _refuse(Reason.NOT_JSON, f"field {_shown(name)} appears twice")
            seen.add(name)
    return fields


def _refuse_constant(name: str) -> NoReturn:
    _refuse(Reason.NOT_JSON, f"{name} is no JSON")


# json.loads would create a decoder for each payload, which takes longer than reading it. (Like json.loads, this decoder
# refuses a byte order mark, with which no JSON starts.)
_DECODER = json.JSONDecoder(object_pairs_hook=_object_of, parse_constant=_refuse_constant)


def _request(fields: dict[str, Any]) -> PendingDelete:
    component, ledger_type, managed_ledger = _named(
        *(_required_text(fields, name) for name in ("ledgerComponent", "ledgerType", "topicName"))
    )
    return PendingDelete(
        managed_ledger=managed_ledger,
        component=component,
        ledger_type=ledger_type,
        ledger_id=_ledger_id(fields),
        cursor_name=_cursor_name(fields, component),
        schema_id=_schema_id(fields, component, managed_ledger),
        offload_context=_offload_context(fields, ledger_type),
        snapshot_context=_snapshot_context(fields, component, managed_ledger),
    )


# Requests of one owner come one after another. Names that are refused are not kept.
@lru_cache(maxsize=1024)
def _named(component_name: str, type_name: str, topic: str) -> tuple[LedgerComponent, LedgerType, str]:
    """Return component, ledger type and managed ledger."""
    component, ledger_type = _component(component_name), _ledger_type(type_name)
    if _ONLY_TYPE_OF.get(component) is not (ledger_type if ledger_type in _ONLY_TYPE_OF.values() else None):
        _refuse(Reason.UNKNOWN_LEDGER_TYPE, f"ledgerType {ledger_type} does not go with {component}")
    managed_ledger = _managed_ledger(topic)
    if component is LedgerComponent.SEGMENT and segment_of(managed_ledger) is None:
        _refuse(Reason.BAD_TOPIC_NAME, f"topicName: {_shown(managed_ledger)} is no segment of a scalable topic")
    return component, ledger_type, managed_ledger


def _component(name: str) -> LedgerComponent:
    if name not in LedgerComponent.__members__:
        components = ", ".join(LedgerComponent)
        _refuse(Reason.UNKNOWN_COMPONENT, f"ledgerComponent is {_shown(name)}, expected one of {components}")
    return LedgerComponent(name)


def _ledger_type(name: str) -> LedgerType:
    if name not in LedgerType.__members__:
        _refuse(Reason.UNKNOWN_LEDGER_TYPE, f"ledgerType is {_shown(name)}, expected one of {', '.join(LedgerType)}")
    return LedgerType(name)


def _managed_ledger(topic: str) -> str:
    try:
        return managed_ledger_name(topic)
    except ValueError as error:
        _refuse(Reason.BAD_TOPIC_NAME, f"topicName: {error}")


def _ledger_id(fields: Mapping[str, Any]) -> int:
    ledger_id = _required(fields, "ledgerId")
    if type(ledger_id) is not int:
        _refuse_type("ledgerId", ledger_id, "a whole number")
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        _refuse(Reason.BAD_LEDGER_ID, f"ledgerId is {str(ledger_id)[:40]}, expected 0 to {MAX_LEDGER_ID}")
    return ledger_id


def _cursor_name(fields: Mapping[str, Any], component: LedgerComponent) -> str | None:
    name = fields.get("cursorName")
    if name is not None and not isinstance(name, str):
        _refuse_type("cursorName", name, "a string")
    if component is not LedgerComponent.MANAGED_CURSOR:
        return None
    try:
        return encode_cursor(_required_text(fields, "cursorName"))
    except ValueError as error:
        _refuse(Reason.BAD_TOPIC_NAME, f"cursorName: {error}")


def _schema_id(fields: Mapping[str, Any], component: LedgerComponent, managed_ledger: str) -> str | None:
    """Read schemaId, which must be the topic's own: a request may not name one topic and delete another's schema."""
    schema_id = fields.get("schemaId")
    if schema_id is not None and type(schema_id) not in (str, int):
        _refuse_type("schemaId", schema_id, "a string")
    if component is not LedgerComponent.SCHEMA_STORAGE:
        return None
    given = str(_required(fields, "schemaId"))
    try:
        expected = schema_id_of(managed_ledger)
    except ValueError as error:
        _refuse(Reason.BAD_TOPIC_NAME, f"topicName: {error}")
    if given != expected:
        _refuse(Reason.BAD_TOPIC_NAME, f"schemaId is {_shown(given)}, but the topic's schema is {_shown(expected)}")
    return given


def _offload_context(fields: Mapping[str, Any], ledger_type: LedgerType) -> OffloadContext | None:
    context = fields.get("offloadContext")
    if context is not None and not isinstance(context, dict):
        _refuse_type("offloadContext", context, "an object")
    if ledger_type is not LedgerType.OFFLOAD_LEDGER:
        return None
    context = _required(fields, "offloadContext")
    flat = "msb" in context or "lsb" in context
    if flat and ("uidMsb" in context or "uidLsb" in context):
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, "offloadContext has uidMsb/uidLsb and msb/lsb: send one form")
    return _flat_context(context) if flat else _nested_context(context)


def _snapshot_context(
    fields: Mapping[str, Any], component: LedgerComponent, managed_ledger: str
) -> SnapshotContext | None:
    """Read which message is meant; its key must name the request's own topic."""
    context = fields.get("snapshotContext")
    if context is not None and not isinstance(context, dict):
        _refuse_type("snapshotContext", context, "an object")
    if component is not LedgerComponent.TRANSACTION_SNAPSHOT:
        return None
    context = _required(fields, "snapshotContext")
    kind, key, entry_id = (_required(context, name) for name in ("kind", "key", "entryId"))
    for name, value, expected in (("kind", kind, str), ("key", key, str), ("entryId", entry_id, int)):
        if type(value) is not expected:
            _refuse_type(name, value, _JSON_TYPES[expected])
    if kind not in BROKERS_KINDS:
        _refuse(Reason.BAD_SNAPSHOT_CONTEXT, f"kind is {_shown(kind)}, expected one of {', '.join(BROKERS_KINDS)}")
    if _topic_in(kind, key) != topic_of(managed_ledger):
        _refuse(Reason.BAD_SNAPSHOT_CONTEXT, f"key {_shown(key)} is no key of {kind} that names the topic")
    if not 0 <= entry_id <= MAX_LEDGER_ID:
        _refuse(Reason.BAD_SNAPSHOT_CONTEXT, f"entryId is {str(entry_id)[:40]}, expected 0 to {MAX_LEDGER_ID}")
    return SnapshotContext(kind, key, entry_id)


def _topic_in(kind: str, key: str) -> str | None:
    if kind == SnapshotKind.SEGMENT:
        segment = segment_key_of(key)
        return segment.topic if segment else None
    return key if is_topic(key) else None


def _nested_context(context: Mapping[str, Any]) -> OffloadContext:
    """Read the form of MLDataFormats.OffloadContext; an absent field has protobuf's default, as in Java."""
    driver = _context_field(context, "driverMetadata", dict, {})
    return OffloadContext(
        uuid=_context_uuid(context, "uidMsb", "uidLsb"),
        complete=_context_field(context, "complete", bool, False),
        bookkeeper_deleted=_context_field(context, "bookkeeperDeleted", bool, False),
        timestamp_ms=_context_long(context, "timestamp", 0),
        driver_name=_checked_text(_context_field(driver, "name", str, "")),
        driver_properties=_properties(_context_field(driver, "properties", list, [])),
    )


def _flat_context(context: Mapping[str, Any]) -> OffloadContext:
    """Read the form of DeleteLedgerPayload.OffloadContext, which describes complete offloads only."""
    return OffloadContext(
        uuid=_context_uuid(context, "msb", "lsb"),
        driver_name=_checked_text(_context_field(context, "driverName", str, "")),
        driver_properties=_text_map(list(_context_field(context, "metadata", dict, {}).items())),
    )


def _context_uuid(context: Mapping[str, Any], msb_name: str, lsb_name: str) -> str:
    halves = [_context_long(context, name, None) for name in (msb_name, lsb_name)]
    return uuid_text(*halves)


def _context_long(context: Mapping[str, Any], name: str, default: int | None) -> int:
    number: int | None = _context_field(context, name, int, default)
    if number is None:
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, f"offloadContext has no {name}, so it does not identify an upload")
    if not -(1 << 63) <= number < 1 << 63:
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, f"{name} of offloadContext does not fit 64 bits")
    return number


def _context_field(context: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = context.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, f"{name} is {_JSON_TYPES[type(value)]}, expected {_JSON_TYPES[kind]}")
    return value


def _properties(entries: list[Any]) -> dict[str, str]:
    if not all(isinstance(entry, dict) for entry in entries):
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, "properties of driverMetadata are not objects of key and value")
    return _text_map([(entry.get("key"), entry.get("value")) for entry in entries])


def _text_map(pairs: list[tuple[Any, Any]]) -> dict[str, str]:
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, "a property of the offload driver is not a string")
    texts = {_checked_text(key): _checked_text(value) for key, value in pairs}
    if len(texts) != len(pairs):
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, "a property of the offload driver appears twice")
    return texts


def _checked_text(text: str) -> str:
    """Refuse half of a surrogate pair: JSON can carry it, but the table of receipts can't."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        _refuse(Reason.BAD_OFFLOAD_CONTEXT, f"{_shown(text)} contains half of a surrogate pair")
    return text


def _offload_fields(context: OffloadContext) -> dict[str, Any]:
    msb, lsb = uuid_halves(context.uuid)
    properties = [{"key": key, "value": value} for key, value in context.driver_properties.items()]
    return {
        "uidMsb": msb,
        "uidLsb": lsb,
        "complete": context.complete,
        "bookkeeperDeleted": context.bookkeeper_deleted,
        "timestamp": context.timestamp_ms,
        "driverMetadata": {"name": context.driver_name, "properties": properties},
    }


def _required(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    if value is None:
        _refuse(Reason.MISSING_FIELD, f"{name} is missing (docs/request-format.md)")
    return value


def _required_text(fields: Mapping[str, Any], name: str) -> str:
    value = _required(fields, name)
    if not isinstance(value, str):
        _refuse_type(name, value, "a string")
    return value


def _refuse_type(name: str, value: object, expected: str) -> NoReturn:
    _refuse(Reason.WRONG_TYPE, f"{name} is {_JSON_TYPES[type(value)]}, expected {expected}")


def _refuse(reason: Reason, detail: str) -> NoReturn:
    raise _RefusedError(reason, detail)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")
