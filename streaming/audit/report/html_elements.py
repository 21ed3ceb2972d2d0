"""HTML elements that the reports of all audits share: sections, tables and the certificate."""

from collections.abc import Iterable, Sequence, Set
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streaming.audit.certificate import Certificate

_LISTED = {
    "namespaces": "namespaces with transaction-buffer snapshots",
    "messages": "messages of their snapshot topics read",
    "topics": "topics with snapshots queried",
    "ledgers": "ledgers listed",
    "owners": "topics and schemas listed",
    "references": "references read (a ledger or object that a topic, cursor or schema names)",
    "unreferenced": "ledgers without a reference, each checked",
    "objects": "objects in tiered storage listed",
    "objects elsewhere": "offloads in buckets that tiered_storage.allowed does not name, not checked",
}


def certificate(proof: "Certificate") -> str:
    """Return what was read, and what could not be read."""
    facts = [(_LISTED.get(name, name), f"{count:,}") for name, count in proof.listed.items()]
    facts.append(("contains all that was written before ZooKeeper transaction", f"{proof.zxid_start:#x}"))
    facts.append(("contains nothing that was written after ZooKeeper transaction", f"{proof.zxid_end:#x}"))
    facts += [("error", error) for error in proof.errors]
    facts.append(("paths that could not be read", f"{len(proof.unreadable):,}"))
    shown = table(("what the audit read", "result"), facts, numbers=set())
    if proof.unreadable:
        shown += table(("path that could not be read", "why"), proof.unreadable[:100], numbers=set())
    return shown


def section(title: str, content: str) -> str:
    """Return a section of a page with its title."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: set[int], codes: Set[int] = frozenset()
) -> str:
    """Return a table.

    Args:
        heads: the column titles.
        rows: the cells as text.
        numbers: columns to align right.
        codes: columns whose text must not wrap.
    """

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number in numbers else ' class=k' if number in codes else ''}>{escape(text)}</{tag}>"
            for number, text in enumerate(texts)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    if not body:
        return '<p class="nothing">None.</p>'
    return f'<div class="scroll"><table><thead><tr>{cells("th", heads)}</tr></thead><tbody>{body}</tbody></table></div>'
