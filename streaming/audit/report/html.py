"""The audit's HTML report: one file that loads nothing else, so that it can be mailed and archived."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from streaming.audit.cluster_label import program
from streaming.audit.history import PastAudit
from streaming.audit.report.certificate_table import certificate
from streaming.audit.report.descriptions import CLASS_MEANING, CLASS_NEXT, INTRODUCTION, amount_text
from streaming.audit.report.summary import SAMPLES, FindingSample, Summary
from streaming.audit.result import AuditResult
from streaming.audit.space import WHY_ON_DISK, Space
from streaming.pages import charts
from streaming.pages.elements import document, section, stamp, table, time_text
from streaming.terminal import age_text, plain, size_text
from udfs.records import LedgerComponent, LedgerType
from udfs.verdicts.finding_classes import FindingClass

_COMPONENT_CLASSES: Mapping[str, str] = {
    str(LedgerComponent.MANAGED_LEDGER): "c1",
    str(LedgerComponent.MANAGED_CURSOR): "c2",
    str(LedgerComponent.SCHEMA_STORAGE): "c3",
    str(LedgerComponent.COMPACTED_LEDGER): "c4",
    str(LedgerComponent.DELAYED_INDEX_BUCKET): "c5",
}
_STANDING_CLASSES = {"in use, BookKeeper": "use", "in use, tiered storage": "tier", "orphans": "bad"}
_SAMPLE_HEADS = ("ledger", "what", "topic", "bytes", "reason", "detail")


@dataclass(frozen=True, slots=True)
class ReportContext:
    """The parts of the report besides the findings of the audit."""

    past: tuple[PastAudit, ...]
    space: Space
    scope: str = ""  # the filters as text; "" is everything
    further: str = ""  # sections of other audits, as HTML


def page(result: AuditResult, summary: Summary, context: ReportContext) -> str:
    """Return the whole report."""
    body = "".join(
        (
            _head(result, context.scope),
            _alarm(summary),
            _incomplete(result),
            _cards(result, summary),
            section("Orphan bytes by namespace and component", _by_namespace(summary)),
            section("Bytes by namespace: in use, and orphaned", _standing(result, summary)),
            section("Age of the orphans (since their last change): ledgers and objects, and bytes", _ages(summary)),
            section("Orphan bytes over time (a point for each audit)", _trend(context.past)),
            _space(context.space),
            section("Topics with the most orphan bytes", _topics(summary)),
            section("Findings by class and reason", _classes(summary)),
            _samples("Missing: topics refer to it, but it does not exist", summary.missing),
            _samples("Unknown: a deciding fact could not be read", summary.unknown),
            context.further,
            section("Completeness certificate", certificate(result.certificate)),
        )
    )
    return document(f"Ledger audit {result.audit_id}", body)


def _head(result: AuditResult, scope: str) -> str:
    took = (result.ended_ms - result.started_ms) / 1000
    only = f" · only {escape(scope)}" if scope else ""
    where = escape(plain(" · ".join(filter(None, (result.cluster, program())))))
    return (
        f"<header><h1>Ledger audit {stamp(is_complete=result.certificate.is_complete)}</h1>"
        f"<p class='dim'>{time_text(result.started_ms)} UTC · took {took:.0f} s · {escape(result.audit_id)}{only}</p>"
        f"<p class='dim'>{where}</p>"
        f"<p>{escape(INTRODUCTION)} The audit itself deletes nothing.</p></header>"
    )


def _alarm(summary: Summary) -> str:
    missing = summary.of(FindingClass.MISSING)
    if not missing.count:
        return ""
    return (
        f'<p class="alarm"><b>{missing.count:,} missing: data loss.</b> Topics refer to ledgers or objects of '
        f"{size_text(missing.size_bytes)} that do not exist. A table below lists them.</p>"
    )


def _incomplete(result: AuditResult) -> str:
    proof = result.certificate
    if proof.is_complete:
        return ""
    unread = len(proof.unreadable)
    what = proof.errors[0] if proof.errors else f"{unread:,} path{'s' * (unread != 1)} could not be read"
    return (
        f'<p class="note"><b>Not everything is known:</b> {escape(what)}. Findings that depend on it are UNKNOWN, and '
        "no deletion is requested for them. This report does not show what the audit could not list. The certificate "
        "at the end names what could not be read.</p>"
    )


def _cards(result: AuditResult, summary: Summary) -> str:
    orphans, unknown = summary.orphans, summary.of(FindingClass.UNKNOWN)
    waiting = [summary.of(FindingClass.OPEN), summary.of(FindingClass.TOO_YOUNG)]
    missing = summary.of(FindingClass.MISSING)
    cards = (
        ("orphans", f"{orphans.count:,}", size_text(orphans.size_bytes), "bad" if orphans.count else ""),
        ("missing", f"{missing.count:,}", size_text(missing.size_bytes), "loss" if missing.count else ""),
        ("unknown", f"{unknown.count:,}", "could not be checked", ""),
        ("open or too young", f"{sum(w.count for w in waiting):,}", "kept for now", ""),
        ("foreign", f"{summary.of(FindingClass.FOREIGN).count:,}", "never touched", ""),
        ("in use", f"{result.totals['in_use']:,}", f"of {result.totals['ledgers']:,} ledgers", ""),
    )
    shown = "".join(
        f'<div class="card {css}"><span class="name">{name}</span><span class="number">{number}</span>'
        f'<span class="dim">{note}</span></div>'
        for name, number, note, css in cards
    )
    return f'<section class="cards">{shown}</section>'


def _by_namespace(summary: Summary) -> str:
    rows: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for amount in summary.by_namespace:
        rows[amount.label or "(no topic known)"][amount.part] = amount.size_bytes
    present = {amount.part for amount in summary.by_namespace}
    shown = {part: css for part, css in _COMPONENT_CLASSES.items() if part in present}
    named = {_component(part): css for part, css in shown.items()}
    return (charts.legend(named) if shown else "") + charts.stacked_bars(rows, shown)


def _standing(result: AuditResult, summary: Summary) -> str:
    rows: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for used in result.in_use:
        where = "in use, BookKeeper" if used.ledger_type == LedgerType.LEDGER else "in use, tiered storage"
        rows[used.namespace][where] += used.size_bytes
    for amount in summary.by_namespace:
        rows[amount.label or "(no topic known)"]["orphans"] += amount.size_bytes
    note = "<p class='dim'>Bytes in use are the sizes in the topics' lists; a ledger being written has no size yet.</p>"
    return charts.legend(_STANDING_CLASSES) + charts.stacked_bars(rows, _STANDING_CLASSES) + note


def _ages(summary: Summary) -> str:
    return charts.histogram([(age.label, age.count, age.size_bytes) for age in summary.by_age], "bad")


def _trend(past: Sequence[PastAudit]) -> str:
    points = [
        charts.Point(audit.at_ms, audit.orphan_bytes, "" if audit.complete else " (incomplete)") for audit in past
    ]
    empty = "The trend starts with the second audit."
    return charts.lines({"orphans": points}, {"orphans": "bad"}, empty=empty)


def _space(space: Space) -> str:
    if not space.is_known:
        return ""
    rows = [(what, size_text(size)) for what, size in space.lines()]
    why = "".join(f"<li>{escape(reason)}</li>" for reason in space.why)
    reasons = f"<p class='dim'>{escape(WHY_ON_DISK)}</p><ul class='dim'>{why}</ul>" if why else ""
    return section(
        "Bytes deleted, and bytes freed on the bookies' disks",
        table(("what", "bytes"), rows, numbers={1}) + reasons,
    )


def _topics(summary: Summary) -> str:
    rows = [
        (
            row.topic,
            _component(row.components),
            f"{row.orphans:,}",
            size_text(row.size_bytes),
            age_text(row.oldest_seconds),
        )
        for row in summary.by_topic
    ]
    return table(("topic", "components", "orphans", "bytes", "oldest"), rows, numbers={2, 3, 4})


def _classes(summary: Summary) -> str:
    rows = [
        (
            amount.label,
            CLASS_MEANING[FindingClass(amount.label)],
            amount.part,
            f"{amount.count:,}",
            amount_text(amount.label, amount.size_bytes),
            CLASS_NEXT[FindingClass(amount.label)],
        )
        for amount in sorted(summary.by_class, key=lambda amount: list(FindingClass).index(FindingClass(amount.label)))
    ]
    return table(
        ("class", "meaning", "reason", "count", "bytes", "what to do"),
        rows,
        numbers={3, 4},
        codes={0, 2},
        sentences={5},
    )


def _samples(title: str, samples: Sequence[FindingSample]) -> str:
    if not samples:
        return ""
    rows = [
        (str(row.ledger_id), _kind(row), row.topic, size_text(row.size_bytes), row.reason, row.detail)
        for row in samples
    ]
    note = f"<p class='dim'>The {SAMPLES} largest; findings/ has all of them.</p>" if len(samples) >= SAMPLES else ""
    return section(title, table(_SAMPLE_HEADS, rows, numbers={0, 3}, codes={4}) + note)


def _kind(sample: FindingSample) -> str:
    return f"{_component(sample.component) or 'component not known'}, {sample.where}"


def _component(component: str) -> str:
    return component.lower().replace("_", " ")
