"""Prints the result of `space` on the terminal, in the form of `du`: sizes first, names last and never cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from streaming.audit.cluster_label import label
from streaming.space.output.fixes import Fix, fixes
from streaming.space.output.space_texts import (
    CAUSE_TEXT,
    ONE_COPY,
    Price,
    ago_text,
    bounds_text,
    bytes_text,
    share_text,
    yes_no,
)
from streaming.terminal import Terminal, age_text, cell, count_of, size_text
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import Growth
from udfs.space.space_report import BookieSpace, SpaceReport, Subscription
from udfs.space.view import (
    Amount,
    Filters,
    Row,
    View,
    added,
    disks_of,
    idle_longest,
    largest_subscriptions,
    rows_by,
    total,
)

_ROWS = 20  # of a chosen view, without --top
_TOP = 5  # consumers of each kind below the causes
_UNKNOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A result and how it is shown."""

    report: SpaceReport  # what the filters select
    filters: Filters
    by: View
    top: int | None = None  # rows at most; None: all causes and bookies, _ROWS of other views, and all as JSON
    price: Price = field(default_factory=Price)
    growth: Growth | None = None


def show(console: Terminal, shown: Shown) -> None:
    """Print the totals and the rows; by cause, also the consumers, the bookies, the growth and the fixes."""
    for line in headline(shown):
        console.print(cell(line), soft_wrap=True)
    for name, size, text in totals(shown):
        console.print(cell(f"{name:<9}{size:>11}  {text}"), soft_wrap=True)
    if shown.by is View.BOOKIE:
        _show_bookies(console, shown.report, shown.top)
    elif shown.by is View.SUBSCRIPTION:
        _show_subscriptions(console, shown)
    else:
        _show_rows(console, shown)
    if shown.by is View.CAUSE:
        _show_consumers(console, shown)
        _show_bookies(console, shown.report, None)
        _show_growth(console, shown.growth)
        _show_fixes(console, fixes(shown.report))
    _show_unknown(console, shown.report)


def show_causes(console: Terminal, shown: Shown) -> None:
    """Print the causes, the subscriptions, and what is not known."""
    for line in headline(shown):
        console.print(cell(line), soft_wrap=True)
    _show_rows(console, shown)
    if shown.report.subscriptions:
        _show_subscriptions(console, shown)
    _show_unknown(console, shown.report)


def headline(shown: Shown) -> Iterator[str]:
    """Yield what was read, and the filters."""
    report = shown.report
    where = label(report.cluster, report.zookeeper)
    cluster = f" of {where}" if where else ""
    yield (
        f"Space{cluster}: {count_of(report.ledgers, 'ledger')} in BookKeeper, {count_of(report.topics, 'topic')}; "
        f"read in {age_text(report.seconds)}, no topic was loaded"
    )
    if scope := scope_text(shown.filters):
        yield f"Only {scope}; but the number of ledgers, and the bookies, are those of the whole cluster"


def totals(shown: Shown) -> Iterator[tuple[str, str, str]]:
    """Yield the totals from one copy to the disks: name, size, and which bytes these are."""
    report, amount = shown.report, total(shown.report.shares)
    yield ("one copy", bytes_text(amount.in_bookkeeper, is_exact=amount.is_exact), "in BookKeeper")
    factor = f"; {amount.stored / amount.in_bookkeeper:.2f} times one copy" if amount.in_bookkeeper else ""
    stored = bytes_text(amount.stored, is_exact=amount.is_exact)
    yield ("stored", stored, f"all copies, with the bookies' overhead of each entry{factor}")
    if amount.tiered:
        yield ("tiered", size_text(amount.tiered), "one copy, in tiered storage and not on bookies")
    if amount.missing:
        yield ("missing", size_text(amount.missing), "one copy; lost, and not on bookies")
    if shown.price.is_known:
        yield ("a month", shown.price.text(amount), "for stored and tiered bytes")
    if shown.filters.are_empty:
        yield from _disk_lines(report)
    if read_only := [each.bookie_id for each in report.bookies if each.is_read_only]:
        shares = f"{len(read_only):,} of {len(report.bookies):,}"
        yield ("read-only", shares, f"bookies (such as {read_only[0]}) take no new entries: see the notes on bookies")


def _disk_lines(report: SpaceReport) -> Iterator[tuple[str, str, str]]:
    """Yield the bookies' own figures, and their difference from the bytes that ledgers store there."""
    disks = disks_of(report.bookies)
    if disks.live_bookies:
        asked = f"{disks.live_bookies} of {count_of(disks.bookies, 'bookie')}"
        differs = _difference(disks.live_reported - disks.live_expected)
        text = f"all copies, in finished entry logs of {asked}; {differs} ledgers store there"
        yield ("live", size_text(disks.live_reported), text)
    if disks.disk_bookies:
        asked = f"{disks.disk_bookies} of {count_of(disks.bookies, 'bookie')}"
        shared = f" ({disks.shared} not counted: same host and size)" if disks.shared else ""
        differs = _difference(disks.disk_used - disks.disk_expected)
        yield (
            "disks",
            size_text(disks.disk_used),
            f"used in the file systems of {asked}{shared}; {differs} ledgers store there: deleted and dead bytes, "
            "journals, indexes, files of others",
        )
    if not disks.live_bookies and not disks.disk_bookies:
        yield ("disks", "not known", f"none of {count_of(disks.bookies, 'bookie')} reported its disks")


def _difference(size_bytes: int) -> str:
    return f"{size_text(abs(size_bytes))} {'less' if size_bytes < 0 else 'more'} than"


def scope_text(filters: Filters) -> str:
    """Return the filters as text; "" selects everything."""
    chosen = {"tenant": filters.tenant, "namespace": filters.namespace, "topic": filters.topic}
    return ", ".join(f"{name} {value}" for name, value in chosen.items() if value)


def _show_table(console: Terminal, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose last column is as long as it has to be, so that names in it can be pasted."""
    widths = [max(len(row[number]) for row in (heads, *rows)) for number in range(len(heads) - 1)]

    def line(row: Sequence[str]) -> Text:
        numbers = "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=False))
        return cell(f"{numbers}  {row[-1]}")

    console.print()
    console.print(Text(title, "bold"), soft_wrap=True)
    console.print(line(heads), style="dim", soft_wrap=True)
    for row in rows:
        console.print(line(row), soft_wrap=True)


def _show_rows(console: Terminal, shown: Shown) -> None:
    """Print rows that add up to the total; the rows after the first `top` are one row."""
    rows = rows_by(shown.by, shown.report.shares)
    whole = total(shown.report.shares)
    cut = rows[: shown.top or (None if shown.by is View.CAUSE else _ROWS)]
    lines = [(*_amounts(row.amount, whole, shown.price), _name(shown.by, row)) for row in cut]
    if len(rows) > len(cut):
        rest = added(row.amount for row in rows[len(cut) :])
        lines.append((*_amounts(rest, whole, shown.price), f"({len(rows) - len(cut):,} more)"))
    lines.append((*_amounts(whole, whole, shown.price), "total"))
    heads = ("one copy", "stored", "share", "ledgers", *(["a month"] if shown.price.is_known else []), str(shown.by))
    _show_table(console, f"By {shown.by}", heads, lines)
    inexact = "" if whole.is_exact else " ~ marks estimates and lower bounds."
    console.print(cell(f"{ONE_COPY}{inexact}"), style="dim")


def _amounts(amount: Amount, whole: Amount, price: Price) -> tuple[str, ...]:
    return (
        bytes_text(amount.one_copy, is_exact=amount.is_exact),
        bytes_text(amount.stored, is_exact=amount.is_exact),
        share_text(amount.stored, whole.stored),
        f"{amount.ledgers:,}",
        *([price.text(amount)] if price.is_known else []),
    )


def _name(by: View, row: Row) -> str:
    return CAUSE_TEXT[Cause(row.name)] if by is View.CAUSE else row.name or "(no topic known)"


def _show_consumers(console: Terminal, shown: Shown) -> None:
    report = shown.report
    if largest := largest_subscriptions(report.subscriptions)[:_TOP]:
        _show_subscription_table(console, "Largest subscriptions (bytes of one copy)", report, largest)
    if idle := idle_longest(report.subscriptions):
        size = bytes_text(idle.backlog, is_exact=idle.is_exact)
        active = ago_text(idle.last_active_ms, report.at_ms)
        text = f"Idle longest: {idle.topic}  {idle.name}, last active {active}, backlog {size} of one copy"
        console.print(cell(text), soft_wrap=True)
    for view in (View.TOPIC, View.NAMESPACE, View.TENANT):
        rows = [row for row in rows_by(view, report.shares) if row.name][:_TOP]
        if rows:
            lines = [
                (
                    bytes_text(row.amount.one_copy, is_exact=row.amount.is_exact),
                    bytes_text(row.amount.stored, is_exact=row.amount.is_exact),
                    CAUSE_TEXT[row.largest_cause],
                    row.name,
                )
                for row in rows
            ]
            _show_table(console, f"Largest {view}s", ("one copy", "stored", "largest cause", str(view)), lines)


def _show_subscriptions(console: Terminal, shown: Shown) -> None:
    rows = largest_subscriptions(shown.report.subscriptions)
    cut = rows[: shown.top or _ROWS]
    more = f", {len(cut)} of {len(rows):,}" if len(rows) > len(cut) else ""
    _show_subscription_table(console, f"By subscription (bytes of one copy{more})", shown.report, cut)
    note = (
        "Backlogs of a topic's subscriptions overlap, so they do not add up. frees: whole ledgers that brokers can "
        "drop once this subscription is at the end of its topic, and the others are where they are now."
    )
    console.print(cell(note), style="dim")


def _show_subscription_table(console: Terminal, title: str, report: SpaceReport, rows: Sequence[Subscription]) -> None:
    lines = [(*subscription_cells(row, report.at_ms), f"{row.topic}  {row.name}") for row in rows]
    _show_table(console, title, (*SUBSCRIPTION_HEADS, "topic and subscription"), lines)


SUBSCRIPTION_HEADS = ("backlog", "acknowledged", "frees", "last active", "connected")


def subscription_cells(row: Subscription, now_ms: int) -> tuple[str, ...]:
    """Return what is known of a subscription, under SUBSCRIPTION_HEADS."""
    return (
        bytes_text(row.backlog, is_exact=row.is_exact),
        share_text(row.acknowledged, row.backlog),
        "?" if row.frees is None else bytes_text(row.frees, is_exact=row.is_exact),
        ago_text(row.last_active_ms, now_ms),
        "broker's own" if row.is_of_broker else yes_no(row.is_connected),
    )


def _show_bookies(console: Terminal, report: SpaceReport, top: int | None) -> None:
    largest = sorted(report.bookies, key=lambda each: (-each.live, each.bookie_id))
    cut = largest[:top]
    lines = [(*bookie_cells(bookie), bookie.bookie_id) for bookie in cut]
    if rest := largest[len(cut) :]:
        live = size_text(sum(each.live for each in rest))
        lines.append((live, *[""] * (len(BOOKIE_HEADS) - 1), f"({len(rest):,} more)"))
    _show_table(console, "Bookies (all copies; ? is not reported)", (*BOOKIE_HEADS, "bookie"), lines)
    for text in bookie_notes(largest, report.at_ms):
        console.print(cell(text), soft_wrap=True)


BOOKIE_HEADS = ("live by ledgers", "live reported", "not collected", "entry logs", "disk free", "freed since start")


def bookie_cells(bookie: BookieSpace) -> tuple[str, ...]:
    """Return what is known of a bookie, under BOOKIE_HEADS."""
    free = _size(bookie.disk_free)
    if bookie.disk_free is not None and bookie.disk_total:
        free = f"{free} ({bookie.disk_free / bookie.disk_total:.0%})"
    uncollected = bookie.uncollected_ledgers
    return (
        size_text(bookie.live),
        _size(bookie.reported_live),
        "?" if uncollected is None else f"~{count_of(uncollected, 'ledger')}",
        "?" if bookie.entry_logs is None else f"{bookie.entry_logs:,}",
        free,
        _size(bookie.reclaimed),
    )


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else size_text(size_bytes)


def bookie_notes(bookies: Sequence[BookieSpace], now_ms: int) -> Iterator[str]:
    """Yield the settings of garbage collection with the bookies that have them, then each bookie's state and faults."""
    groups: dict[str, list[str]] = {}
    for bookie in bookies:
        if settings := _collection(bookie, now_ms):
            groups.setdefault(settings, []).append(bookie.bookie_id)
    for settings, names in groups.items():
        yield f"{', '.join(names)}: {settings}"
    for bookie in bookies:
        if bookie.is_read_only:
            yield (
                f"{bookie.bookie_id}: read-only: it takes no new entries, and still frees deleted ledgers. A bookie "
                "becomes read-only if its disks are fuller than diskUsageThreshold (bookkeeper.conf), or on request. "
                "Every 10 s (diskCheckInterval) it checks, and takes entries again below diskUsageLwmThreshold"
            )
        if bookie.is_registered and not (bookie.url or bookie.faults):
            yield f"{bookie.bookie_id}: it registers no HTTP server (httpServerEnabled), so only its metrics were read"
        for fault in bookie.faults or ([] if bookie.is_registered else ["not asked: ledgers name it, and it is down"]):
            yield f"{bookie.bookie_id}: {fault}"


def _collection(bookie: BookieSpace, now_ms: int) -> str:
    parts = []
    if bookie.gc_wait_seconds is not None:
        wait = age_text(bookie.gc_wait_seconds)
        parts.append(f"next garbage collection within {wait} (gcWaitTime), or within twice that after a start")
    for kind, threshold, last_ms in (
        ("minor", bookie.minor_threshold, bookie.last_minor_ms),
        ("major", bookie.major_threshold, bookie.last_major_ms),
    ):
        if threshold == 0:
            parts.append(f"no {kind} compaction")
        elif threshold is not None:
            last = f" (last {ago_text(last_ms, now_ms)})" if last_ms is not None else ""
            parts.append(f"{kind} compaction of entry logs that are less than {threshold:.0%} live{last}")
    if bookie.is_collecting:
        parts.append("collects now")
    return "; ".join(parts)


def _show_growth(console: Terminal, growth: Growth | None) -> None:
    if growth is None:
        return
    rows = [
        (size_text(then), size_text(now), signed_text(now - then), CAUSE_TEXT[cause])
        for cause, then, now in growth.rows
    ]
    title = f"Growth in {age_text(growth.seconds)} (stored bytes, all copies)"
    _show_table(console, title, ("then", "now", "growth", "cause"), rows)


def signed_text(size_bytes: int) -> str:
    """Return a growth with its sign."""
    return f"{'-' if size_bytes < 0 else '+'}{size_text(abs(size_bytes))}"


def _show_fixes(console: Terminal, found: Sequence[Fix]) -> None:
    if not found:
        return
    console.print()
    console.print(
        Text("Commands that free space, for the largest consumer of each cause (`space` runs none of them)", "bold")
    )
    for fix in found:
        console.print(cell(f"- {CAUSE_TEXT[fix.cause]}: {fix.text}.{frees_text(fix)}"), soft_wrap=True)
        for line in fix.commands:
            console.print(cell(f"    {line}"), soft_wrap=True)


def frees_text(fix: Fix) -> str:
    """Return how much a fix frees at most, as a sentence with a blank before it; "" if that is not known."""
    if fix.frees is None:
        return ""
    one_copy = f" ({size_text(fix.frees_one_copy)} of one copy)" if fix.frees_one_copy is not None else ""
    return f" Frees at most {size_text(fix.frees)} on bookies{one_copy}."


def _show_unknown(console: Terminal, report: SpaceReport) -> None:
    if not report.unknown:
        return
    console.print()
    console.print(Text(f"Not known ({len(report.unknown):,})", "bold red"))
    for each in report.unknown[:_UNKNOWN]:
        line = f"  {each.what}: {each.detail} ({bounds_text(each.at_least, each.at_most)})"
        console.print(cell(line), soft_wrap=True)
    if len(report.unknown) > _UNKNOWN:
        console.print(cell(f"  {len(report.unknown) - _UNKNOWN:,} more; --json lists all"), soft_wrap=True)
