"""Retries and dead letters: what becomes of a request after its verdict, and the properties of its copies.

The Java client writes and reads the properties in the same way, so that either of us can continue from the other's
copies.

Any sender can write these properties. So nonsense in them counts as absent, and a number that is too large counts as
our maximum (MAX_ATTEMPT, MAX_DELAY_MS), which neither delays a query nor overflows a counter.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from udfs.owners.sightings import OWNER_ABSENT_SINCE
from udfs.records import Outcome, Reason, Rejection, Verdict
from udfs.requests.request_format import MAX_PAYLOAD_BYTES, decode, encode
from udfs.units import MAX_DELAY_MS

RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
REAL_TOPIC = "REAL_TOPIC"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# The Java client has deprecated this one, but still writes it beside ORIGIN_MESSAGE_ID, and old consumers read it.
ORIGIN_MESSAGE_IDY_TIME = "ORIGIN_MESSAGE_IDY_TIME"
REASON = "REASON"
# Our own: <receipts table>/<sequence id>. It identifies a copy when the broker has forgotten its producer.
COPY_ID = "COPY_ID"
# Marks a copy whose key is the original's bytes in base64.
BASE64_KEY = "BASE64_KEY"
# Marks a copy with less than the original payload, mostly only its start; the value is the original's length in bytes.
CUT_FROM = "CUT_FROM"

# Beyond any max_retry_delete_count, so the request goes to the dead letters at its next failure.
MAX_ATTEMPT = 1_000_000
MAX_REASON_LENGTH = 1000
# Limits of a copy; brokers take messages of 5 MiB in all (maxMessageSize), unless they are configured to take less.
DEFAULT_MESSAGE_BYTES = 5 * 1024 * 1024
# From this limit on, every copy fits: key, properties and metadata take at most half of the limit.
LEAST_MESSAGE_BYTES = 16 * 1024
MAX_ABOUT_BYTES = 256 * 1024
# A copy stored after an open transaction is returned only by the admin API, with its key and properties as HTTP
# headers. No client can read an answer whose headers are larger than 64 KiB, or contain a control character.
MAX_SHOWN_BYTES = 32 * 1024
MAX_PROPERTY_BYTES = 4096
CUT_BYTES = 64 * 1024
# The producer's name, times, ids and COPY_ID.
_ENVELOPE_BYTES = 1024
# The encoding of each property.
_PROPERTY_OVERHEAD_BYTES = 16
_SHORT_REASON_LENGTH = 200
# Any property that we write, except REAL_TOPIC and REASON, is shorter.
_SHORT_BYTES = 256
_MAX_CUT_FROM = 1 << 40
_CUT_FROM_BYTES = 64

_RETRY_PROPERTIES = frozenset(
    {RECONSUMETIMES, DELAY_TIME, REAL_TOPIC, RETRY_TOPIC, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME, REASON, COPY_ID}
)
_OURS = _RETRY_PROPERTIES | {OWNER_ABSENT_SINCE}
# The properties that a copy keeps if key and properties are too large.
KEPT = _OURS | {CUT_FROM}
# Dropped, however short, if a copy's essential properties are still too large: another property has the same value, or
# we do not read it.
_FOR_OTHER_READERS = frozenset({RETRY_TOPIC, ORIGIN_MESSAGE_IDY_TIME})

# These reasons are not about the request itself, so they cost it no try: it waits for an operator, for a quarantine
# that ends by itself (a day is longer than ten tries ten minutes apart), or for an object store or a broker that is
# away. Any other reason costs no try either if the judge knows when it ends (Verdict.wait_ms).
_FREE_OF_CHARGE = frozenset(
    {
        Reason.SOURCE_SHRANK,
        Reason.TENANT_HELD,
        Reason.TOO_YOUNG,
        Reason.ABOVE_NEWEST,
        Reason.OFFLOAD_IN_PROGRESS,
        Reason.STORE_UNAVAILABLE,
        Reason.BROKER_UNAVAILABLE,
        Reason.OWNER_HIDDEN,
        Reason.NOT_GUARDED,
    }
)
_SHORTEST_FRESH_WAIT_MS = 1000


@dataclass(frozen=True, slots=True)
class Disposition:
    """How a request continues after a verdict."""

    outcome: Outcome  # of the receipt
    attempt: int  # RECONSUMETIMES of a published copy


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays before the next try."""

    base_ms: int  # reconsume_later
    cap_ms: int = 0  # the delay doubles from try to try up to this; 0: it does not double
    not_closed_ms: int = 0  # the shortest delay for a ledger that is not CLOSED and has no known end of that state


def dispose(verdict: Verdict, *, attempt: int, max_retry_delete_count: int) -> Disposition:
    """Decide whether the request is tried again. attempt: how often it was retried so far.

    We count as the Java client does: copies carry 1, 2, …; the dead letter carries max_retry_delete_count + 1.
    """
    if verdict.outcome is Outcome.DEAD_LETTER:
        return Disposition(Outcome.DEAD_LETTER, attempt)
    if verdict.outcome is not Outcome.RETRY:
        return Disposition(verdict.outcome, attempt)
    if verdict.reason in _FREE_OF_CHARGE or verdict.wait_ms > 0:
        return Disposition(Outcome.RETRY, attempt)
    tried = attempt + 1
    return Disposition(Outcome.DEAD_LETTER if tried > max_retry_delete_count else Outcome.RETRY, tried)


def next_look(verdict: Verdict, delays: Delays, *, attempt: int, seed: str, fresh_ms: int = 0) -> tuple[int, int]:
    """Return the delay of the next try, and the number of tries that the copy carries.

    A broker may publish a request before it removes the ledger from its list. fresh_ms is what is left of the time that
    the broker gets for that; while it is above 0, an owner that still names the ledger costs the request no try.
    """
    if verdict.reason is Reason.IN_USE and fresh_ms > 0:
        return min(delays.base_ms, max(fresh_ms, _SHORTEST_FRESH_WAIT_MS)), attempt - 1
    return delay_ms(verdict, delays, attempt=attempt, seed=seed), attempt


def delay_ms(verdict: Verdict, delays: Delays, *, attempt: int, seed: str) -> int:
    """Return the delay before the attempt-th retry; the same seed gives the same delay."""
    if verdict.wait_ms > 0:
        # The next try comes when the reason ends. During a longer wait there is a try, with a receipt, once a week
        # (MAX_DELAY_MS). If clocks differ a little, a try may come too early, which adds at most one receipt for each
        # base_ms.
        return min(max(delays.base_ms, verdict.wait_ms), MAX_DELAY_MS)
    if verdict.reason is Reason.NOT_CLOSED:
        return max(delays.base_ms, delays.not_closed_ms)  # such a ledger changes in days, if ever
    if delays.cap_ms:
        return backoff_ms(max(attempt, 1), base_ms=delays.base_ms, cap_ms=delays.cap_ms, seed=seed)
    return delays.base_ms


def backoff_ms(attempt: int, *, base_ms: int, cap_ms: int, seed: str) -> int:
    """Return base_ms for the first attempt, then about twice as long each time, up to cap_ms.

    From the second attempt on it subtracts up to a quarter, so that messages that were delayed together don't come
    back together. The same seed (a message id) and attempt give the same answer: a replayed batch writes the same copy.
    """
    longest = min(max(cap_ms, base_ms), base_ms << min(max(attempt - 1, 0), 62))
    shortest = max(base_ms, longest - longest // 4)
    fraction = int.from_bytes(sha256(f"{seed}/{attempt}".encode("utf-8", "backslashreplace")).digest()[:4], "big")
    return shortest + (longest - shortest) * fraction // 0xFFFFFFFF


def attempt_of(properties: Mapping[str, str | None]) -> int:
    """Return how often the message was retried: 0 for an original and for nonsense, at most MAX_ATTEMPT."""
    return _number(properties.get(RECONSUMETIMES), MAX_ATTEMPT)


def delay_ms_of(properties: Mapping[str, str | None]) -> int:
    """Return how long after its publication the message is due; 0 for nonsense, at most MAX_DELAY_MS."""
    return _number(properties.get(DELAY_TIME), MAX_DELAY_MS)


def due_ms(publish_time_ms: int, properties: Mapping[str, str | None]) -> int:
    """Return when the message may be processed. Pulsar does not delay it: readers get it at once."""
    return publish_time_ms + delay_ms_of(properties)


def as_original(properties: Mapping[str, str]) -> dict[str, str]:
    """Drop the properties of retries and dead letters (_OURS): the message counts as published for the first time."""
    return {name: value for name, value in properties.items() if name not in _OURS}


def retry_properties(
    properties: Mapping[str, str], *, real_topic: str, origin_id: str, attempt: int, delay_ms: int
) -> dict[str, str]:
    """Return the properties of a copy for the retry topic, sorted by name as Java's are.

    The copy keeps the message's own properties, REAL_TOPIC too (a copy of a copy belongs to the first topic). origin_id
    replaces the message's ORIGIN_MESSAGE_ID, so that all receipts of a request carry the same id.
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
    """Shorten a copy to a size that its broker accepts: an original that arrived compressed may be larger.

    A request that is too long keeps only the fields that we read. If it is still too long, or the payload is no
    request, the payload is cut to its first 64 KiB (CUT_BYTES), or to what fits if that is less. CUT_FROM records the
    original length.

    Args:
        payload: of the copy.
        key: of the copy; a key that is not plain text becomes base64 (BASE64_KEY), so that every copy can be shown.
        properties: of the copy.
        most_bytes: the largest message that the broker accepts; from LEAST_MESSAGE_BYTES on, every copy fits.
        most_shown: the most bytes of key and properties, as the admin API shows them.
    """
    kept = dict(properties)
    if not _is_plain(key):
        key, kept = base64.b64encode(key), kept | {BASE64_KEY: "true"}
    # The key and others' properties are dropped as a whole: half a property would have another meaning.
    if is_oversized(key, kept) or _exceeds(key, kept, most_bytes, most_shown):
        key, kept = b"", essential_properties(kept)
    if _exceeds(key, kept, most_bytes, most_shown):
        kept |= {REASON: kept[REASON][:_SHORT_REASON_LENGTH]} if REASON in kept else {}
        kept = {name: value for name, value in kept.items() if _is_needed(name, value)}
    available = max(0, min(MAX_PAYLOAD_BYTES, most_bytes - _stored_about(key, kept) - _CUT_FROM_BYTES))
    if len(payload) > available:
        kept[CUT_FROM] = str(max(len(payload), _number(kept.get(CUT_FROM), _MAX_CUT_FROM)))
        payload = _shortened(payload, available)
    return payload, key, kept


def is_oversized(key: bytes, properties: Mapping[str, str]) -> bool:
    """Whether key and properties of a message are larger than we carry (MAX_ABOUT_BYTES)."""
    return _size_about(key, properties) > MAX_ABOUT_BYTES


def essential_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that an oversized message keeps."""
    return {name: value for name, value in properties.items() if name in KEPT and _size(value) <= MAX_PROPERTY_BYTES}


def _is_plain(key: bytes) -> bool:
    """Whether a key can be an HTTP header unchanged: printable ASCII, without a space at its ends."""
    return key.isascii() and key.decode("ascii").isprintable() and key == key.strip()


def _exceeds(key: bytes, properties: Mapping[str, str], most_bytes: int, most_shown: int | None) -> bool:
    if _stored_about(key, properties) > most_bytes // 2:
        return True
    return most_shown is not None and len(key) + len(json.dumps(dict(properties))) > most_shown


def _is_needed(name: str, value: str) -> bool:
    """Whether a property stays if a broker accepts small messages only."""
    # REAL_TOPIC decides which rights a request has
    return name in (REAL_TOPIC, REASON) or (name not in _FOR_OTHER_READERS and _size(value) <= _SHORT_BYTES)


def _shortened(payload: bytes, available: int) -> bytes:
    request = decode(payload, MAX_PAYLOAD_BYTES)
    written = None if isinstance(request, Rejection) else encode(request)
    return payload[: min(CUT_BYTES, available)] if written is None or len(written) > available else written


def _size_about(key: bytes, properties: Mapping[str, str]) -> int:
    return len(key) + sum(_size(name) + _size(value) for name, value in properties.items())


def _stored_about(key: bytes, properties: Mapping[str, str]) -> int:
    """Return an upper bound of an entry's bytes without the payload."""
    written = len(key) if key.isascii() else 3 * len(key)  # a byte that is not text is stored as three
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
