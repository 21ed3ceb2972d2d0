"""Prints an audit on the terminal: missing data, topics with orphans, completeness, and the next commands."""

from dataclasses import dataclass
from datetime import UTC, datetime

from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streaming.audit.report.descriptions import (
    CLASS_MEANING,
    INTRODUCTION,
    SEGMENTS_KEPT,
    SEGMENTS_REQUESTED,
    amount_text,
)
from streaming.audit.report.summary import FindingSample, Summary
from streaming.audit.result import AuditResult
from streaming.audit.space import WHY_ON_DISK, Space
from streaming.terminal import Terminal, age_text, cell, count_of, new_table, plain, size_text
from udfs.verdicts.finding_classes import FindingClass

_TOPICS = 40
_SAMPLES = 10
_STYLES = {FindingClass.ORPHAN: "yellow", FindingClass.MISSING: "bold red", FindingClass.UNKNOWN: "magenta"}


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands that the operator may run next."""

    publish: str
    explain: str
    removes_segments: bool = False  # `publish` requests orphan segments as well


def show(console: Terminal, result: AuditResult, summary: Summary, space: Space, scope: str = "") -> None:
    """Print the whole audit; scope: the audit's filters as text; "" if it has none."""
    _head(console, result, scope)
    _missing(console, summary)
    if summary.by_topic:
        console.print(_topics(summary))
    console.print(_classes(result, summary))
    if summary.unknown:
        console.print(
            _samples("Unknown, because a fact that decides could not be read (the largest ledgers)", summary.unknown)
        )
    if space.is_known:
        console.print(_space(space))
        for reason in (WHY_ON_DISK, *space.why) if space.why else ():
            console.print(Padding(Text(reason, style="dim"), (0, 0, 0, 2)))
    if space.unasked:
        more = f" (and {len(space.unasked) - 1} more)" if len(space.unasked) > 1 else ""
        console.print(_marked("Not counted", "yellow", f"{space.unasked[0]}{more}"), soft_wrap=True)
    show_certificate(console, result)


def in_short(result: AuditResult, summary: Summary) -> str:
    """Return one line for a log."""
    counts = [f"{summary.of(name).count} {name}" for name in FindingClass if summary.of(name).count]
    complete = "complete" if result.certificate.is_complete else "incomplete"
    classes = ", ".join(counts) or "no findings"
    return (
        f"{complete}, {result.totals['ledgers']} ledgers, {classes}, {size_text(summary.orphans.size_bytes)} orphaned"
    )


def propose(console: Terminal, summary: Summary, commands: Commands, *, publishes: bool) -> None:
    """Print what the operator can do next."""
    segments = summary.of(FindingClass.ORPHAN_SEGMENT).count
    if (summary.orphans.count or (segments and commands.removes_segments)) and not publishes:
        console.print(
            "The audit deleted nothing. The next command sends a deletion request for each of these orphans; the "
            "service (`ledger-reaper run`) checks each orphan once more before it deletes the orphan:"
        )
        console.print(cell(f"  {commands.publish}"), soft_wrap=True)
    if segments:
        console.print(SEGMENTS_REQUESTED if commands.removes_segments else SEGMENTS_KEPT)
    if summary.of(FindingClass.OPEN).count:
        console.print(
            "Most OPEN ledgers once belonged to cursors; brokers never close such ledgers. The service deletes such a "
            "ledger when its cursor or list names a newer ledger or is gone, and nothing has changed for "
            "safety.open_quiet_period and for safety.above_newest_quarantine_seconds."
        )
    if any(summary.of(name).count for name in FindingClass):
        console.print("To see a ledger's owner, and why the service would delete or keep it (replace N by its id):")
        console.print(cell(f"  {commands.explain}"), soft_wrap=True)


def _head(console: Terminal, result: AuditResult, scope: str) -> None:
    started = datetime.fromtimestamp(result.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    took = age_text((result.ended_ms - result.started_ms) / 1000)
    where = f" of {plain(result.cluster)}" if result.cluster else ""
    head = Text.assemble(("Ledger audit", "bold"), f"{where}, {started} UTC; it took {took}.")
    console.print(head, soft_wrap=True)
    console.print(INTRODUCTION, style="dim", highlight=False)
    if scope:
        only = f"Only {scope}. The rows `in use` and `listed`, and completeness, refer to the whole cluster."
        console.print(cell(only))


def _missing(console: Terminal, summary: Summary) -> None:
    missing = summary.of(FindingClass.MISSING)
    if missing.count:
        size = size_text(missing.size_bytes)
        text = Text(
            f"Topics refer to {count_of(missing.count, 'ledger or object', 'ledgers or objects')} ({size}) that "
            f"{'does' if missing.count == 1 else 'do'} not exist.\n"
            "`ledger-reaper explain --topic T` shows who needs the data, whether `undo` can restore them, and how to "
            "give them up. Unload no topic before: a topic that brokers have loaded may still work."
        )
        console.print(Panel(text, title="DATA LOSS", border_style="bold red", expand=False))
        console.print(_samples("Missing (the largest)", summary.missing))


def _topics(summary: Summary) -> Table:
    shown = summary.by_topic[:_TOPICS]
    more = (
        f" (the {_TOPICS} topics with the most bytes; the report has more)" if len(summary.by_topic) > _TOPICS else ""
    )
    title, numbers = f"Orphans by topic: storage that no topic uses any more{more}", ("orphans", "bytes", "oldest")
    topics = new_table(title, *numbers, "tenant", "namespace", "topic", numbers=numbers)
    for row in shown:
        namespace = row.namespace.partition("/")[2]
        name = row.topic.removeprefix(f"persistent://{row.namespace}/")
        amounts = (f"{row.orphans:,}", size_text(row.size_bytes), age_text(row.oldest_seconds))
        topics.add_row(*amounts, *map(cell, (row.tenant, namespace, name)))
    return topics


def _classes(result: AuditResult, summary: Summary) -> Table:
    findings = new_table("Findings", "class", "count", "bytes", "meaning", numbers=("count", "bytes"), whole=("class",))
    for name in FindingClass:
        amount = summary.of(name)
        if amount.count:
            cells = (str(name), f"{amount.count:,}", amount_text(name, amount.size_bytes), CLASS_MEANING[name])
            findings.add_row(*cells, style=_STYLES.get(name, ""))
    findings.add_row(
        "in use", f"{result.totals['in_use']:,}", "", "ledgers that a topic, cursor or schema refers to", style="green"
    )
    findings.add_row("listed", f"{result.totals['ledgers']:,}", "", "all ledgers that exist in BookKeeper", style="dim")
    return findings


def _space(space: Space) -> Table:
    amounts = new_table("Bytes deleted, and bytes freed on the bookies' disks", "bytes", "what", numbers=("bytes",))
    for what, size in space.lines():
        amounts.add_row(size_text(size), what)
    return amounts


def _samples(title: str, samples: tuple[FindingSample, ...]) -> Table:
    shown = new_table(title, "ledger", "where", "topic", "reason", "detail", numbers=("ledger",))
    for row in samples[:_SAMPLES]:
        shown.add_row(*map(cell, (row.ledger_id, row.where, row.topic, row.reason, row.detail)))
    return shown


def show_certificate(console: Terminal, result: AuditResult) -> None:
    """Print whether the audit could read everything, and the paths that it could not read."""
    certificate = result.certificate
    span = (
        f"Its lists include everything that was written before ZooKeeper transaction {certificate.zxid_start:#x} and "
        f"nothing that was written after {certificate.zxid_end:#x}; the checks read the suspects again later."
    )
    if certificate.is_complete:
        console.print(_marked("Complete", "green", f"the audit could read everything. {span}"), soft_wrap=True)
        return
    for error in certificate.errors:
        console.print(_marked("Incomplete", "red", error), soft_wrap=True)
    if certificate.unreadable:
        unread = count_of(len(certificate.unreadable), "path")
        unread = f"{unread} could not be read; findings that depend on unread paths are UNKNOWN. {span}"
        console.print(_marked("Incomplete", "red", unread), soft_wrap=True)
        for path, detail in certificate.unreadable[:_SAMPLES]:
            console.print(cell(f"  {path}: {detail}"), soft_wrap=True)


def _marked(label: str, style: str, text: str) -> Text:
    return Text.assemble((label, style), ": ", cell(text))
