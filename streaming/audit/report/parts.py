"""Parts that the reports of several audits are made of: sections, tables, and the certificate."""

from collections.abc import Iterable, Sequence, Set
from html import escape

from streaming.audit.certificate import Certificate

_LISTED = {
    "namespaces": "namespaces with transaction-buffer snapshots",
    "messages": "messages of their snapshot topics read",
    "topics": "topics with snapshots asked for",
    "ledgers": "ledgers listed",
    "owners": "topics and schemas listed",
    "references": "references read (a ledger or object that a topic, cursor or schema names)",
    "unreferenced": "ledgers without a reference, each looked at",
    "objects": "objects in tiered storage listed",
    "objects elsewhere": "offloads in buckets that tiered_storage.allowed does not name, not looked at",
}


def certificate(found: Certificate) -> str:
    """Return what was read, and what could not be."""
    facts = [(_LISTED.get(name, name), f"{count:,}") for name, count in found.listed.items()]
    facts.append(("nothing is missed that was written before ZooKeeper transaction", f"{found.zxid_start:#x}"))
    facts.append(("nothing is in here that was written after", f"{found.zxid_end:#x}"))
    facts += [("error", error) for error in found.errors]
    facts.append(("paths that could not be read", f"{len(found.unreadable):,}"))
    shown = table(("what the audit read", "result"), facts, numbers=set())
    if found.unreadable:
        shown += table(("could not be read", "why"), found.unreadable[:100], numbers=set())
    return shown


def section(title: str, content: str) -> str:
    """Return a part of a page under its title."""
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: set[int], codes: Set[int] = frozenset()
) -> str:
    """Return a table. numbers: columns to align right; codes: columns of words that must not be broken."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if number in numbers else ' class=k' if number in codes else ''}>{escape(text)}</{tag}>"
            for number, text in enumerate(texts)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    if not body:
        return '<p class="nothing">None.</p>'
    return f'<div class="scroll"><table><thead><tr>{cells("th", heads)}</tr></thead><tbody>{body}</tbody></table></div>'
