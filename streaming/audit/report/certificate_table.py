"""The certificate of completeness as HTML, which the reports of all audits show."""

from typing import TYPE_CHECKING

from streaming.pages.elements import table

if TYPE_CHECKING:
    from streaming.audit.certificate import Certificate

_LISTED = {
    "namespaces": "namespaces with transaction-buffer snapshots",
    "messages": "messages of their snapshot topics read",
    "topics": "topics with snapshots queried",
    "ledgers": "ledgers listed",
    "owners": "topics and schemas listed",
    "references": "references read (a ledger or object that a topic, cursor or schema names)",
    "unreferenced": "ledgers without a reference",
    "objects": "objects in tiered storage listed",
    "objects elsewhere": "offloads in buckets that tiered_storage.allowed does not name, not checked",
}


def certificate(proof: "Certificate") -> str:
    """Return what was read, and what could not be read."""
    facts = [(_LISTED.get(name, name), f"{count:,}") for name, count in proof.listed.items()]
    facts.append(("the lists contain all that was written before ZooKeeper transaction", f"{proof.zxid_start:#x}"))
    facts.append(("the lists contain nothing that was written after ZooKeeper transaction", f"{proof.zxid_end:#x}"))
    facts += [("error", error) for error in proof.errors]
    facts.append(("paths that could not be read", f"{len(proof.unreadable):,}"))
    shown = table(("what the audit read", "result"), facts, numbers=set())
    if proof.unreadable:
        shown += table(("path that could not be read", "why"), proof.unreadable[:100], numbers=set())
    return shown
