"""Turns a verdict into the request's future: it is finished, retried later, or becomes a dead letter."""

from dataclasses import dataclass
from hashlib import sha256

from udfs.records import Outcome, Reason, Verdict
from udfs.requests.retry import MAX_DELAY_MS

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

    A broker may publish a request before it removes the ledger from its list. While fresh_ms (the rest of that time) is
    not over, an owner that still names the ledger costs the request no try.
    """
    if verdict.reason is Reason.IN_USE and fresh_ms > 0:
        return min(delays.base_ms, max(fresh_ms, _SHORTEST_FRESH_WAIT_MS)), attempt - 1
    return delay_ms(verdict, delays, attempt=attempt, seed=seed), attempt


def delay_ms(verdict: Verdict, delays: Delays, *, attempt: int, seed: str) -> int:
    """Return the delay before the attempt-th retry; the same seed gives the same delay."""
    if verdict.wait_ms > 0:
        # The next try comes when the reason ends. A longer wait takes one receipt a week (MAX_DELAY_MS), and clocks
        # that differ a little add at most one receipt for each base_ms.
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
