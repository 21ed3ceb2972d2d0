"""space.html: the result of `space` as one file that loads nothing else, with a table for each chart.

The audit's report has the same sections as a chapter.
"""

from collections import defaultdict
from collections.abc import Sequence
from html import escape

from streaming.audit.cluster_label import label as cluster_text
from streaming.audit.cluster_label import program
from streaming.pages.charts import COLOURS, Point, Step, lines, waterfall
from streaming.pages.elements import document, nothing, section, sentence, stamp, table, time_text
from streaming.pages.treemap import treemap
from streaming.space.output.fixes import fixes
from streaming.space.output.space_tables import (
    BOOKIE_HEADS,
    SUBSCRIPTION_HEADS,
    Shown,
    bookie_cells,
    bookie_notes,
    frees_text,
    headline,
    signed_text,
    subscription_cells,
    totals,
)
from streaming.space.output.space_texts import CAUSE_TEXT, ONE_COPY, bounds_text, bytes_text, share_text
from streaming.terminal import age_text, plain, size_text
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import PastRun
from udfs.space.space_report import SpaceReport
from udfs.space.view import OUTSIDE, Row, View, disks_of, largest_subscriptions, rows_by, total

FILE = "space.html"
_CHAPTER = "Space: where the bytes are"
_STEPS = 12  # causes in the waterfall; the others are one step
_DISKS = 10  # times what is stored; fuller disks hold mostly other files, beside which no cause would be visible
_TOPICS = 100
_SUBSCRIPTIONS = 100
_UNKNOWN = 200
_LINES = 5  # causes over time


def page(shown: Shown, runs: Sequence[PastRun]) -> str:
    """Return the page; runs: the history, this run included, oldest first."""
    report = shown.report
    mark = stamp(is_complete=report.is_complete)
    where = escape(plain(" · ".join(filter(None, (cluster_text(report.cluster, report.zookeeper), program())))))
    head = f"<h1>Space {mark}</h1><p class='dim'>{time_text(report.at_ms)} UTC · {where}</p>{_totals(shown)}"
    return document(f"Space {time_text(report.at_ms)} UTC", f"<header>{head}</header>{_sections(shown, runs)}")


def chapter(shown: Shown, runs: Sequence[PastRun]) -> str:
    """Return the result as sections of another page; runs: as of page()."""
    mark = stamp(is_complete=shown.report.is_complete)
    head = f"<p class='dim'>{time_text(shown.report.at_ms)} UTC {mark}</p>{_totals(shown)}"
    return f"<section><h2>{_CHAPTER}</h2>{head}</section>{_sections(shown, runs)}"


def failed_chapter(why: str) -> str:
    """Return the chapter of a report if nothing could be measured; why: the error."""
    return section(_CHAPTER, nothing(f"Not known: {plain(why)}"))


def _sections(shown: Shown, runs: Sequence[PastRun]) -> str:
    report = shown.report
    return "".join(
        (
            section("From one copy to the disks, by cause", waterfall(_steps(report)) + _causes(shown)),
            section("By tenant, namespace and topic (stored bytes, all copies)", _tree(report)),
            section("Growth (stored bytes, all copies)", _growth(shown, runs)),
            section("Subscriptions (bytes of one copy)", _subscriptions(report)),
            section("Bookies (all copies)", _bookies(report)),
            section("Commands that free space, for the largest consumer of each cause", _fixes(report)),
            section("Bytes that are not known", _unknown(report)),
        )
    )


def _totals(shown: Shown) -> str:
    facts = "".join(f"<p>{_text(line)}</p>" for line in headline(shown))
    sizes = "".join(
        f"<p><span>{_text(name)}</span><b>{_text(size)}</b><span class='dim'>{_text(text)}</span></p>"
        for name, size, text in totals(shown)
    )
    return f"{facts}<div class='totals'>{sizes}</div><p class='dim'>{ONE_COPY}</p>"


def _steps(report: SpaceReport) -> list[Step]:
    """Return the waterfall: the causes of one copy, its sum, the further copies, what is stored, and the disks."""
    ledgers = [share for share in report.shares if share.cause not in OUTSIDE]
    rows = sorted(rows_by(View.CAUSE, ledgers), key=lambda row: -row.amount.one_copy)
    sizes = [(CAUSE_TEXT[Cause(row.name)], row.amount.one_copy) for row in rows[:_STEPS]]
    if rest := sum(row.amount.one_copy for row in rows[_STEPS:]):
        sizes.append(("other causes", rest))
    steps, at = [], 0
    for label, size in sizes:
        steps.append(Step(label, at, at + size, "c2"))
        at += size
    stored = total(ledgers).stored
    steps += [Step("one copy", 0, at, "use"), Step("further copies and overhead", at, stored, "c3")]
    at = stored
    steps.append(Step("stored on bookies", 0, at, "use"))
    disks = disks_of(report.bookies)
    if disks.disk_bookies and disks.disk_bookies == disks.bookies and disks.disk_used <= _DISKS * stored:
        beyond = at + disks.disk_used - disks.disk_expected
        steps += [Step("all else on their disks", at, beyond, "c5"), Step("used on disks", 0, beyond, "use")]
    return steps


def _causes(shown: Shown) -> str:
    whole = total(shown.report.shares)
    heads = ("cause", "one copy", "stored", "share", "ledgers", *(["a month"] if shown.price.is_known else []))
    rows = [
        (
            CAUSE_TEXT[Cause(row.name)],
            *_sizes(row),
            share_text(row.amount.stored, whole.stored),
            f"{row.amount.ledgers:,}",
            *([shown.price.text(row.amount)] if shown.price.is_known else []),
        )
        for row in rows_by(View.CAUSE, shown.report.shares)
    ]
    return table(heads, rows, numbers=set(range(1, len(heads))))


def _sizes(row: Row) -> tuple[str, str]:
    exact = row.amount.is_exact
    return bytes_text(row.amount.one_copy, is_exact=exact), bytes_text(row.amount.stored, is_exact=exact)


def _tree(report: SpaceReport) -> str:
    stored = defaultdict[tuple[str, str], int](int)
    for share in report.shares:
        stored[share.namespace, share.topic] += share.stored
    sizes = defaultdict[tuple[str, str, str], int](int)
    for (namespace, topic), size in stored.items():
        tenant, _, rest = namespace.partition("/")
        sizes[plain(tenant), plain(rest), plain(topic.removeprefix(f"persistent://{namespace}/"))] += size
    rows = [row for row in rows_by(View.TOPIC, report.shares) if row.name]
    shown = [(_short(row.name), CAUSE_TEXT[row.largest_cause], *_sizes(row)) for row in rows[:_TOPICS]]
    note = f"<p class='dim'>The {_TOPICS} largest of {len(rows):,} topics.</p>" if len(rows) > _TOPICS else ""
    return treemap(sizes) + table(("topic", "largest cause", "one copy", "stored"), shown, numbers={2, 3}) + note


def _growth(shown: Shown, runs: Sequence[PastRun]) -> str:
    if not shown.filters.are_empty:
        return nothing("The history contains runs without filters only.")
    peaks = {cause: max(run.causes.get(cause, (0, 0))[1] for run in runs) for run in runs for cause in run.causes}
    largest = sorted(peaks, key=lambda cause: (-peaks[cause], cause))[:_LINES]
    series = {
        "all causes": [Point(run.at_ms, run.stored) for run in runs],
        **{CAUSE_TEXT[c]: [Point(run.at_ms, run.causes.get(c, (0, 0))[1]) for run in runs] for c in largest},
    }
    classes = dict(zip(series, ("use", *COLOURS), strict=False))
    drawn = lines(series, classes, empty="The growth is shown from the second run with the same --out.")
    if shown.growth is None:
        return drawn
    rows = [
        (CAUSE_TEXT[cause], size_text(then), size_text(now), signed_text(now - then))
        for cause, then, now in shown.growth.rows
        if then != now
    ]
    if not rows:
        return drawn + nothing(f"No cause has changed in {age_text(shown.growth.seconds)}.")
    heads = ("cause", f"{age_text(shown.growth.seconds)} ago", "now", "growth")
    return drawn + table(heads, rows, numbers={1, 2, 3})


def _subscriptions(report: SpaceReport) -> str:
    rows = largest_subscriptions(report.subscriptions)[:_SUBSCRIPTIONS]
    cells = [(_short(row.topic), plain(row.name), *subscription_cells(row, report.at_ms)) for row in rows]
    return table(("topic", "subscription", *SUBSCRIPTION_HEADS), cells, numbers={2, 3, 4, 5})


def _bookies(report: SpaceReport) -> str:
    largest = sorted(report.bookies, key=lambda each: (-each.live, each.bookie_id))
    rows = [(plain(bookie.bookie_id), *bookie_cells(bookie)) for bookie in largest]
    notes = "".join(f"<li>{_text(note)}</li>" for note in bookie_notes(largest, report.at_ms))
    shown = table(("bookie", *BOOKIE_HEADS), rows, numbers=set(range(1, len(BOOKIE_HEADS) + 1)))
    return shown + (f"<ul class='dim'>{notes}</ul>" if notes else "")


def _fixes(report: SpaceReport) -> str:
    found = fixes(report)
    if not found:
        return nothing("Nothing.")
    items = "".join(
        f"<dt>{_text(CAUSE_TEXT[fix.cause])}</dt><dd>{sentence(plain(fix.text))}.{_text(frees_text(fix))}"
        f"{''.join(f'<pre>{_text(line)}</pre>' for line in fix.commands)}</dd>"
        for fix in found
    )
    return f"<p class='dim'><code>space</code> runs none of these commands.</p><dl>{items}</dl>"


def _unknown(report: SpaceReport) -> str:
    rows = [
        (plain(each.what), plain(each.detail), bounds_text(each.at_least, each.at_most))
        for each in report.unknown[:_UNKNOWN]
    ]
    more = len(report.unknown) - len(rows)
    note = f"<p class='dim'>{more:,} more; --json lists all.</p>" if more else ""
    return table(("what", "why", "bytes"), rows, numbers=set()) + note


def _text(text: str) -> str:
    return escape(plain(text))


def _short(topic: str) -> str:
    return plain(topic.removeprefix("persistent://"))
