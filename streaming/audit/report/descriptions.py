"""The texts that terminal and report share: meanings of classes and reasons, amounts, and filters."""

from streaming.audit.audit_options import FindingFilters
from streaming.terminal import age_text, size_text
from udfs.records import Reason
from udfs.verdicts.finding_classes import FindingClass

INTRODUCTION = (
    "Pulsar stores each topic in ledgers, in BookKeeper or offloaded to objects in tiered storage. This audit compared "
    "all existing ledgers and objects with those that Pulsar's topics refer to. An orphan is storage that no topic "
    "uses any more. A missing ledger or object does not exist although a topic refers to it."
)
CLASS_MEANING = {
    FindingClass.ORPHAN: "no topic uses it any more; the service would delete it",
    FindingClass.MISSING: "a topic refers to it, and it does not exist: data was lost",
    FindingClass.UNKNOWN: "a deciding fact could not be read, so it counts as in use",
    FindingClass.FOREIGN: "another application or cluster created it; the service never touches it",
    FindingClass.TOO_YOUNG: "no topic refers to it, but it is so new that its topic may come to refer to it",
    FindingClass.OPEN: "no topic refers to it, but it is not closed, and its broker may be alive; most are former "
    "ledgers of cursors, which brokers never close",
    FindingClass.ORPHAN_SEGMENT: "it belongs to a segment that no scalable topic has any more",
}
CLASS_NEXT = {
    FindingClass.ORPHAN: "`ledger-reaper audit --last --publish`: the service then checks each again and deletes it",
    FindingClass.MISSING: "`ledger-reaper explain --topic T` shows who needs it, and how to restore it or give it up",
    FindingClass.UNKNOWN: "repair the paths that the certificate names, then audit again",
    FindingClass.FOREIGN: "nothing",
    FindingClass.TOO_YOUNG: "wait, then audit again",
    FindingClass.OPEN: "wait, then audit again: it becomes an orphan when its cursor or list names a newer ledger or "
    "is gone, and its metadata has not changed for safety.open_quiet_period and for "
    "safety.above_newest_quarantine_seconds",
    FindingClass.ORPHAN_SEGMENT: "let the service have brokers delete such segments, or do so yourself "
    "(docs/audit.md, orphan segments)",
}
SEGMENTS_KEPT = (
    "Orphan segments are only reported, because safety.allowed_components does not name SEGMENT. Nothing could restore "
    "a segment (docs/audit.md, orphan segments)."
)
SEGMENTS_REQUESTED = (
    "With --publish, the audit also requests the removal of each orphan segment that no split can take over, because "
    "safety.allowed_components names SEGMENT. Nothing can restore a segment that a broker has deleted."
)
_MEANING = {
    Reason.UNREFERENCED: "Its topic does not refer to it, it is old enough, and it is closed (or open, but quiet for "
    "long enough): the service would delete it.",
    Reason.OWNER_GONE: "Its topic does not exist any more: the service would delete it.",
    Reason.NOT_FOUND: "It does not exist, so the service would have nothing to delete.",
    Reason.IN_USE: "Its topic needs it: the service would keep it, and try again later.",
    Reason.OWNER_UNREADABLE: "The service could not tell whether it is in use, which counts as in use: it would keep "
    "it for now.",
    Reason.BROKER_UNAVAILABLE: "The brokers could not be asked whether it is in use, which counts as in use: it would "
    "keep it until they answer.",
    Reason.OWNER_HIDDEN: "Its segment is loaded, and brokers do not show which ledgers of it they use. That counts "
    "as in use: the service would keep it until the segment is unloaded or gone.",
    Reason.OWNER_ABSENT_ONCE: "Its topic seems to be gone. The service would check a second time, after "
    "two_phase.reconsume_later_seconds, and delete it if the topic is still gone.",
    Reason.UNREFERENCED_ONCE: "No topic seems to refer to it. The service would check a second time, after "
    "two_phase.reconsume_later_seconds, and delete it if that is still so.",
    Reason.LEDGER_UNREADABLE: "The service can't read its metadata: it would keep it for now.",
    Reason.NOT_CLOSED: "It is not closed: the service would keep it for now. Brokers never close a cursor's "
    "former ledger. The service deletes an OPEN ledger when its cursor or list names a newer ledger or is gone, and "
    "its metadata has not changed for safety.open_quiet_period and for safety.above_newest_quarantine_seconds.",
    Reason.TOO_YOUNG: "It is so young that its topic may still add it to its list: the service would keep it for now.",
    Reason.ABOVE_NEWEST: "It is newer than all ledgers that its topic refers to: a stalled broker may still add it to "
    "the list. The service would keep it until it is safety.above_newest_quarantine_seconds old.",
    Reason.OFFLOAD_IN_PROGRESS: "A broker may still complete this upload: the service would keep it for now.",
    Reason.OFFLOAD_UNCONFIRMED: "It was offloaded according to its list, but its objects were not found: it may be the "
    "last copy, and the service would keep it.",
    Reason.SEGMENT_UNNAMED: "Its segment names it, and no layout of a scalable topic names the segment: the service "
    "would keep the ledger, unless it may have a broker delete the segment (safety.allowed_components).",
    Reason.SEGMENT_AHEAD: "Its segment names it, and the next split or merge of its topic may take the segment over: "
    "the service would keep it.",
    Reason.PROOF_MISSING: "Nothing proves which topic it belonged to: the service would keep it.",
    Reason.NOT_PULSARS: "Pulsar did not create it: the service would refuse the request for good. Ask the other users "
    "of this BookKeeper.",
    Reason.OTHER_OWNER: "Its metadata names another owner: the service would refuse the request for good.",
    Reason.OTHER_COMPONENT: "Its metadata names another component: the service would refuse the request for good.",
    Reason.OTHER_CLUSTER: "It belongs to another Pulsar cluster: the service would refuse the request for good.",
    Reason.UNKNOWN_COMPONENT: "Its metadata names a component that this program does not know, which counts as in use: "
    "the service would keep it.",
    Reason.MISSING_FIELD: "Its metadata names no topic, so no owner can be checked: the service would keep it.",
    Reason.BAD_TOPIC_NAME: "Its metadata names a topic that can't exist, so no owner can be checked: the service "
    "would keep it.",
}


def meaning_of(reason: Reason) -> str:
    """Return a sentence that explains a reason to an operator."""
    return _MEANING.get(reason, "The service would keep it.")


def amount_text(finding_class: str, size_bytes: int) -> str:
    """Return the bytes of a class of findings; the length of an open ledger is not known before it is closed."""
    return "not known" if finding_class == FindingClass.OPEN and not size_bytes else size_text(size_bytes)


def scope_text(filters: FindingFilters) -> str:
    """Return the filters as text; "" is everything."""
    chosen = {
        "tenant": filters.tenant,
        "namespace": filters.namespace,
        "component": str(filters.component or ""),
        "older than": age_text(filters.older_than_seconds) if filters.older_than_seconds else "",
        "the oldest orphans within": size_text(filters.max_bytes) if filters.max_bytes else "",
    }
    return ", ".join(f"{name} {value}" for name, value in chosen.items() if value)
