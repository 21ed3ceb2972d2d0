"""What follows from a verdict: a final receipt, another try and when, or the dead-letter topic."""

from dataclasses import dataclass
from hashlib import sha256

from udfs.records import Outcome, Reason, Verdict

# These say nothing about the request itself. Waiting for a person must not use up its tries, nor a wait that ends
# by itself (a day's quarantine is longer than ten tries ten minutes apart), nor an object store that is away.
_FREE_OF_CHARGE = frozenset(
    {
        Reason.SOURCE_SHRANK,
        Reason.TOO_YOUNG,
        Reason.ABOVE_NEWEST,
        Reason.OFFLOAD_IN_PROGRESS,
        Reason.STORE_UNAVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Disposition:
    """outcome is what the receipt says; attempt is what RECONSUMETIMES of a published copy says."""

    outcome: Outcome
    attempt: int


@dataclass(frozen=True, slots=True)
class Delays:
    """How long until the next look, in ms.

    base: reconsume_later. cap: longest that doubling may make it; 0: it does not double. not_closed: between two
    looks at a ledger that nobody closed, at least.
    """

    base_ms: int
    cap_ms: int = 0
    not_closed_ms: int = 0


def delay_ms(reason: Reason, delays: Delays, *, attempt: int, seed: str) -> int:
    """How long a request that was put off for the attempt-th time waits; the same for the same seed.

    What nobody closed changes in days, if ever. It is looked at as often as anything else, but so far apart that
    its tries outlast the quarantine: then it is deleted, or reported as a dead letter.
    """
    if reason is Reason.NOT_CLOSED:
        return max(delays.base_ms, delays.not_closed_ms)
    if delays.cap_ms:
        return backoff_ms(max(attempt, 1), base_ms=delays.base_ms, cap_ms=delays.cap_ms, seed=seed)
    return delays.base_ms


def dispose(verdict: Verdict, *, attempt: int, max_retry_delete_count: int) -> Disposition:
    """Count as the Java client does: copies carry 1, 2, …; the dead letter carries max_retry_delete_count + 1."""
    if verdict.outcome is Outcome.DEAD_LETTER:
        return Disposition(Outcome.DEAD_LETTER, attempt)
    if verdict.outcome is not Outcome.RETRY:
        return Disposition(verdict.outcome, attempt)
    if verdict.reason in _FREE_OF_CHARGE:
        return Disposition(Outcome.RETRY, attempt)
    tried = attempt + 1
    return Disposition(Outcome.DEAD_LETTER if tried > max_retry_delete_count else Outcome.RETRY, tried)


def backoff_ms(attempt: int, *, base_ms: int, cap_ms: int, seed: str) -> int:
    """Return base_ms for the first attempt, then about twice as long each time, up to cap_ms.

    From the second attempt on up to a quarter is taken off, so that messages put off together don't come back
    together. The same seed (a message id) and attempt give the same answer: a replayed batch writes the same copy.
    """
    longest = min(max(cap_ms, base_ms), base_ms << min(max(attempt - 1, 0), 62))
    shortest = max(base_ms, longest - longest // 4)
    fraction = int.from_bytes(sha256(f"{seed}/{attempt}".encode("utf-8", "backslashreplace")).digest()[:4], "big")
    return shortest + (longest - shortest) * fraction // 0xFFFFFFFF
