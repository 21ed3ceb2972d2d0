"""Decides whether a BookKeeper ledger may be deleted. No other module decides that.

The owner of a ledger is the znode that could refer to it: a topic's ledger list, a cursor, a schema's locator. The
rules apply in this order; reasons to keep a ledger come first:
1. we keep a ledger whose owner refers to it, or whose owner could not be read;
2. a ledger without a znode is already gone; a ledger whose metadata can't be parsed is kept;
3. a ledger whose own metadata names another owner is refused for good;
4. a ledger that changed a short while ago is kept for now. So is a ledger that is not CLOSED, with one exception: it
   is OPEN, its owner is gone or has moved on to a newer ledger, and it has not changed for the quiet period and the
   quarantine;
5. a ledger that the owner's znode does not name is kept while a broker has the owner loaded and does not show what it
   knows;
6. if the owner suddenly names far fewer ledgers than when last read, we keep all that it had;
7. a ledger that a stalled broker might still write into the owner's znode is kept for a long quarantine;
8. a ledger that its list still names as offloaded is kept unless both of its objects exist in tiered storage: the copy
   in BookKeeper may be the last;
9. if no znode's version protects the delete (the owner is gone, or it is a compacted ledger), we must see the ledger
   unreferenced twice, far enough apart;
10. then, and only then, the ledger is deleted.
"""

from array import array
from bisect import bisect_left
from dataclasses import dataclass

from udfs.owners.completeness import shrunk
from udfs.owners.named_owner import mismatch
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
from udfs.units import DAY_MS

# Brokers close a ledger of these components before they write it into its owner's znode. A broker that stalls in
# between writes it later, which our check of the znode's version can't foresee. A newer ledger in the owner's znode
# proves nothing either: a schema's locator can be deleted and created again, and buckets are written in any order.
# So only a long wait protects such a ledger.
_CLOSED_BEFORE_REFERENCED = frozenset(
    {LedgerComponent.SCHEMA_STORAGE, LedgerComponent.COMPACTED_LEDGER, LedgerComponent.DELAYED_INDEX_BUCKET}
)


# A broker creates the data ledgers of a list, and the ledgers of a cursor, one after the other, and writes each into
# the owner's znode by a compare-and-set. Once the znode names a newer ledger, it has another version than the broker
# that created an older ledger expects, so that broker can't add the older ledger any more (docs/decisions/0007).
# This argument covers one znode. A znode that is created again under the same name, before or after our read, counts
# its versions from 0, so a wait has to protect the ledger as well.
_WRITTEN_IN_ORDER = frozenset({LedgerComponent.MANAGED_LEDGER, LedgerComponent.MANAGED_CURSOR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to wait before a delete, and how much an owner may shrink."""

    min_age_ms: int
    above_newest_quarantine_ms: int
    absence_interval_ms: int  # an owner counts as gone when we saw it gone twice, this far apart
    # an OPEN ledger must not have changed for this long, nor for above_newest_quarantine_ms; 0: it is never deleted
    open_quiet_ms: int = 0
    # an older first sighting does not count, because the owner may have existed in between; at least ten times
    # absence_interval_ms counts
    absence_expires_ms: int = DAY_MS
    max_shrink: float = 1.0  # the share of an owner's ledgers that may be missing since the last read (1: any)
    shrink_applies_above: int = 0  # an owner of this many ledgers or fewer may lose any share


# The default of a case: before tiered storage was asked, an offloaded ledger is kept.
NOT_ASKED = Verdict(Outcome.RETRY, Reason.OFFLOAD_UNCONFIRMED, "tiered storage was not asked for its objects")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request and all facts about it."""

    request: PendingDelete
    ledger: LedgerFacts | None  # None: its znode does not exist
    reference: Reference
    # when this service first saw the owner gone (a compacted ledger: unreferenced); None: never
    absent_since_ms: int | None = None
    baseline: Counts | None = None  # the owner's counts at the last read that can be trusted; None: not known
    # why the ledger is kept if its list names it as offloaded; None: both of its objects exist
    unconfirmed: Verdict | None = NOT_ASKED


def judge(case: Case, policy: Policy, *, now_ms: int) -> Verdict:
    """Return DELETED only when every reason to keep the ledger is ruled out. Raises ValueError for OFFLOAD_LEDGER."""
    if case.request.ledger_type is not LedgerType.LEDGER:
        raise ValueError(f"ledger {case.request.ledger_id}: {case.request.ledger_type} is not in BookKeeper")
    kept = _kept_by_owner(case)
    if kept is not None:
        return kept
    if case.ledger is None:
        return Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND)
    if case.ledger.metadata is None:
        return _later(Reason.LEDGER_UNREADABLE, f"{case.ledger.path} can't be parsed")
    # If the clock is slow, no request may wait longer than these periods: the wait would outlast the fault.
    unchanged_ms = max(0, now_ms - case.ledger.last_change_ms)
    return (
        _refused(case.request, case.ledger.metadata)
        or _kept_by_state(case, case.ledger.metadata, policy, unchanged_ms)
        or _kept_by_hidden_broker(case.reference)
        or kept_by_shrinkage(case.reference, case.baseline, policy)
        or _kept_by_quarantine(case, case.ledger.metadata, policy, unchanged_ms)
        or (case.unconfirmed if is_given_up(case.reference, case.request.ledger_id) else None)
        or _by_second_look(case, policy, now_ms)
    )


def is_above_newest(request: PendingDelete, reference: Reference) -> bool:
    """Whether the ledger is newer than all ledgers that the owner's znode names, even if it names none.

    Then a cached reference may be too old to name the ledger, and the broker may still be about to write it.
    """
    return reference.presence is Presence.PRESENT and request.ledger_id > reference.newest_id


def first_sight_ms(absent_since_ms: int | None, policy: Policy, *, now_ms: int) -> int:
    """Return when we first saw the owner gone: the earlier sighting as long as it counts, else now."""
    return absent_since_ms if absent_since_ms is not None and _counts(absent_since_ms, policy, now_ms) else now_ms


def is_second_look(absent_since_ms: int | None, policy: Policy, *, now_ms: int) -> bool:
    """Whether we saw the owner gone before, long enough ago, and not so long ago that it may have existed since."""
    if absent_since_ms is None or not _counts(absent_since_ms, policy, now_ms):
        return False
    return now_ms - absent_since_ms >= policy.absence_interval_ms


def _counts(absent_since_ms: int, policy: Policy, now_ms: int) -> bool:
    """Whether an earlier sighting counts: it is neither in the future nor expired."""
    expires_ms = max(policy.absence_expires_ms, 10 * policy.absence_interval_ms)
    return 0 <= now_ms - absent_since_ms <= expires_ms


def refers_to(reference: Reference, ledger_id: int) -> bool:
    """Whether the owner needs the ledger in BookKeeper (an owner may list a ledger that is in tiered storage only)."""
    return _holds(reference.in_use, ledger_id)


def is_given_up(reference: Reference, ledger_id: int) -> bool:
    """Whether the owner lists the ledger and needs it in tiered storage only."""
    return _holds(reference.given_up, ledger_id)


def _holds(ids: "array[int]", ledger_id: int) -> bool:
    at = bisect_left(ids, ledger_id)
    return at < len(ids) and ids[at] == ledger_id


def unread(reference: Reference) -> Verdict:
    """Keep everything of an owner that could not be read."""
    # only a fault of the owner itself costs a try (udfs.requests.retry)
    if reference.is_hidden:
        return _later(Reason.OWNER_HIDDEN, reference.detail)
    reason = Reason.BROKER_UNAVAILABLE if reference.is_unavailable else Reason.OWNER_UNREADABLE
    return _later(reason, reference.detail)


def _kept_by_owner(case: Case) -> Verdict | None:
    if case.reference.presence is Presence.UNREADABLE:
        return unread(case.reference)
    if refers_to(case.reference, case.request.ledger_id):
        return _later(Reason.IN_USE, f"{case.reference.key} refers to it")
    return None


def _kept_by_hidden_broker(reference: Reference) -> Verdict | None:
    """Keep a ledger that the owner's znode does not name, because the broker may know it and not show it."""
    if not reference.is_hidden:
        return None
    why = "does not name it, but its segment is loaded, and the broker may know it: unload the segment"
    return _later(Reason.OWNER_HIDDEN, f"{reference.key} {why}")


def kept_by_shrinkage(reference: Reference, baseline: Counts | None, policy: Policy) -> Verdict | None:
    """Keep all ledgers of an owner that names far fewer than before, until an operator has checked why."""
    why = shrunk(baseline, reference.counts, most=policy.max_shrink, above=policy.shrink_applies_above)
    return _later(Reason.SOURCE_SHRANK, f"{reference.key}: {why}") if why else None


def _refused(request: PendingDelete, metadata: LedgerMetadata) -> Verdict | None:
    why = mismatch(request, metadata.custom_metadata)
    return Verdict(Outcome.DEAD_LETTER, *why) if why else None


def _kept_by_state(case: Case, metadata: LedgerMetadata, policy: Policy, unchanged_ms: int) -> Verdict | None:
    if metadata.state is LedgerState.OPEN and policy.open_quiet_ms > 0 and _has_moved_on(case):
        # Both periods count from the same change. Waiting for both at once takes only one receipt.
        wait_ms = max(policy.open_quiet_ms, policy.above_newest_quarantine_ms) - unchanged_ms
        if wait_ms > 0:
            why = f"the ledger is OPEN, and its owner is gone or has moved on; last changed {unchanged_ms} ms ago"
            return _later(Reason.NOT_CLOSED, why, wait_ms=wait_ms)
    elif metadata.state is not LedgerState.CLOSED:
        return _later(Reason.NOT_CLOSED, f"the ledger is {metadata.state}")
    if unchanged_ms < policy.min_age_ms:
        wait_ms = policy.min_age_ms - unchanged_ms
        return _later(Reason.TOO_YOUNG, f"last changed {unchanged_ms} ms ago", wait_ms=wait_ms)
    return None


def _has_moved_on(case: Case) -> bool:
    """Whether the current znode can no longer be given this OPEN ledger: it is gone, or names a newer ledger."""
    if case.reference.presence is Presence.GONE:
        return True
    return case.request.component in _WRITTEN_IN_ORDER and case.request.ledger_id < case.reference.newest_id


def _quarantine_ms(case: Case, metadata: LedgerMetadata, policy: Policy) -> int:
    """Return the quarantine of a ledger that a stalled broker may still name, so only a wait protects it; else 0."""
    component = case.request.component
    # A stalled broker may name a ledger that a recovery has closed since, in a znode that was deleted and created
    # again until it had the version that the broker expects. A list names a ledger before the ledger gets its first
    # entry. A cursor's ledger gets its first entry before it is named, and older brokers name it when they create the
    # cursor's znode.
    # A list's ledger with entries needs no such wait: the stalled broker's write may name it again, but it is data of
    # the deleted topic, and the write destroys the new topic's list in any case (docs/decisions/0007).
    may_be_unnamed = component is LedgerComponent.MANAGED_CURSOR or metadata.last_entry_id < 0
    if may_be_unnamed or component in _CLOSED_BEFORE_REFERENCED:
        return policy.above_newest_quarantine_ms
    return 0


def _kept_by_quarantine(case: Case, metadata: LedgerMetadata, policy: Policy, unchanged_ms: int) -> Verdict | None:
    """Keep what a stalled broker might still write into its owner's znode, even if recovery has closed it."""
    key, newest_id = case.reference.key, case.reference.newest_id
    wait_ms = max(0, _quarantine_ms(case, metadata, policy) - unchanged_ms)
    if is_above_newest(case.request, case.reference) and unchanged_ms < policy.above_newest_quarantine_ms:
        return _later(Reason.ABOVE_NEWEST, f"the newest ledger that {key} names is {newest_id}", wait_ms=wait_ms)
    if not wait_ms:
        return None
    why = f"{key} may still come to name it; last changed {unchanged_ms} ms ago"
    return _later(Reason.TOO_YOUNG, why, wait_ms=wait_ms)


def _by_second_look(case: Case, policy: Policy, now_ms: int) -> Verdict:
    """Delete a ledger at once if the check of a znode's version protects the delete, else at the second check."""
    is_gone = case.reference.presence is Presence.GONE
    if is_second_look(case.absent_since_ms, policy, now_ms=now_ms):
        return Verdict(Outcome.DELETED, Reason.OWNER_GONE if is_gone else Reason.UNREFERENCED)
    if is_gone:
        return _later(Reason.OWNER_ABSENT_ONCE, f"{case.reference.key} seems gone; it is checked again later")
    if case.request.component is LedgerComponent.COMPACTED_LEDGER:
        return _later(
            Reason.UNREFERENCED_ONCE, f"what {case.reference.key} names may not be durable yet; it is checked again"
        )
    return Verdict(Outcome.DELETED, Reason.UNREFERENCED)


def _later(reason: Reason, detail: str, *, wait_ms: int = 0) -> Verdict:
    return Verdict(Outcome.RETRY, reason, detail, wait_ms)
