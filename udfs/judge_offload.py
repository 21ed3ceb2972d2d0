"""The one place that says whether the objects of an offload attempt may be deleted.

A broker gives each attempt to offload a ledger a random UUID. It writes the UUID into the topic's ledger list before
it stores the first object, and never writes an old one again. So if we see the objects first and read the list after
that, a UUID that the list does not name is garbage for ever, even if the list names the ledger with another UUID. The
rules apply in this order; reasons to keep the objects come first:
1. we keep the objects of an attempt that the list names (complete or not), or whose list could not be read;
2. if nothing is stored under the attempt's name, it is already gone;
3. objects that say they belong to another owner or cluster are refused for good; objects that don't say it are kept;
   parts of an unfinished upload say nothing: BookKeeper's ledger of that id, or the owner's own list, has to say it.
   A cluster's name is no identity: clones and releases share names. It proves something only in a bucket that the
   operator declared to be this cluster's alone, or to be used by clusters of different names only;
4. objects that are young, and an upload that may still go on, are kept for now;
5. if the list suddenly names far fewer ledgers than at the last look, we keep all that it had;
6. an owner that seems gone must be seen gone twice, far enough apart;
7. then, and only then, the objects are deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from udfs.judge import Policy, is_above_newest, is_second_look, kept_by_shrinkage, unread
from udfs.ownership import mismatch
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

# User metadata that newer brokers give to both objects and older ones to neither. S3 makes the names lower-case.
CLUSTER_KEY = "pulsarclustername"
MANAGED_LEDGER_KEY = "managedledgername"


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """How patient to be, and which cluster is ours."""

    patience: Policy
    offload_grace_ms: int  # a broker may still complete an upload that it began less than this ago
    cluster: str  # its name; "": not known
    cluster_unread: str = ""  # why the brokers did not return the name; "": they returned it, or none


@dataclass(frozen=True, slots=True)
class OffloadCase:
    """One request with all that is known of it; the reference must have been read after the objects.

    exclusive: no other cluster uses the bucket, so objects that name no cluster are our cluster's (of which owner, they
    have to say themselves).
    cluster_names_are_unique: no two clusters that use the bucket have the same name, so objects that name our cluster
    are our cluster's.
    absent_since_ms: when we ourselves first saw the owner gone; None: never.
    baseline: how many ledgers the owner's sources named at the last look that can be trusted; None: not known.
    """

    request: PendingDelete
    objects: OffloadFacts
    reference: Reference
    exclusive: bool = False
    cluster_names_are_unique: bool = False
    absent_since_ms: int | None = None
    baseline: Counts | None = None


def refuse_request(request: PendingDelete) -> Verdict | None:
    """Refuse a request for what no broker offloads, before anything is read."""
    if request.component is not LedgerComponent.MANAGED_LEDGER:
        return Verdict(
            Outcome.DEAD_LETTER, Reason.OTHER_COMPONENT, f"only data ledgers are offloaded, no {request.component}"
        )
    if request.offload_context is None:
        return Verdict(Outcome.DEAD_LETTER, Reason.BAD_OFFLOAD_CONTEXT, "the request has no offloadContext")
    return None


def judge_offload(case: OffloadCase, policy: OffloadPolicy, *, now_ms: int) -> Verdict:
    """Say DELETED only when every reason to keep the objects is ruled out. The request has passed refuse_request."""
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
    """Refuse objects that name another owner or cluster anywhere, even if they name the right one elsewhere."""
    for cluster in _said(case.objects, CLUSTER_KEY):
        if policy.cluster and cluster != policy.cluster:
            return _never(Reason.OTHER_CLUSTER, f"it belongs to Pulsar cluster {cluster!r}, ours is {policy.cluster!r}")
    for metadata in (case.objects.metadata, case.objects.ledger):
        why = mismatch(case.request, metadata.custom_metadata) if _says(metadata) else None
        if why is not None:
            return _never(*why)
    for name in _said(case.objects, MANAGED_LEDGER_KEY):
        if name != case.request.managed_ledger:
            return _never(
                Reason.OTHER_OWNER, f"it belongs to {name!r}, the request says {case.request.managed_ledger!r}"
            )
    return _of_unknown_cluster(policy) if _said(case.objects, CLUSTER_KEY) and not policy.cluster else None


def _of_unknown_cluster(policy: OffloadPolicy) -> Verdict:
    if policy.cluster_unread:
        return _later(Reason.STORE_UNAVAILABLE, f"our own cluster's name is not known: {policy.cluster_unread}")
    return _later(Reason.PROOF_MISSING, "our own cluster's name is not known: set tiered_storage.pulsar_cluster")


def _unproven(case: OffloadCase) -> Verdict | None:
    if not (case.exclusive or case.cluster_names_are_unique):
        # no later try would end otherwise: only the operator can change it, and then replay the dead letter
        return _never(
            Reason.PROOF_MISSING,
            "tiered_storage.allowed declares neither exclusive = true nor cluster_names_are_unique = true for the "
            "bucket: another cluster of the same name may own it",
        )
    if not _said(case.objects, CLUSTER_KEY) and not case.exclusive:
        what = "objects name" if _stored(case.objects) else "unfinished upload names"
        return _later(
            Reason.PROOF_MISSING,
            f"the {what} no Pulsar cluster; if no other cluster offloads there, say exclusive = true for the bucket",
        )
    if not _stored(case.objects):
        return _unproven_parts(case)
    if _says(case.objects.metadata) or _said(case.objects, MANAGED_LEDGER_KEY):
        return None
    return _later(
        Reason.PROOF_MISSING, f"nothing says whose ledger it was: {case.objects.index_detail or 'old broker'}"
    )


def _unproven_parts(case: OffloadCase) -> Verdict | None:
    """Keep parts of which nothing says whose they are: whoever learns an upload's UUID can write it into a request.

    The id of the ledger stands in the parts' key, and an id is given out once. So the ledger's own metadata in
    BookKeeper says whose they are (_refused has compared it). Where BookKeeper has given the ledger up, the owner's
    list says it, if it names the ledger as offloaded by another upload.
    """
    ledger_id, objects = case.request.ledger_id, case.objects
    if objects.ledger_unread:
        return _later(Reason.PROOF_MISSING, f"nothing says whose unfinished upload it is: {objects.ledger_unread}")
    if _says(objects.ledger):
        return None
    if any(listed == ledger_id for listed, _uuid in case.reference.offloads):
        return None
    return _later(
        Reason.PROOF_MISSING,
        f"neither BookKeeper nor {case.reference.key} knows ledger {ledger_id}, of which it is an unfinished upload",
    )


def _kept_by_age(case: OffloadCase, policy: OffloadPolicy, now_ms: int) -> Verdict | None:
    objects = case.objects
    begun_ms = [upload.initiated_ms for upload in objects.uploads]
    if objects.data is not None and objects.index is None:
        begun_ms.append(objects.data.last_modified_ms)  # the broker may be about to store the index
    if any(now_ms - each < policy.offload_grace_ms for each in begun_ms):
        return _later(Reason.OFFLOAD_IN_PROGRESS, f"an upload was begun {now_ms - max(begun_ms)} ms ago")
    unchanged_ms = now_ms - max([stored.last_modified_ms for stored in _stored(objects)] + begun_ms)
    # A ZooKeeper server may lag behind, and an old list could lack a UUID that is in use. min_age is longer than that.
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
        return _later(Reason.OWNER_ABSENT_ONCE, f"{case.reference.key} seems gone; looking again later")
    return Verdict(Outcome.DELETED, Reason.OWNER_GONE)


def _says(metadata: LedgerMetadata | None) -> TypeGuard[LedgerMetadata]:
    """Whether a ledger's metadata says whose it is; those of old brokers say nothing."""
    return metadata is not None and bool(metadata.custom_metadata)


def _stored(objects: OffloadFacts) -> Sequence[StoredObject]:
    return [each for each in (objects.data, objects.index) if each is not None]


def _said(objects: OffloadFacts, key: str) -> set[str]:
    return {each.user_metadata[key] for each in _stored(objects) if each.user_metadata.get(key)}


def _later(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.RETRY, reason, detail)


def _never(reason: Reason, detail: str) -> Verdict:
    return Verdict(Outcome.DEAD_LETTER, reason, detail)
