"""Decides whether the objects of an offload attempt may be deleted. No other module decides that.

A broker gives each attempt to offload a ledger a random UUID. It writes the UUID into the topic's ledger list before
it stores the first object, and never writes an old UUID into the same list again. So if we see the objects first and
read the list after that, a UUID that the list does not name is garbage for ever, even if the list names the ledger with
another UUID. (If a list was deleted and created again, a stalled broker may replace it by its whole old list, which
names data of the deleted topic: docs/decisions/0007.) The rules apply in this order; reasons to keep the objects come
first:
1. we keep the objects of an attempt that the list names (complete or not), or whose list could not be read;
2. if nothing is stored under the attempt's name, it is already gone;
3. objects that name another owner or cluster are refused for good; objects that name none are kept, but they need not
   name the cluster in a bucket that the operator declared to be this cluster's alone. Parts of an unfinished upload
   carry no names: BookKeeper's ledger of that id, or the owner's own list, has to prove the owner. A cluster's name is
   no identity: clones and Helm releases share names. So objects are refused in a bucket that the operator declared
   neither to be this cluster's alone nor to be used by clusters of different names only;
4. objects that are young, and an upload that may still continue, are kept for now;
5. if the list suddenly names far fewer ledgers than when last read, we keep all that it had;
6. an owner that seems gone must be seen gone twice, far enough apart;
7. then, and only then, the objects are deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from udfs.owners.named_owner import mismatch
from udfs.records import (
    Counts,
    LedgerComponent,
    LedgerMetadata,
    OffloadFacts,
    Outcome,
    PendingDelete,
    Presence,
    Reason,
    Reference,
    StoredObject,
    Verdict,
)
from udfs.verdicts.judge import Policy, is_above_newest, is_second_look, kept_by_shrinkage, unread

# Newer brokers write this user metadata to both objects, older brokers to neither. S3 makes the names lower-case.
CLUSTER_KEY = "pulsarclustername"
MANAGED_LEDGER_KEY = "managedledgername"


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """How long to wait before a delete, and which cluster is ours."""

    patience: Policy
    offload_grace_ms: int  # a broker may still complete an upload that it started less than this ago
    cluster: str  # our cluster's name; "": not known
    cluster_unread: str = ""  # why the brokers did not return the name; "": they answered, with or without a name


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadCase:
    """One request and all facts about it. The reference must have been read after the objects."""

    request: PendingDelete
    objects: OffloadFacts
    reference: Reference
    # no other cluster uses the bucket, so objects that name no cluster are ours; they still have to name the owner
    exclusive: bool = False
    # no two clusters that use the bucket have the same name, so objects that name our cluster are ours
    cluster_names_are_unique: bool = False
    absent_since_ms: int | None = None  # when this service first saw the owner gone; None: never
    baseline: Counts | None = None  # the owner's counts at the last read that can be trusted; None: not known


def refuse_request(request: PendingDelete) -> Verdict | None:
    """Refuse a request for a component that brokers never offload, before anything is read."""
    if request.component is not LedgerComponent.MANAGED_LEDGER:
        return Verdict(
            Outcome.DEAD_LETTER, Reason.OTHER_COMPONENT, f"only data ledgers are offloaded, not {request.component}"
        )
    if request.offload_context is None:
        return Verdict(Outcome.DEAD_LETTER, Reason.BAD_OFFLOAD_CONTEXT, "the request has no offloadContext")
    return None


def judge_offload(case: OffloadCase, policy: OffloadPolicy, *, now_ms: int) -> Verdict:
    """Return DELETED only when every reason to keep the objects is ruled out. The request has passed refuse_request."""
    kept = _kept_by_owner(case)
    if kept is not None:
        return kept
    if not _stored(case.objects) and not case.objects.uploads:
        return Verdict(Outcome.ALREADY_GONE, Reason.NOT_FOUND)
    return (
        _refused(case, policy)
        or _unproven(case)
        or _kept_by_age(case, policy, now_ms)
        or kept_by_shrinkage(case.reference, case.baseline, policy.patience)
        or _by_absence(case, policy, now_ms)
        or Verdict(Outcome.DELETED, Reason.UNREFERENCED)
    )


def _kept_by_owner(case: OffloadCase) -> Verdict | None:
    if case.reference.presence is Presence.UNREADABLE:
        return unread(case.reference)
    context = case.request.offload_context
    if context is None:
        raise ValueError(f"ledger {case.request.ledger_id}: the request names no upload")
    if (case.request.ledger_id, context.uuid) in case.reference.offloads:
        return _later(Reason.IN_USE, f"{case.reference.key} refers to it")
    return None


def _refused(case: OffloadCase, policy: OffloadPolicy) -> Verdict | None:
    """Refuse objects that name another owner or cluster anywhere, even if they also name the right one."""
    for cluster in _named(case.objects, CLUSTER_KEY):
        if policy.cluster and cluster != policy.cluster:
            return _never(Reason.OTHER_CLUSTER, f"it belongs to Pulsar cluster {cluster!r}, ours is {policy.cluster!r}")
    for metadata in (case.objects.metadata, case.objects.ledger):
        why = mismatch(case.request, metadata.custom_metadata) if _names_owner(metadata) else None
        if why is not None:
            return _never(*why)
    for name in _named(case.objects, MANAGED_LEDGER_KEY):
        if name != case.request.managed_ledger:
            return _never(
                Reason.OTHER_OWNER, f"it belongs to {name!r}, the request names {case.request.managed_ledger!r}"
            )
    return _of_unknown_cluster(policy) if _named(case.objects, CLUSTER_KEY) and not policy.cluster else None


def _of_unknown_cluster(policy: OffloadPolicy) -> Verdict:
    if policy.cluster_unread:
        return _later(Reason.STORE_UNAVAILABLE, f"our own cluster's name is not known: {policy.cluster_unread}")
    return _later(Reason.PROOF_MISSING, "our own cluster's name is not known: set tiered_storage.pulsar_cluster")


def _unproven(case: OffloadCase) -> Verdict | None:
    if not (case.exclusive or case.cluster_names_are_unique):
        # a later try would have the same result: only the operator can change it, and then replay the dead letter
        return _never(
            Reason.PROOF_MISSING,
            "tiered_storage.allowed declares neither exclusive = true nor cluster_names_are_unique = true for the "
            "bucket: another cluster of the same name may own it",
        )
    if not _named(case.objects, CLUSTER_KEY) and not case.exclusive:
        what = "objects name" if _stored(case.objects) else "unfinished upload names"
        return _later(
            Reason.PROOF_MISSING,
            f"the {what} no Pulsar cluster; if no other cluster offloads there, set exclusive = true for the bucket",
        )
    if not _stored(case.objects):
        return _unproven_parts(case)
    if _names_owner(case.objects.metadata) or _named(case.objects, MANAGED_LEDGER_KEY):
        return None
    return _later(
        Reason.PROOF_MISSING, f"no metadata names the ledger's owner: {case.objects.index_detail or 'old broker'}"
    )


def _unproven_parts(case: OffloadCase) -> Verdict | None:
    """Keep parts without a proof of their owner: any sender that learns an upload's UUID can write it into a request.

    The parts' key contains the ledger's id, and BookKeeper never reuses an id. So the ledger's own metadata in
    BookKeeper proves the owner (_refused has compared it). If BookKeeper has deleted the ledger, the owner's list is
    the proof, provided that it names the ledger as offloaded by another upload.
    """
    ledger_id, objects = case.request.ledger_id, case.objects
    if objects.ledger_unread:
        return _later(Reason.PROOF_MISSING, f"nothing proves the unfinished upload's owner: {objects.ledger_unread}")
    if _names_owner(objects.ledger):
        return None
    if any(listed == ledger_id for listed, _uuid in case.reference.offloads):
        return None
    return _later(
        Reason.PROOF_MISSING,
        f"it is an unfinished upload of ledger {ledger_id}, which neither BookKeeper nor {case.reference.key} knows",
    )


def _kept_by_age(case: OffloadCase, policy: OffloadPolicy, now_ms: int) -> Verdict | None:
    objects = case.objects
    started_ms = [upload.initiated_ms for upload in objects.uploads]
    if objects.data is not None and objects.index is None:
        started_ms.append(objects.data.last_modified_ms)  # the broker may be about to store the index
    if any(now_ms - start_ms < policy.offload_grace_ms for start_ms in started_ms):
        return _later(Reason.OFFLOAD_IN_PROGRESS, f"an upload was started {now_ms - max(started_ms)} ms ago")
    unchanged_ms = now_ms - max([stored.last_modified_ms for stored in _stored(objects)] + started_ms)
    # A ZooKeeper server may lag, and return a list that misses a UUID in use. min_age is longer than that lag.
    if unchanged_ms < policy.patience.min_age_ms:
        return _later(Reason.TOO_YOUNG, f"stored {unchanged_ms} ms ago")
    if is_above_newest(case.request, case.reference) and unchanged_ms < policy.patience.above_newest_quarantine_ms:
        newest = case.reference.newest_id
        return _later(Reason.ABOVE_NEWEST, f"the newest ledger that {case.reference.key} names is {newest}")
    return None


def _by_absence(case: OffloadCase, policy: OffloadPolicy, now_ms: int) -> Verdict | None:
    if case.reference.presence is not Presence.GONE:
        return None
    if not is_second_look(case.absent_since_ms, policy.patience, now_ms=now_ms):
        return _later(Reason.OWNER_ABSENT_ONCE, f"{case.reference.key} seems gone; it is checked again later")
    return Verdict(Outcome.DELETED, Reason.OWNER_GONE)


def _names_owner(metadata: LedgerMetadata | None) -> TypeGuard[LedgerMetadata]:
    """Whether a ledger's metadata names an owner; metadata of old brokers name none."""
    return metadata is not None and bool(metadata.custom_metadata)


def _stored(objects: OffloadFacts) -> Sequence[StoredObject]:
    return [stored for stored in (objects.data, objects.index) if stored is not None]


def _named(objects: OffloadFacts, key: str) -> set[str]:
    return {stored.user_metadata[key] for stored in _stored(objects) if stored.user_metadata.get(key)}


def _later(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.RETRY, reason, detail)


def _never(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.DEAD_LETTER, reason, detail)
