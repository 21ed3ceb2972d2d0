"""The audit on the terminal: what belongs to no one, by tenant, namespace and topic, and how sure that is."""

from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streaming.audit.audited import Audited
from streaming.audit.report.summary import Sample, Summary
from streaming.audit.report.text import age_text, amount_text, size_text
from streaming.audit.report.words import CLASS_MEANING
from streaming.audit.space import Space
from udfs.audit import FindingClass

_TOPICS = 40
_SAMPLES = 10
_STYLES = {FindingClass.ORPHAN: "yellow", FindingClass.MISSING: "bold red", FindingClass.UNKNOWN: "magenta"}


@dataclass(frozen=True, slots=True)
class Commands:
    """What the operator may want to run next, as it has to be typed."""

    publish: str
    explain: str


def show(console: Console, audited: Audited, summary: Summary, space: Space, scope: str = "") -> None:
    """Print tables. scope: the filters in words, "" for everything."""
    _head(console, audited, scope)
    _missing(console, summary)
    if summary.by_topic:
        console.print(_topics(summary))
    console.print(_classes(audited, summary))
    if summary.unknown:
        console.print(_samples("Could not be judged (the largest)", summary.unknown))
    if space.is_known:
        console.print(_space(space))
        for reason in space.why:
            console.print(Padding(Text(reason, style="dim"), (0, 0, 0, 2)))
    if space.unasked:
        more = f" (and {len(space.unasked) - 1} more)" if len(space.unasked) > 1 else ""
        console.print(f"[yellow]No answer[/]: {space.unasked[0]}{more}", soft_wrap=True)
    _certificate(console, audited)


def in_short(audited: Audited, summary: Summary) -> str:
    """One line for a log."""
    counts = [f"{summary.of(each).count} {each}" for each in FindingClass if summary.of(each).count]
    complete = "complete" if audited.certificate.is_complete else "incomplete"
    found = ", ".join(counts) or "no findings"
    return f"{complete}, {audited.totals['ledgers']} ledgers, {found}, {size_text(summary.orphans.size_bytes)} orphaned"


def propose(console: Console, summary: Summary, commands: Commands, *, publishes: bool) -> None:
    """Say what to do next."""
    if summary.orphans.count and not publishes:
        console.print("Nothing was changed. To have the service judge these orphans again and delete them:")
        console.print(f"  {commands.publish}", soft_wrap=True, markup=False, highlight=False)
    if summary.of(FindingClass.OPEN).count:
        console.print("OPEN ledgers stay until safety.open_quarantine_days says after how many days they may go.")
    if any(summary.of(each).count for each in FindingClass):
        console.print("To know more about one ledger:")
        console.print(f"  {commands.explain}", soft_wrap=True, markup=False, highlight=False)


def _head(console: Console, audited: Audited, scope: str) -> None:
    started = datetime.fromtimestamp(audited.started_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    took = age_text((audited.ended_ms - audited.started_ms) / 1000)
    console.print(f"[bold]Ledger audit[/] of {started} UTC, took {took}", highlight=False)
    if scope:
        only = f"Only {scope}; MISSING, in use and listed are the whole cluster's."
        console.print(only, markup=False, highlight=False)


def _missing(console: Console, summary: Summary) -> None:
    missing = summary.of(FindingClass.MISSING)
    if missing.count:
        size = size_text(missing.size_bytes)
        text = Text(
            f"{missing.count:,} ledgers or objects ({size}) are referred to and do not exist.\n"
            "`ledger-reaper receipts --ledger N` tells whether the service deleted one; then `ledger-reaper undo` "
            "puts it back, while the bookies still hold its data."
        )
        console.print(Panel(text, title="DATA LOSS", border_style="bold red", expand=False))
        console.print(_samples("Missing (the largest)", summary.missing))


def _topics(summary: Summary) -> Table:
    shown = summary.by_topic[:_TOPICS]
    more = f" (the {_TOPICS} with the most bytes; the report has more)" if len(summary.by_topic) > _TOPICS else ""
    table = Table(title=f"Orphans by topic{more}", title_justify="left")
    for name in ("tenant", "namespace", "topic"):
        table.add_column(name, overflow="fold")
    for name in ("orphans", "bytes", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in shown:
        namespace = row.namespace.partition("/")[2]
        name = row.topic.removeprefix(f"persistent://{row.namespace}/")
        amounts = (f"{row.orphans:,}", size_text(row.size_bytes), age_text(row.oldest_seconds))
        table.add_row(*map(escape, (row.tenant, namespace, name)), *amounts)
    return table


def _classes(audited: Audited, summary: Summary) -> Table:
    table = Table(title="Findings", title_justify="left")
    table.add_column("class", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("meaning")
    for each in FindingClass:
        amount = summary.of(each)
        if amount.count:
            cells = (str(each), f"{amount.count:,}", amount_text(each, amount.size_bytes), CLASS_MEANING[each])
            table.add_row(*cells, style=_STYLES.get(each, ""))
    table.add_row("in use", f"{audited.totals['in_use']:,}", "", "ledgers that an owner refers to", style="green")
    table.add_row("listed", f"{audited.totals['ledgers']:,}", "", "ledgers in BookKeeper's metadata", style="dim")
    return table


def _space(space: Space) -> Table:
    table = Table(title="Space", title_justify="left")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for what, size in space.lines():
        table.add_row(what, size_text(size))
    return table


def _samples(title: str, samples: tuple[Sample, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("ledger", justify="right", no_wrap=True)
    for name in ("kind", "owner", "reason", "detail"):
        table.add_column(name, overflow="fold")
    for each in samples[:_SAMPLES]:
        table.add_row(str(each.ledger_id), each.kind, *map(escape, (each.topic, each.reason, each.detail)))
    return table


def _certificate(console: Console, audited: Audited) -> None:
    certificate = audited.certificate
    span = f"ZooKeeper transactions {certificate.zxid_start:#x} to {certificate.zxid_end:#x}"
    if certificate.is_complete:
        console.print(f"[green]Complete[/]: everything was read, {span}.")
        return
    for error in certificate.errors:
        console.print(f"[red]Incomplete[/]: {error}", soft_wrap=True)
    if certificate.unreadable:
        console.print(f"[red]Incomplete[/]: {len(certificate.unreadable):,} paths could not be read, {span}.")
        for path, detail in certificate.unreadable[:_SAMPLES]:
            console.print(f"  {path}: {detail}", soft_wrap=True, markup=False)
