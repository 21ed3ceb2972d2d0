"""The one place that says whether a BookKeeper ledger may be deleted.

Rules, in this order; reasons to keep come first:
1. an owner that could not be read, or that refers to the ledger, keeps it;
2. a ledger that does not exist is already gone; one that can't be parsed is kept;
3. a ledger that says it belongs to something else is refused for good;
4. a ledger that is not CLOSED or too young is kept for now;
5. so is, for a long quarantine, one that a stalled broker might still publish;
6. what no znode's version guards (an absent owner, a compacted ledger) must be seen twice, far enough apart;
7. then, and only then, it is deleted.
"""

from bisect import bisect_left
from dataclasses import dataclass

from udfs.completeness import shrunk
from udfs.ownership import mismatch
from udfs.records import (
    Counts,
    LedgerComponent,
    LedgerFacts,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    Outcome,
    PendingDelete,
    Presence,
    Reason,
    Reference,
    Verdict,
)

# Their ledger is CLOSED before anything refers to it. A broker that stalls in between publishes it later, by a
# compare-and-set that our version check can't foresee; and a newer one published meanwhile proves nothing: a locator
# that was deleted again can be created again, and buckets are published in any order. Only time tells.
_CLOSED_BEFORE_REFERENCED = frozenset(
    {LedgerComponent.SCHEMA_STORAGE, LedgerComponent.COMPACTED_LEDGER, LedgerComponent.DELAYED_INDEX_BUCKET}
)


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient to be; all in milliseconds. open_quarantine_ms 0: a ledger that is OPEN is never deleted.

    absence_expires_ms: an older first sighting counts as none, since the owner may have lived in between; it is
    never less than ten intervals. max_shrink: share of an owner's ledgers (where it had more than shrink_applies_above)
    that may be gone from its list since the last look; 1: any.
    """

    min_age_ms: int
    above_newest_quarantine_ms: int
    absence_interval_ms: int
    open_quarantine_ms: int = 0
    absence_expires_ms: int = 24 * 3600 * 1000
    max_shrink: float = 1.0
    shrink_applies_above: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One request with all that is known of it. ledger is None: its znode does not exist.

    absent_since_ms: when we ourselves first saw the owner gone (a compacted ledger: unreferenced), as we signed
    it then; None: never. believed: how much the owner's sources named when they were last believed; None: not known.
    """

    request: PendingDelete
    ledger: LedgerFacts | None
    reference: Reference
    absent_since_ms: int | None = None
    believed: Counts | None = None


def judge(case: Case, policy: Policy, *, now_ms: int) -> Verdict:
    """Say DELETED only when every reason to keep the ledger is ruled out. Raises ValueError for OFFLOAD_LEDGER."""
    if case.request.ledger_type is not LedgerType.LEDGER:
        raise ValueError(f"ledger {case.request.ledger_id}: {case.request.ledger_type} is not in BookKeeper")
    kept = _kept_by_owner(case)
    if kept is not None:
        return kept
    if case.ledger is None:
        return Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND)
    if case.ledger.metadata is None:
        return _later(Reason.LEDGER_UNREADABLE, f"{case.ledger.path} can't be parsed")
    unchanged_ms = now_ms - case.ledger.last_change_ms
    return (
        _refused(case.request, case.ledger.metadata)
        or _kept_by_state(case, case.ledger.metadata, policy, unchanged_ms)
        or kept_by_shrinkage(case.reference, case.believed, policy)
        or _kept_by_quarantine(case, policy, unchanged_ms)
        or _by_second_look(case, policy, now_ms)
    )


def is_above_newest(request: PendingDelete, reference: Reference) -> bool:
    """Whether the ledger is newer than all that the owner's list names, even if it names none.

    A cached list is then stale; and only what was published before a newer one can't be published any more.
    """
    return reference.presence is Presence.PRESENT and request.ledger_id > reference.newest_id


def seen_before(absent_since_ms: int | None, policy: Policy, *, now_ms: int) -> bool:
    """Whether a first sighting counts: none from the future, nor one so old that the owner may have lived since."""
    expires_ms = max(policy.absence_expires_ms, 10 * policy.absence_interval_ms)
    return absent_since_ms is not None and 0 <= now_ms - absent_since_ms <= expires_ms


def refers_to(reference: Reference, ledger_id: int) -> bool:
    """Whether the ledger's BookKeeper copy is in use."""
    at = bisect_left(reference.in_use, ledger_id)
    return at < len(reference.in_use) and reference.in_use[at] == ledger_id


def _kept_by_owner(case: Case) -> Verdict | None:
    if case.reference.presence is Presence.UNREADABLE:
        return _later(Reason.OWNER_UNREADABLE, case.reference.detail)
    if refers_to(case.reference, case.request.ledger_id):
        return _later(Reason.IN_USE, f"{case.reference.key} refers to it")
    return None


def kept_by_shrinkage(reference: Reference, believed: Counts | None, policy: Policy) -> Verdict | None:
    """Keep all that an owner had, where what it names shrank so much that a person should look why."""
    why = shrunk(believed, reference.counts, most=policy.max_shrink, above=policy.shrink_applies_above)
    return _later(Reason.SOURCE_SHRANK, f"{reference.key}: {why}") if why else None


def _refused(request: PendingDelete, metadata: LedgerMetadata) -> Verdict | None:
    why = mismatch(request, metadata.custom_metadata)
    return Verdict(Outcome.DEAD_LETTER, *why) if why else None


def _kept_by_state(case: Case, metadata: LedgerMetadata, policy: Policy, unchanged_ms: int) -> Verdict | None:
    if metadata.state is not LedgerState.CLOSED and not _is_abandoned(case, metadata, policy, unchanged_ms):
        return _later(Reason.NOT_CLOSED, f"the ledger is {metadata.state}")
    if unchanged_ms < policy.min_age_ms:
        return _later(Reason.TOO_YOUNG, f"last changed {unchanged_ms} ms ago")
    return None


def _is_abandoned(case: Case, metadata: LedgerMetadata, policy: Policy, unchanged_ms: int) -> bool:
    """An OPEN ledger whose writer died: only after the quarantine, and only where its owner moved on or is gone."""
    if metadata.state is not LedgerState.OPEN or policy.open_quarantine_ms <= 0:
        return False
    moved_on = case.reference.presence is Presence.GONE or case.request.ledger_id < case.reference.newest_id
    return moved_on and unchanged_ms >= policy.open_quarantine_ms


def _kept_by_quarantine(case: Case, policy: Policy, unchanged_ms: int) -> Verdict | None:
    """What a stalled broker might still publish; a bookie's recovery may have closed the ledger meanwhile."""
    if unchanged_ms >= policy.above_newest_quarantine_ms:
        return None
    key, newest_id = case.reference.key, case.reference.newest_id
    if is_above_newest(case.request, case.reference):
        return _later(Reason.ABOVE_NEWEST, f"the newest ledger that {key} names is {newest_id}")
    if case.request.component in _CLOSED_BEFORE_REFERENCED:
        return _later(Reason.TOO_YOUNG, f"{key} may still come to name it; last changed {unchanged_ms} ms ago")
    # a list is written to a znode that must exist; a cursor's znode is created together with its first ledger
    if case.reference.presence is Presence.GONE and case.request.component is LedgerComponent.MANAGED_CURSOR:
        return _later(Reason.ABOVE_NEWEST, f"{key} names no ledger yet, or no more")
    return None


def _by_second_look(case: Case, policy: Policy, now_ms: int) -> Verdict:
    """A version check guards the rest; here only a second look does, and the interval between the two."""
    is_gone = case.reference.presence is Presence.GONE
    seen = seen_before(case.absent_since_ms, policy, now_ms=now_ms)
    if seen and now_ms - (case.absent_since_ms or 0) >= policy.absence_interval_ms:
        return Verdict(Outcome.DELETED, Reason.OWNER_GONE if is_gone else Reason.UNREFERENCED)
    if is_gone:
        return _later(Reason.OWNER_ABSENT_ONCE, f"{case.reference.key} seems gone; looking again later")
    if case.request.component is LedgerComponent.COMPACTED_LEDGER:
        return _later(Reason.UNREFERENCED_ONCE, f"{case.reference.key} may not be durable yet; looking again later")
    return Verdict(Outcome.DELETED, Reason.UNREFERENCED)


def _later(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.RETRY, reason, detail)
