"""The report of a snapshot audit: on the terminal, and as a page or a section of the ledger audit's page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from rich.table import Table
from rich.text import Text

from streaming.audit import audit_columns as a
from streaming.audit.cluster_label import program
from streaming.audit.report.certificate_table import certificate
from streaming.audit.report.terminal_report import show_certificate
from streaming.audit.result import AuditResult
from streaming.audit.tables import Rows
from streaming.pages.elements import document, section, sentence, stamp, table, time_text
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit.advice import CLASS_MEANING, INTRODUCTION, LEFT_OUT, NEXT, NOT_LOADED
from streaming.terminal import Terminal, age_text, cell, count_of, new_table, plain, size_text
from udfs import columns as c
from udfs.snapshots.topic_findings import SnapshotClass, SnapshotReason

GRAVE = (SnapshotClass.MISSING, SnapshotClass.DANGER)
SAMPLES = 200
_SHOWN = 40
_UNREAD = 20
_TITLE = "Transaction-buffer snapshots"
INCOMPLETE = (
    "Nothing was judged in the namespaces that could not be read. Audit them again; if the same topic is named again, "
    "check whether its broker answers (`ledger-reaper check`), and read the broker's log"
)
_STYLES = {SnapshotClass.MISSING: "bold red", SnapshotClass.DANGER: "red", SnapshotClass.ORPHAN: "yellow"}
_JSON_FIELDS = (
    a.CLASS,
    c.REASON,
    a.NAMESPACE,
    c.TOPIC_NAME,
    s.KIND,
    s.KEY,
    s.LEDGER,
    s.ENTRY,
    c.BYTES,
    s.IDS,
    c.DETAIL,
)
_HEADS = ("class", "reason", "topic", "finding", "messages", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Findings of the same class and reason about a topic."""

    finding_class: SnapshotClass
    reason: SnapshotReason
    topic: str
    detail: str  # of one of the findings
    count: int
    size_bytes: int


def totals(found: Rows) -> dict[str, dict[str, int]]:
    """Count each class of findings, with bytes and ids."""
    classes = {str(each): {"count": 0, "bytes": 0, "ids": 0} for each in SnapshotClass}
    by_class = f"SELECT {a.CLASS}, count(*) AS n, sum({c.BYTES}) AS size, sum({s.IDS}) AS ids FROM rows GROUP BY ALL"
    for row in found.select(by_class).fetched():
        classes[row[a.CLASS]] = {"count": row["n"], "bytes": row["size"] or 0, "ids": row["ids"] or 0}
    return classes


def groups_of(found: Rows) -> list[FindingGroup]:
    """Add findings up by class, reason and topic: by gravity, then by size; at most SAMPLES groups."""
    grouped = found.select(
        f"""
        SELECT {a.CLASS}, {c.REASON}, {c.TOPIC_NAME}, count(*) AS n, sum({c.BYTES}) AS size, min({c.DETAIL}) AS detail
        FROM rows GROUP BY {a.CLASS}, {c.REASON}, {c.TOPIC_NAME}
        """
    )
    ordered = grouped.select(
        f"""
        FROM rows ORDER BY list_position($gravest_first, {a.CLASS}), size DESC, n DESC, {c.TOPIC_NAME}, {c.REASON}
        LIMIT {SAMPLES}
        """,
        gravest_first=[str(each) for each in SnapshotClass],
    )
    return [
        FindingGroup(
            finding_class=SnapshotClass(row[a.CLASS]),
            reason=SnapshotReason(row[c.REASON]),
            topic=row[c.TOPIC_NAME],
            detail=row["detail"],
            count=row["n"],
            size_bytes=row["size"] or 0,
        )
        for row in ordered.fetched()
    ]


def with_advice(found: Rows) -> Iterator[dict[str, Any]]:
    """Yield each finding with what to do about it, in the order in which --json prints the fields."""
    for row in found.select(f"SELECT {', '.join(_JSON_FIELDS)} FROM rows").each():
        yield row | {"do": NEXT[SnapshotReason(row[c.REASON])]}


def show(console: Terminal, result: AuditResult, groups: Sequence[FindingGroup]) -> None:
    """Print the whole audit."""
    started = datetime.fromtimestamp(result.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    took = age_text((result.ended_ms - result.started_ms) / 1000)
    console.print(Text.assemble(("Snapshot audit", "bold"), f" of {started} UTC; it took {took}."))
    console.print(INTRODUCTION, style="dim", highlight=False)
    if groups:
        console.print(_table(groups))
        for reason in dict.fromkeys(each.reason for each in groups):
            console.print(Text.assemble((reason, "bold"), ": ", NEXT[reason]))
    read = ", ".join(f"{count:,} {name}" for name, count in result.certificate.listed.items())
    console.print(f"Read: {read}. Findings: {in_short(result)}.")
    show_certificate(console, result)
    if not result.certificate.is_complete:
        console.print(cell(INCOMPLETE), soft_wrap=True)


def in_short(result: AuditResult) -> str:
    """Return how many findings there are of each class."""
    counts = [(each, result.totals[str(each)]["count"]) for each in SnapshotClass]
    return ", ".join(f"{count} {each}" for each, count in counts if count) or "none"


def failed_section(why: str) -> str:
    """Return the section of a page that explains why there are no findings."""
    return section(_TITLE, f"<p class='note'>Snapshots were not audited: {escape(why)}</p>")


def html_section(groups: Sequence[FindingGroup], result: AuditResult) -> str:
    """Return the findings as a section of a page."""
    rows = [
        (
            each.topic.removeprefix("persistent://"),
            str(each.finding_class),
            str(each.reason),
            each.detail,
            f"{each.count:,}",
            size_text(each.size_bytes),
        )
        for each in groups
    ]
    heads = ("topic", *(head for head in _HEADS if head != "topic"))
    shown = table(heads, rows, numbers={4, 5}, codes={1, 2})
    if advice := [(reason, NEXT[reason]) for reason in dict.fromkeys(each.reason for each in groups)]:
        shown += table(("reason", "what to do"), advice, numbers=set(), codes={0}, sentences={1})
    note = f"<p class='dim'>The gravest {SAMPLES}; the findings folder holds all.</p>" if len(rows) == SAMPLES else ""
    unread = [f"{path}: {detail}" for path, detail in result.certificate.unreadable[:_UNREAD]]
    gaps = "".join(f"<p class='note'>Not read, so not judged: {escape(each)}</p>" for each in unread)
    if left_out := result.certificate.listed.get(NOT_LOADED):
        gaps += f"<p class='note'>{count_of(left_out, 'namespace')} left out: {sentence(LEFT_OUT)}</p>"
    gaps += f"<p class='note'>{sentence(INCOMPLETE)}</p>" if not result.certificate.is_complete else ""
    return section(_TITLE, f"<p class='dim'>{escape(INTRODUCTION)}</p>{gaps}{shown}{note}")


def page(result: AuditResult, groups: Sequence[FindingGroup]) -> str:
    """Return the whole report as a page that loads no other files."""
    mark = stamp(is_complete=result.certificate.is_complete)
    where = escape(plain(" · ".join(filter(None, (result.cluster, program())))))
    started = f"{time_text(result.started_ms)} UTC · {escape(result.audit_id)} · {where}"
    meanings = [
        (str(each), meaning, f"{result.totals[str(each)]['count']:,}") for each, meaning in CLASS_MEANING.items()
    ]
    body = (
        f"<header><h1>Snapshot audit {mark}</h1><p class='dim'>{started}</p></header>{html_section(groups, result)}"
        f"{section('Classes of findings', table(('class', 'meaning', 'findings'), meanings, numbers={2}, codes={0}))}"
        f"{section('Completeness certificate', certificate(result.certificate))}"
    )
    return document(f"Snapshot audit {result.audit_id}", body)


def _table(groups: Sequence[FindingGroup]) -> Table:
    more = f" (the gravest {_SHOWN}; the report has more)" if len(groups) > _SHOWN else ""
    shown = new_table(f"Findings{more}", *_HEADS, numbers=("messages", "bytes"), whole=("class", "reason"))
    for group in groups[:_SHOWN]:
        amounts = (f"{group.count:,}", size_text(group.size_bytes))
        cells = (group.finding_class, group.reason, group.topic, group.detail, *amounts)
        shown.add_row(*map(cell, cells), style=_STYLES.get(group.finding_class, ""))
    return shown
