"""What classes and reasons mean for the person who asked "can I delete this?"."""

from udfs.audit import FindingClass
from udfs.records import Reason

CLASS_MEANING = {
    FindingClass.ORPHAN: "belongs to no one; the service would delete it",
    FindingClass.MISSING: "an owner refers to it, and it does not exist",
    FindingClass.UNKNOWN: "something that decides could not be read",
    FindingClass.FOREIGN: "another application's; never touched",
    FindingClass.TOO_YOUNG: "unreferenced, but its owner may still write it into a list",
    FindingClass.OPEN: "unreferenced, but perhaps being written to",
}
CLASS_NEXT = {
    FindingClass.ORPHAN: "`ledger-reaper audit --last --publish`: the service judges each again, then deletes it",
    FindingClass.MISSING: "find out who deleted it; `ledger-reaper undo`, if `ledger-reaper receipts` says the service",
    FindingClass.UNKNOWN: "repair what the certificate names, then audit again",
    FindingClass.FOREIGN: "nothing",
    FindingClass.TOO_YOUNG: "wait, then audit again",
    FindingClass.OPEN: "choose after how many days such ledgers may go: safety.open_quarantine_days",
}
MEANING = {
    Reason.UNREFERENCED: "It is closed, old enough, and its owner does not name it: it would be deleted.",
    Reason.OWNER_GONE: "Its owner does not exist any more: it would be deleted.",
    Reason.NOT_FOUND: "There is nothing to delete (any more).",
    Reason.IN_USE: "Its owner needs it: it would be kept, and looked at again later.",
    Reason.OWNER_UNREADABLE: "Whether it is in use can't be told, which counts as in use: it would be kept for now.",
    Reason.OWNER_ABSENT_ONCE: "Its owner seems to be gone. The service looks a second time, after "
    "two_phase.reconsume_later_seconds, and deletes it if that is still so.",
    Reason.UNREFERENCED_ONCE: "Nobody seems to refer to it. The service looks a second time, after "
    "two_phase.reconsume_later_seconds, and deletes it if that is still so.",
    Reason.LEDGER_UNREADABLE: "Its own metadata can't be read: it would be kept for now.",
    Reason.NOT_CLOSED: "Somebody may be writing to it or recovering it: it would be kept. Ledgers whose writer died "
    "stay open for ever; safety.open_quarantine_days says after how many days they may go.",
    Reason.TOO_YOUNG: "It is too young: its owner may still write it into its list. It would be kept for now.",
    Reason.ABOVE_NEWEST: "It is newer than all its owner names: a stalled broker may still write it into the list. "
    "It would be kept until it is safety.above_newest_quarantine_seconds old.",
    Reason.OFFLOAD_IN_PROGRESS: "An upload may still be completed: it would be kept for now.",
    Reason.PROOF_MISSING: "Nothing proves whose it was: it would be kept.",
    Reason.NOT_PULSARS: "It is not Pulsar's: a request for it would be refused for good. Ask BookKeeper's other users.",
    Reason.OTHER_OWNER: "It says that it belongs to somebody else: the request would be refused for good.",
    Reason.OTHER_COMPONENT: "It says that it is something else: the request would be refused for good.",
    Reason.OTHER_CLUSTER: "It belongs to another Pulsar cluster: the request would be refused for good.",
    Reason.UNKNOWN_COMPONENT: "It names a component that this program does not know, which counts as in use.",
    Reason.MISSING_FIELD: "Its metadata does not name its owner, so nobody can be asked: it counts as in use.",
    Reason.BAD_TOPIC_NAME: "Its metadata names an owner that can't exist, so nobody can be asked: it counts as in use.",
}


def meaning_of(reason: Reason) -> str:
    """A sentence for the operator."""
    return MEANING.get(reason, "It would be kept.")
