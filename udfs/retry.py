"""Retry-letter properties as the Java client writes and reads them, so that either side can go on with the other's.

Anybody who can publish can write these properties. So nonsense in them counts as absent, and the largest number
believed is one that can't hold a query up or overflow a counter.
"""

from collections.abc import Mapping

from udfs.sightings import OWNER_ABSENT_SINCE
from udfs.wire import MAX_PAYLOAD_BYTES

RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
REAL_TOPIC = "REAL_TOPIC"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# deprecated in the Java client, which still writes it beside ORIGIN_MESSAGE_ID, and old consumers read it
ORIGIN_MESSAGE_IDY_TIME = "ORIGIN_MESSAGE_IDY_TIME"
REASON = "REASON"
# our own: <receipts table>/<sequence id>, by which a copy is known again once the broker has forgotten its producer
COPY_ID = "COPY_ID"
# on a dead letter whose payload is only the beginning of the original's: how many bytes that had
CUT_FROM = "CUT_FROM"

# Beyond any max_retry_delete_count, so the request goes to the dead letters at its next failure.
MAX_ATTEMPT = 1_000_000
# Longer than any sensible reconsume_later; a copy that claims more would lie in the retry topic for ever.
MAX_DELAY_MS = 7 * 24 * 3600 * 1000
MAX_REASON_LENGTH = 1000
# Of a copy; brokers take 5 MiB in all (maxMessageSize), unless they are set to less.
MAX_ABOUT_BYTES = 256 * 1024
MAX_PROPERTY_BYTES = 4096
CUT_BYTES = 64 * 1024

_RETRY_PROPERTIES = frozenset(
    {RECONSUMETIMES, DELAY_TIME, REAL_TOPIC, RETRY_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME, REASON, COPY_ID}
)
_OURS = _RETRY_PROPERTIES | {OWNER_ABSENT_SINCE}


def attempt_of(properties: Mapping[str, str | None]) -> int:
    """Return how often the message was put off: 0 for an original and for nonsense, at most MAX_ATTEMPT."""
    return _number(properties.get(RECONSUMETIMES), MAX_ATTEMPT)


def delay_ms_of(properties: Mapping[str, str | None]) -> int:
    """Return how long after its publication the message is due; 0 for nonsense, at most MAX_DELAY_MS."""
    return _number(properties.get(DELAY_TIME), MAX_DELAY_MS)


def due_ms(publish_time_ms: int, properties: Mapping[str, str | None]) -> int:
    """Return the time from which on the message may be worked off. Readers get delayed messages at once."""
    return publish_time_ms + delay_ms_of(properties)


def as_original(properties: Mapping[str, str]) -> dict[str, str]:
    """Drop every property that only we write, so that the message counts as published for the first time."""
    return {name: value for name, value in properties.items() if name not in _OURS}


def retry_properties(
    properties: Mapping[str, str], *, real_topic: str, origin_id: str, attempt: int, delay_ms: int
) -> dict[str, str]:
    """Return the properties of a copy for the retry topic, sorted by name as Java's are.

    The message's own are kept, REAL_TOPIC too (a copy of a copy belongs to the first topic). origin_id is the
    caller's word and replaces what stands there, so that receipts of one request are found together.
    """
    return _copied(properties, real_topic, origin_id, {RECONSUMETIMES: str(attempt), DELAY_TIME: str(delay_ms)})


def dead_letter_properties(
    properties: Mapping[str, str], *, real_topic: str, origin_id: str, attempt: int, reason: str
) -> dict[str, str]:
    """Return the properties of a copy for the dead-letter topic: those of a retry, and REASON."""
    return _copied(
        properties, real_topic, origin_id, {RECONSUMETIMES: str(attempt), REASON: reason[:MAX_REASON_LENGTH]}
    )


def fitting(payload: bytes, key: bytes, properties: Mapping[str, str]) -> tuple[bytes, bytes, dict[str, str]]:
    """Return of a copy what every broker will store: a compressed message may be larger than what they take.

    No request has so long a payload, so it is no loss to cut it; CUT_FROM tells how many bytes there were. Key and
    others' properties go as a whole: half a property would say something else.
    """
    kept = dict(properties)
    if len(key) + sum(_size(name) + _size(value) for name, value in kept.items()) > MAX_ABOUT_BYTES:
        key = b""
        kept = {name: value for name, value in kept.items() if name in _OURS and _size(value) <= MAX_PROPERTY_BYTES}
    if len(payload) > MAX_PAYLOAD_BYTES:
        kept[CUT_FROM] = str(len(payload))
        payload = payload[:CUT_BYTES]
    return payload, key, kept


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
    # Comparing lengths first: int() of a megabyte of digits is an error.
    digits = text.lstrip("0")
    return largest if len(digits) > len(str(largest)) else min(int(digits or "0"), largest)
