"""An entry as a broker's admin API returns it for a position: the payload is the body, all metadata are headers.

The body is decompressed, and a batch is a single body. Text that is not ASCII arrives as "?", since headers are ASCII.
For an entry of a transaction that is stored after the start of an open transaction, a broker does not report whether
the entry's own transaction was committed: that transaction counts as open.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import datetime

from udfs.formats.compression import Compression
from udfs.formats.entry import LATEST_MS, ChunkPart, Entry, EntryState

_PREFIX = "x-pulsar-"


def entry_of(headers: Mapping[str, str], body: bytes) -> tuple[Entry, EntryState]:
    """Read a broker's answer; a header with nonsense counts as absent. headers: by their names in lower case."""
    fields = {name.removeprefix(_PREFIX): text for name, text in headers.items() if name.startswith(_PREFIX)}
    most, least = _number(fields.get("txnid-most-bits")), _number(fields.get("txnid-least-bits"))
    entry = Entry(
        publish_ms=_millis(fields.get("publish-time", "")),
        key=_key(fields),
        properties=_properties(fields.get("property", "")),
        payload=body,
        compression=Compression.NONE,
        uncompressed_size=len(body),
        batch_size=_number(fields.get("num-batch-message")),
        is_encrypted=fields.get("is-encrypted") == "true",
        marker_type=_number(fields.get("marker-type")),
        chunk=_chunk(fields),
        transaction=None if most is None or least is None else (most, least),
    )
    if entry.transaction is None:
        # brokers set "uncommitted" on every entry after the first message of an open transaction
        return entry, EntryState.DELIVERED
    if fields.get("txn-aborted") == "true":
        return entry, EntryState.ABORTED
    return entry, EntryState.OPEN if fields.get("txn-uncommitted") == "true" else EntryState.DELIVERED


def _key(fields: Mapping[str, str]) -> bytes | None:
    key = fields.get("partition-key")
    if key is None or fields.get("null-partition-key") == "true":
        return None
    if fields.get("partition-key-b64-encoded") == "true":
        try:
            return base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            pass
    return key.encode()


def _properties(text: str) -> dict[str, str]:
    try:
        properties = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in properties.items()} if isinstance(properties, dict) else {}


def _chunk(fields: Mapping[str, str]) -> ChunkPart | None:
    number, of = _number(fields.get("chunk-id")), _number(fields.get("num-chunks-from-msg"))
    if number is None or of is None or of == 1:
        return None
    return ChunkPart(fields.get("uuid", "").encode(), number, of)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _millis(text: str) -> int:
    """Read an ISO 8601 time; years of more than four digits carry a sign."""
    if text[:1] in ("+", "-"):
        return LATEST_MS if text.startswith("+") else 0
    try:
        return min(max(round(datetime.fromisoformat(text).timestamp() * 1000), 0), LATEST_MS)
    except (ValueError, OverflowError):
        return 0
