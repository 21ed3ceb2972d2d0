"""An entry as a broker's admin API shows it, asked for by its position: the payload is the body, the rest are headers.

The body is decompressed, yet a batch is one body. Text that is not ASCII arrives as "?": headers have no more. Of a
transaction behind another one that is open, a broker does not say whether it was committed: it counts as open.
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
    """Read a broker's answer; a header with nonsense in it counts as none. headers: by their names in small letters."""
    said = {name.removeprefix(_PREFIX): text for name, text in headers.items() if name.startswith(_PREFIX)}
    most, least = _number(said.get("txnid-most-bits")), _number(said.get("txnid-least-bits"))
    entry = Entry(
        publish_ms=_millis(said.get("publish-time", "")),
        key=_key(said),
        properties=_properties(said.get("property", "")),
        payload=body,
        compression=Compression.NONE,
        uncompressed_size=len(body),
        batch_size=_number(said.get("num-batch-message")),
        is_encrypted=said.get("is-encrypted") == "true",
        marker_type=_number(said.get("marker-type")),
        chunk=_chunk(said),
        transaction=None if most is None or least is None else (most, least),
    )
    if entry.transaction is None:
        # "uncommitted" is said of everything behind the first message of an open transaction
        return entry, EntryState.DELIVERED
    if said.get("txn-aborted") == "true":
        return entry, EntryState.ABORTED
    return entry, EntryState.OPEN if said.get("txn-uncommitted") == "true" else EntryState.DELIVERED


def _key(said: Mapping[str, str]) -> bytes | None:
    key = said.get("partition-key")
    if key is None or said.get("null-partition-key") == "true":
        return None
    if said.get("partition-key-b64-encoded") == "true":
        try:
            return base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            pass
    return key.encode()


def _properties(text: str) -> dict[str, str]:
    try:
        named = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in named.items()} if isinstance(named, dict) else {}


def _chunk(said: Mapping[str, str]) -> ChunkPart | None:
    number, of = _number(said.get("chunk-id")), _number(said.get("num-chunks-from-msg"))
    if number is None or of is None or of == 1:
        return None
    return ChunkPart(said.get("uuid", "").encode(), number, of)


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
