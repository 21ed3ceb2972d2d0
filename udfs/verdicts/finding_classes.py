"""Rules of the audit: which owner a ledger's own metadata names, and which class of finding a verdict becomes.

1. We ask the owner that the ledger's own metadata names. A ledger that names none is FOREIGN or UNKNOWN, never ORPHAN.
2. A ledger is an ORPHAN only if the judge would let the sweep delete it, in two checks one after the other.
3. A fact that could not be read makes a finding UNKNOWN; an unreadable znode makes everything below it UNKNOWN.
4. A ledger is MISSING only if its owner's list named it both before and after we searched for it without finding it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from udfs.owners.named_owner import (
    APPLICATION,
    BUCKET_TOPIC,
    COMPACTED_TOPIC,
    COMPONENT,
    CURSOR,
    MANAGED_LEDGER,
    SCHEMA_ID,
    component_of,
)
from udfs.owners.references import fixed_paths, key_of, owner_of
from udfs.paths import checked_schema_id, managed_ledger_name
from udfs.records import LedgerComponent, LedgerType, OffloadContext, Outcome, PendingDelete, Reason, Verdict
from udfs.verdicts.judge_offload import MANAGED_LEDGER_KEY


class FindingClass(StrEnum):
    """An audit's result for a ledger or object. The last two are not findings; the audit only counts them."""

    ORPHAN = "ORPHAN"  # no owner refers to it: the sweep would delete it
    MISSING = "MISSING"  # an owner refers to it and it does not exist: data was lost
    UNKNOWN = "UNKNOWN"  # a fact that the decision needs could not be read
    FOREIGN = "FOREIGN"  # its metadata does not contain application=pulsar: it is another application's
    TOO_YOUNG = "TOO_YOUNG"  # no owner refers to it, but it is so new that its owner may still write it into a list
    OPEN = "OPEN"  # no owner refers to it, but a client may be writing to it
    # its owner refers to it, and is itself an orphan: a segment that no layout names (udfs.verdicts.judge_segment)
    ORPHAN_SEGMENT = "ORPHAN_SEGMENT"
    IN_USE = "IN_USE"
    GONE = "GONE"  # deleted while the audit ran


# The judge has to see these twice, and needs the time of the first check at the second.
SEEN_ONCE = frozenset({Reason.OWNER_ABSENT_ONCE, Reason.UNREFERENCED_ONCE})
# The brokers could not be asked. A later audit may be able to judge it, so this audit is incomplete.
UNREAD = frozenset({Reason.BROKER_UNAVAILABLE})
NOT_FINDINGS = frozenset({FindingClass.IN_USE, FindingClass.GONE})

_CLASS_OF_REASON = {
    Reason.IN_USE: FindingClass.IN_USE,
    Reason.NOT_CLOSED: FindingClass.OPEN,
    Reason.TOO_YOUNG: FindingClass.TOO_YOUNG,
    Reason.ABOVE_NEWEST: FindingClass.TOO_YOUNG,
    Reason.OFFLOAD_IN_PROGRESS: FindingClass.TOO_YOUNG,
    Reason.NOT_PULSARS: FindingClass.FOREIGN,
    Reason.OTHER_CLUSTER: FindingClass.FOREIGN,
}


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A ledger whose metadata names no owner that we could ask."""

    finding_class: FindingClass
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class SuspectCheck:
    """One check of a suspect."""

    finding_class: FindingClass
    reason: Reason
    detail: str = ""
    is_candidate: bool = False  # a second check may make it an ORPHAN (or, for a reference, MISSING)


def claim_of(ledger_id: int, custom: Mapping[str, bytes]) -> PendingDelete | Unclaimed:
    """Return the request that would delete the ledger, built from the ledger's own custom metadata alone."""
    if custom.get(APPLICATION) != b"pulsar":
        detail = "another application's" if custom else "it has no custom metadata (before Pulsar 2.6, or not Pulsar's)"
        return Unclaimed(FindingClass.FOREIGN, Reason.NOT_PULSARS, detail)
    component = component_of(custom)
    if component is None:
        return _unknown(Reason.UNKNOWN_COMPONENT, f"component {custom.get(COMPONENT, b'')!r} is not known")
    try:
        return _claimed(ledger_id, component, custom)
    except KeyError as error:
        return _unknown(Reason.MISSING_FIELD, f"its metadata has no {error.args[0]}")
    except ValueError as error:
        return _unknown(Reason.BAD_TOPIC_NAME, str(error))


def claim_of_objects(
    ledger_id: int, uuid: str, custom: Mapping[str, bytes] | None, user_metadata: Mapping[str, str]
) -> PendingDelete | Unclaimed:
    """Return the request that would delete an offload attempt's objects.

    Args:
        ledger_id: the ledger that the objects' keys contain.
        uuid: the attempt's UUID.
        custom: the ledger's custom metadata, which the index object embeds; None: there is no readable index.
        user_metadata: the objects' (keys in lower case), which newer brokers write; it names the owner if `custom`
            does not.
    """
    context = OffloadContext(uuid=uuid)
    if custom:
        claim = claim_of(ledger_id, custom)
        if isinstance(claim, Unclaimed):
            return claim
        if claim.component is not LedgerComponent.MANAGED_LEDGER:
            return _unknown(Reason.OTHER_COMPONENT, f"it names component {claim.component}, which is never offloaded")
        return replace(claim, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
    managed_ledger = user_metadata.get(MANAGED_LEDGER_KEY)
    if not managed_ledger:
        return _unknown(Reason.PROOF_MISSING, "no metadata names the ledger's owner")
    try:
        owner = managed_ledger_name(managed_ledger)
    except ValueError as error:
        return _unknown(Reason.BAD_TOPIC_NAME, str(error))
    return PendingDelete(
        managed_ledger=owner,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        ledger_id=ledger_id,
        offload_context=context,
    )


def check_of_verdict(verdict: Verdict) -> SuspectCheck:
    """Turn the judge's verdict on a suspect into a check."""
    if verdict.outcome is Outcome.DELETED or verdict.reason in SEEN_ONCE:
        return SuspectCheck(FindingClass.ORPHAN, verdict.reason, verdict.detail, is_candidate=True)
    if verdict.outcome is Outcome.ALREADY_GONE:
        return SuspectCheck(FindingClass.GONE, verdict.reason)
    finding_class = _CLASS_OF_REASON.get(verdict.reason, FindingClass.UNKNOWN)
    return SuspectCheck(finding_class, verdict.reason, verdict.detail)


def concluded(second: SuspectCheck) -> SuspectCheck:
    """Return the result of a candidate's second check; a candidate that was seen only once is UNKNOWN."""
    if second.reason in SEEN_ONCE:
        return SuspectCheck(FindingClass.UNKNOWN, second.reason, second.detail)
    return second


def check_of_missing(*, is_referenced: bool | None, is_there: bool | None) -> SuspectCheck:
    """Judge a reference to a ledger that the audit did not find; None: could not be read.

    The caller must read the ledger before the reference. A ledger exists before its owner's list names it, and until
    the list no longer does. So data was lost only if the list named the ledger at the first check, the ledger was not
    there, and the list still named it at the second.
    """
    if is_there:
        return SuspectCheck(FindingClass.IN_USE, Reason.IN_USE)
    if is_there is None:
        return SuspectCheck(FindingClass.UNKNOWN, Reason.LEDGER_UNREADABLE, "referenced, and it could not be read")
    if is_referenced is None:
        return SuspectCheck(FindingClass.UNKNOWN, Reason.OWNER_UNREADABLE, "not there, and its owner could not be read")
    if not is_referenced:
        return SuspectCheck(FindingClass.GONE, Reason.NOT_FOUND)
    return SuspectCheck(FindingClass.MISSING, Reason.NOT_FOUND, "referenced, and it does not exist", is_candidate=True)


def owner_paths(key: str) -> tuple[str, ...]:
    """Return the znodes that decide whether a reference key's ledgers are in use (udfs.owners.references)."""
    return fixed_paths(owner_of(key))


def affected_by(paths: Iterable[str], unreadable: Iterable[str]) -> str | None:
    """Return the unreadable path at or above one of the owner's paths, if there is one."""
    blocked = frozenset(unreadable)
    for path in paths:
        ancestor = path
        while ancestor:
            if ancestor in blocked:
                return ancestor
            ancestor = ancestor.rpartition("/")[0]
    return "/" if "/" in blocked else None


def _claimed(ledger_id: int, component: LedgerComponent, custom: Mapping[str, bytes]) -> PendingDelete:
    """Return the request; raises KeyError for a missing key, ValueError for a name that Pulsar would not write."""
    if component is LedgerComponent.SCHEMA_STORAGE:
        schema_id = checked_schema_id(custom[SCHEMA_ID].decode())
        tenant, namespace, encoded = schema_id.split("/")
        owner = managed_ledger_name(f"{tenant}/{namespace}/persistent/{encoded}")
        return PendingDelete(
            managed_ledger=owner,
            component=component,
            ledger_type=LedgerType.LEDGER,
            ledger_id=ledger_id,
            schema_id=schema_id,
        )
    names = {
        LedgerComponent.COMPACTED_LEDGER: COMPACTED_TOPIC,
        LedgerComponent.DELAYED_INDEX_BUCKET: BUCKET_TOPIC,
    }
    owner = _owner(custom[names.get(component, MANAGED_LEDGER)].decode())
    if component is not LedgerComponent.MANAGED_CURSOR:
        return PendingDelete(
            managed_ledger=owner, component=component, ledger_type=LedgerType.LEDGER, ledger_id=ledger_id
        )
    request = PendingDelete(
        managed_ledger=owner,
        component=component,
        ledger_type=LedgerType.LEDGER,
        ledger_id=ledger_id,
        cursor_name=custom[CURSOR].decode(),
    )
    owner_paths(key_of(request))  # a cursor name that can't be a znode's raises here
    return request


# A topic has many ledgers, and checking the topic's name takes longer than reading a ledger.
_owner = lru_cache(maxsize=10_000)(managed_ledger_name)


def _unknown(reason: Reason, detail: str) -> Unclaimed:
    return Unclaimed(FindingClass.UNKNOWN, reason, detail)
