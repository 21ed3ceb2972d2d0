"""Properties of retry and dead letters, as the Java client writes and reads them: each can go on with the other's.

Anybody who can publish can write these properties. So nonsense in them counts as absent, and a number that is too large
counts as the largest that can't hold a query up or overflow a counter.
"""

import base64
import json
from collections.abc import Mapping

from udfs.records import Rejection
from udfs.sightings import OWNER_ABSENT_SINCE
from udfs.units import DAY_MS
from udfs.wire import MAX_PAYLOAD_BYTES, decode, encode

RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
REAL_TOPIC = "REAL_TOPIC"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# The Java client has deprecated this one, but still writes it beside ORIGIN_MESSAGE_ID, and old consumers read it.
ORIGIN_MESSAGE_IDY_TIME = "ORIGIN_MESSAGE_IDY_TIME"
REASON = "REASON"
# Our own: <receipts table>/<sequence id>. By it we recognise a copy when the broker has forgotten its producer.
COPY_ID = "COPY_ID"
# On a copy whose key is not the original's, but that one's bytes in base64.
BASE64_KEY = "BASE64_KEY"
# On a copy that holds less than the original payload, mostly its beginning: how many bytes the original had.
CUT_FROM = "CUT_FROM"

# Beyond any max_retry_delete_count, so the request goes to the dead letters at its next failure.
MAX_ATTEMPT = 1_000_000
# Longer than any sensible reconsume_later; a copy with a longer delay would stay in the retry topic for ever.
MAX_DELAY_MS = 7 * DAY_MS
MAX_REASON_LENGTH = 1000
# Limits of a copy; brokers take messages of 5 MiB in all (maxMessageSize), unless they are configured to take less.
DEFAULT_MESSAGE_BYTES = 5 * 1024 * 1024
# What we write about a copy, without the payload, has at most half as many bytes.
LEAST_MESSAGE_BYTES = 16 * 1024
MAX_ABOUT_BYTES = 256 * 1024
# Behind an open transaction we get a copy from the admin API only, its key and properties as HTTP headers. Nobody can
# read an answer whose headers are larger than 64 KiB, or hold a control character.
MAX_SHOWN_BYTES = 32 * 1024
MAX_PROPERTY_BYTES = 4096
CUT_BYTES = 64 * 1024
# The producer's name, times, ids, COPY_ID, and what stands around each property.
_ENVELOPE_BYTES = 1024
_PROPERTY_OVERHEAD_BYTES = 16
_SHORT_REASON_LENGTH = 200
# What we write into any property but REAL_TOPIC and REASON is shorter.
_SHORT_BYTES = 256
_MAX_CUT_FROM = 1 << 40
_CUT_FROM_BYTES = 64

_RETRY_PROPERTIES = frozenset(
    {RECONSUMETIMES, DELAY_TIME, REAL_TOPIC, RETRY_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME, REASON, COPY_ID}
)
_OURS = _RETRY_PROPERTIES | {OWNER_ABSENT_SINCE}
# What stays of a message that says too much about itself.
KEPT = _OURS | {CUT_FROM}
# Left out first where a broker takes little: another property says the same, or we do not read it.
_FOR_OTHER_READERS = frozenset({RETRY_TOPIC, ORIGIN_MESSAGE_IDY_TIME})


def attempt_of(properties: Mapping[str, str | None]) -> int:
    """Return how often the message was put off: 0 for an original and for nonsense, at most MAX_ATTEMPT."""
    return _number(properties.get(RECONSUMETIMES), MAX_ATTEMPT)


def delay_ms_of(properties: Mapping[str, str | None]) -> int:
    """Return how long after its publication the message is due; 0 for nonsense, at most MAX_DELAY_MS."""
    return _number(properties.get(DELAY_TIME), MAX_DELAY_MS)


def due_ms(publish_time_ms: int, properties: Mapping[str, str | None]) -> int:
    """Return the time from which on the message may be worked off: Pulsar hands delayed messages to readers at once."""
    return publish_time_ms + delay_ms_of(properties)


def as_original(properties: Mapping[str, str]) -> dict[str, str]:
    """Drop every property that only we write, so that the message counts as published for the first time."""
    return {name: value for name, value in properties.items() if name not in _OURS}


def retry_properties(
    properties: Mapping[str, str], *, real_topic: str, origin_id: str, attempt: int, delay_ms: int
) -> dict[str, str]:
    """Return the properties of a copy for the retry topic, sorted by name as Java's are.

    The message's own properties are kept, REAL_TOPIC too (a copy of a copy belongs to the first topic). origin_id
    replaces the one that the message has, so that all receipts of a request carry the same.
    """
    return _copied(properties, real_topic, origin_id, {RECONSUMETIMES: str(attempt), DELAY_TIME: str(delay_ms)})


def dead_letter_properties(
    properties: Mapping[str, str], *, real_topic: str, origin_id: str, attempt: int, reason: str
) -> dict[str, str]:
    """Return the properties of a copy for the dead-letter topic: those of a retry, and REASON."""
    return _copied(
        properties, real_topic, origin_id, {RECONSUMETIMES: str(attempt), REASON: reason[:MAX_REASON_LENGTH]}
    )


def fitting(
    payload: bytes,
    key: bytes,
    properties: Mapping[str, str],
    most_bytes: int = DEFAULT_MESSAGE_BYTES,
    *,
    most_shown: int | None = None,
) -> tuple[bytes, bytes, dict[str, str]]:
    """Cut a copy down to what its broker stores: an original may have got in compressed, and be larger than that.

    most_bytes: what the broker takes in all; from LEAST_MESSAGE_BYTES on, every copy can be made to fit. most_shown:
    how many bytes key and properties may have as the admin API shows them. The key and others' properties are dropped
    whole: half a property would mean something else. A key that is no plain text becomes base64 (BASE64_KEY), so that
    every copy can be shown. Of a request that is too long, what we do not read is left out. Any other payload is cut,
    so that nothing of a request is lost unless the request itself is longer than the broker takes. CUT_FROM says how
    many bytes there were.
    """
    kept = dict(properties)
    if not _is_plain(key):
        key, kept = base64.b64encode(key), kept | {BASE64_KEY: "true"}
    if says_too_much(key, kept) or _is_too_much(key, kept, most_bytes, most_shown):
        key, kept = b"", kept_of(kept)
    if _is_too_much(key, kept, most_bytes, most_shown):
        kept |= {REASON: kept[REASON][:_SHORT_REASON_LENGTH]} if REASON in kept else {}
        kept = {name: value for name, value in kept.items() if _is_needed(name, value)}
    room = max(0, min(MAX_PAYLOAD_BYTES, most_bytes - _stored_about(key, kept) - _CUT_FROM_BYTES))
    if len(payload) > room:
        kept[CUT_FROM] = str(max(len(payload), _number(kept.get(CUT_FROM), _MAX_CUT_FROM)))
        payload = _shortened(payload, room)
    return payload, key, kept


def says_too_much(key: bytes, properties: Mapping[str, str]) -> bool:
    """Whether key and properties of a message are larger than we carry (MAX_ABOUT_BYTES)."""
    return _size_about(key, properties) > MAX_ABOUT_BYTES


def kept_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return what stays of the properties of a message that says too much about itself."""
    return {name: value for name, value in properties.items() if name in KEPT and _size(value) <= MAX_PROPERTY_BYTES}


def _is_plain(key: bytes) -> bool:
    """Whether a key can be an HTTP header as it is: printable ASCII, and no space at its ends."""
    return key.isascii() and key.decode("ascii").isprintable() and key == key.strip()


def _is_too_much(key: bytes, properties: Mapping[str, str], most_bytes: int, most_shown: int | None) -> bool:
    if _stored_about(key, properties) > most_bytes // 2:
        return True
    return most_shown is not None and len(key) + len(json.dumps(dict(properties))) > most_shown


def _is_needed(name: str, value: str) -> bool:
    """Whether a property stays where a broker takes little. By REAL_TOPIC we know whose rights a request has."""
    return name in (REAL_TOPIC, REASON) or (name not in _FOR_OTHER_READERS and _size(value) <= _SHORT_BYTES)


def _shortened(payload: bytes, room: int) -> bytes:
    request = decode(payload, MAX_PAYLOAD_BYTES)
    written = None if isinstance(request, Rejection) else encode(request)
    return payload[: min(CUT_BYTES, room)] if written is None or len(written) > room else written


def _size_about(key: bytes, properties: Mapping[str, str]) -> int:
    return len(key) + sum(_size(name) + _size(value) for name, value in properties.items())


def _stored_about(key: bytes, properties: Mapping[str, str]) -> int:
    """At most so many bytes lie in an entry beside the payload. A byte of a key that is no text is stored as three."""
    written = len(key) if key.isascii() else 3 * len(key)
    return _size_about(b"", properties) + written + len(properties) * _PROPERTY_OVERHEAD_BYTES + _ENVELOPE_BYTES


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _copied(
    properties: Mapping[str, str], real_topic: str, origin_id: str, replaced: Mapping[str, str]
) -> dict[str, str]:
    origin = {ORIGIN_MESSAGE_ID: origin_id, ORIGIN_MESSAGE_IDY_TIME: origin_id}
    return dict(sorted(({REAL_TOPIC: real_topic} | dict(properties) | origin | dict(replaced)).items()))


def _number(text: str | None, largest: int) -> int:
    if text is None or not (text.isascii() and text.isdecimal()):
        return 0
    # Compare lengths first: int() of a megabyte of digits raises an error.
    digits = text.lstrip("0")
    return largest if len(digits) > len(str(largest)) else min(int(digits or "0"), largest)
