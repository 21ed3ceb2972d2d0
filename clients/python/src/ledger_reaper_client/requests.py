"""Requests as messages: PIP-186's PendingDeleteLedgerInfo in JSON, with the owner as the message key.

The service decides for itself whether a ledger may be deleted. A request is only a hint, so it is checked here for
mistakes that the service would refuse, and for nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ledger_reaper_client.errors import InvalidRequestError
from ledger_reaper_client.names import MAX_LEDGER_ID, encode_cursor, parse_topic, shown

MAX_REQUEST_BYTES = 64 * 1024  # the service's default (service.max_request_bytes)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class LedgerComponent(str, Enum):
    """The part of Pulsar that wrote the ledger. PIP-186 defines the first three."""

    MANAGED_LEDGER = "MANAGED_LEDGER"  # the data of a topic
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"


class LedgerType(str, Enum):
    """The storage that holds the bytes."""

    LEDGER = "LEDGER"  # BookKeeper
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"  # tiered storage


_KIND_OF = {
    LedgerComponent.MANAGED_LEDGER: "data",
    LedgerComponent.COMPACTED_LEDGER: "compacted",
    LedgerComponent.DELAYED_INDEX_BUCKET: "buckets",
}


@dataclass(frozen=True)
class OffloadContext:
    """One upload of a ledger to tiered storage, as MLDataFormats.OffloadContext describes it in the topic's list."""

    uuid: str  # of the upload, in lower case
    complete: bool = True
    bookkeeper_deleted: bool = False
    timestamp_ms: int = 0
    driver_name: str = ""
    driver_properties: Mapping[str, str] = field(default_factory=dict)  # such as the bucket


@dataclass(frozen=True)
class Request:
    """A valid request as it is sent."""

    topic: str  # the owner's full name, persistent://tenant/ns/name
    ledger_type: LedgerType
    key: str  # names the owner, so that its requests stay in one partition
    payload: bytes


def request_for(
    topic: str,
    ledger_id: int,
    component: LedgerComponent,
    *,
    context: OffloadContext | None = None,
    cursor_name: str | None = None,
) -> Request:
    """Return the request for a ledger, or with a context for that upload of it to tiered storage.

    Raises InvalidRequestError.

    Args:
        topic: the owner; for a ledger of a partition, the partition.
        ledger_id: the ledger.
        component: what the ledger belongs to.
        context: the upload.
        cursor_name: the subscription, or its encoded name; for MANAGED_CURSOR only.
    """
    name = parse_topic(topic)
    kind = LedgerComponent(component)
    owner = name.managed_ledger
    fields: dict[str, Any] = {"topicName": owner, "ledgerComponent": kind.value}
    key = f"{_KIND_OF.get(kind, '')}:{owner}"
    if (kind is LedgerComponent.MANAGED_CURSOR) != (cursor_name is not None):
        raise InvalidRequestError(f"{kind.value}: MANAGED_CURSOR needs a cursor_name, and no other component takes one")
    if cursor_name is not None:
        fields["cursorName"] = encode_cursor(cursor_name)
        key = f"cursor:{owner}/{fields['cursorName']}"
    if kind is LedgerComponent.SCHEMA_STORAGE:
        fields["schemaId"] = name.schema_id
        key = f"schema:{name.schema_id}"
    ledger_type = LedgerType.LEDGER if context is None else LedgerType.OFFLOAD_LEDGER
    fields["ledgerType"] = ledger_type.value
    fields["ledgerId"] = checked_id(ledger_id)
    if context is not None:
        fields["offloadContext"] = _offload_fields(context)
    payload = json.dumps(fields, separators=(",", ":")).encode("ascii")
    if len(payload) > MAX_REQUEST_BYTES:
        raise InvalidRequestError(f"request of {len(payload)} bytes; the service reads at most {MAX_REQUEST_BYTES}")
    return Request(name.full, ledger_type, key, payload)


def checked_id(ledger_id: object) -> int:
    """Return a valid ledger id."""
    if type(ledger_id) is not int or not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise InvalidRequestError(f"{ledger_id!r} is no ledger id: expected 0 to {MAX_LEDGER_ID}")
    return ledger_id


def checked_uuid(uuid: object) -> str:
    """Return the valid UUID of an upload."""
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
        raise InvalidRequestError(f"{str(uuid)[:60]!a} is no UUID in lower case")
    return uuid


def _offload_fields(context: OffloadContext) -> dict[str, Any]:
    digits = checked_uuid(context.uuid).replace("-", "")
    if type(context.timestamp_ms) is not int or not -(1 << 63) <= context.timestamp_ms < 1 << 63:
        raise InvalidRequestError(f"timestamp_ms is {context.timestamp_ms!r}: expected a whole number of 64 bits")
    for flag in (context.complete, context.bookkeeper_deleted):
        if type(flag) is not bool:
            raise InvalidRequestError(f"complete and bookkeeper_deleted are True or False, not {flag!r}")
    properties = [{"key": _text(key), "value": _text(value)} for key, value in context.driver_properties.items()]
    return {
        "uidMsb": _signed(int(digits[:16], 16)),
        "uidLsb": _signed(int(digits[16:], 16)),
        "complete": context.complete,
        "bookkeeperDeleted": context.bookkeeper_deleted,
        "timestamp": context.timestamp_ms,
        "driverMetadata": {"name": _text(context.driver_name), "properties": properties},
    }


def _text(text: object) -> str:
    if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequestError(f"{shown(str(text))} of the offload context is not a text that has a UTF-8 form")
    return text


def _signed(half: int) -> int:
    return half - (1 << 64) if half >> 63 else half
