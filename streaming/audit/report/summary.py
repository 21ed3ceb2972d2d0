"""Selects findings by the operator's filters and adds them up: by class, topic, namespace and component, and age."""

from collections.abc import Sequence
from dataclasses import dataclass

from streaming.audit import audit_columns as a
from streaming.audit.audit_options import FindingFilters
from streaming.audit.findings import is_class
from streaming.audit.tables import Rows
from udfs import columns as c
from udfs.records import LedgerComponent, LedgerType
from udfs.verdicts.finding_classes import FindingClass

_TOPICS = 200
_AMOUNTS = 500
SAMPLES = 100

# each label with its upper bound in seconds; the last has none
AGES: tuple[tuple[str, int], ...] = (
    ("< 1 h", 3600),
    ("1-6 h", 6 * 3600),
    ("6-24 h", 24 * 3600),
    ("1-7 d", 7 * 86_400),
    ("7-30 d", 30 * 86_400),
    ("30-90 d", 90 * 86_400),
    ("90 d - 1 y", 365 * 86_400),
    ("> 1 y", 1 << 62),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """The orphans of one topic."""

    tenant: str
    namespace: str
    topic: str
    components: str
    orphans: int
    size_bytes: int
    oldest_seconds: int  # the age of the oldest orphan


@dataclass(frozen=True, slots=True)
class Amount:
    """The number and bytes of a group of findings; a label and a part name the group (see Summary)."""

    label: str
    part: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSample:
    """One finding as text."""

    finding_class: str
    ledger_id: int
    where: str  # "in BookKeeper" or "in tiered storage"
    component: str
    topic: str
    size_bytes: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The totals that the terminal and the report show."""

    by_class: tuple[Amount, ...]  # label: class, part: reason
    by_topic: tuple[TopicRow, ...]
    by_namespace: tuple[Amount, ...]  # orphans; label: namespace, part: component
    by_age: tuple[Amount, ...]  # orphans; label: age, part: ""
    missing: tuple[FindingSample, ...]  # the largest findings of this class
    unknown: tuple[FindingSample, ...]  # the largest findings of this class

    @property
    def orphans(self) -> Amount:
        """Add up all orphans."""
        return self.of(FindingClass.ORPHAN)

    def of(self, finding_class: FindingClass) -> Amount:
        """Add up all findings of a class."""
        rows = [amount for amount in self.by_class if amount.label == finding_class]
        return Amount(finding_class, "", sum(r.count for r in rows), sum(r.size_bytes for r in rows))


def matching(findings: Rows, filters: FindingFilters) -> Rows:
    """Select the findings that pass the filters; with max_bytes, only the oldest orphans that fit into it."""
    chosen = {
        c.TENANT: filters.tenant,
        a.NAMESPACE: filters.namespace,
        c.COMPONENT: "" if filters.component in (None, LedgerComponent.SEGMENT) else str(filters.component),
    }
    for name, value in chosen.items():
        if value:
            findings = findings.where(f"{name} = $value", value=value)
    if filters.component is LedgerComponent.SEGMENT:  # the findings are the ledgers of the segments that would go
        findings = findings.where(is_class(FindingClass.ORPHAN_SEGMENT))
    if filters.older_than_seconds:
        # the filter selects orphans to delete; it must not hide missing data, which has no age
        is_old = f"{a.AGE_SECONDS} >= $seconds OR {is_class(FindingClass.MISSING)}"
        findings = findings.where(is_old, seconds=filters.older_than_seconds)
    return _within(findings, filters.max_bytes) if filters.max_bytes else findings


def _within(findings: Rows, max_bytes: int) -> Rows:
    oldest_first = f"PARTITION BY {a.CLASS} ORDER BY {a.AGE_SECONDS} DESC, {c.LEDGER_ID}, {c.UUID}"
    running = f"SELECT *, sum({c.BYTES}) OVER ({oldest_first} ROWS UNBOUNDED PRECEDING) AS running FROM rows"
    fits = f"NOT {is_class(FindingClass.ORPHAN)} OR running <= $max_bytes"
    within = findings.select(running).where(fits, max_bytes=max_bytes)
    return within.select("SELECT * EXCLUDE (running) FROM rows")


def summarize(findings: Rows) -> Summary:
    """Add the findings up, into a few hundred rows, however many findings there are."""
    orphans = findings.where(is_class(FindingClass.ORPHAN))
    return Summary(
        by_class=_amounts(findings, a.CLASS, c.REASON),
        by_topic=_topics(orphans),
        by_namespace=_amounts(orphans, a.NAMESPACE, c.COMPONENT),
        by_age=_ages(orphans),
        missing=_samples(findings, FindingClass.MISSING),
        unknown=_samples(findings, FindingClass.UNKNOWN),
    )


def _amounts(rows: Rows, label: str, part: str) -> tuple[Amount, ...]:
    largest = rows.select(
        f"""
        SELECT {label} AS label, {part} AS part, count(*) AS n, sum({c.BYTES}) AS total FROM rows
        GROUP BY ALL ORDER BY total DESC, n DESC, label, part LIMIT {_AMOUNTS}
        """
    )
    return tuple(
        Amount(row["label"] or "", row["part"] or "", row["n"], row["total"] or 0) for row in largest.fetched()
    )


def _topics(orphans: Rows) -> tuple[TopicRow, ...]:
    largest = orphans.select(
        f"""
        SELECT {c.TENANT}, {a.NAMESPACE}, {c.TOPIC_NAME}, count(*) AS n, sum({c.BYTES}) AS total,
            max({a.AGE_SECONDS}) AS oldest,
            coalesce(string_agg(DISTINCT {c.COMPONENT}, ', ' ORDER BY {c.COMPONENT}), '') AS components
        FROM rows GROUP BY ALL ORDER BY total DESC, n DESC, {c.TOPIC_NAME} LIMIT {_TOPICS}
        """
    )
    return tuple(
        TopicRow(
            tenant=r[c.TENANT],
            namespace=r[a.NAMESPACE],
            topic=r[c.TOPIC_NAME],
            components=r["components"],
            orphans=r["n"],
            size_bytes=r["total"] or 0,
            oldest_seconds=r["oldest"] or 0,
        )
        for r in largest.fetched()
    )


def _ages(orphans: Rows) -> tuple[Amount, ...]:
    below = " ".join(f"WHEN {a.AGE_SECONDS} < {seconds} THEN '{label}'" for label, seconds in AGES[:-1])
    by_label = {amount.label: amount for amount in _amounts(orphans, f"CASE {below} ELSE '{AGES[-1][0]}' END", "''")}
    return tuple(by_label.get(label, Amount(label, "", 0, 0)) for label, _below in AGES)


def _samples(findings: Rows, finding_class: FindingClass) -> tuple[FindingSample, ...]:
    largest = f"FROM rows ORDER BY {c.BYTES} DESC, {c.LEDGER_ID} LIMIT {SAMPLES}"
    return tuple(_sample(row) for row in findings.where(is_class(finding_class)).select(largest).fetched())


def _sample(row: dict[str, object]) -> FindingSample:
    texts: Sequence[str] = [str(row[name] or "") for name in (c.COMPONENT, c.TOPIC_NAME, c.REASON, c.DETAIL)]
    component, topic, reason, detail = texts
    size = row[c.BYTES]
    return FindingSample(
        finding_class=str(row[a.CLASS]),
        ledger_id=int(str(row[c.LEDGER_ID])),
        where="in tiered storage" if row[c.LEDGER_TYPE] == LedgerType.OFFLOAD_LEDGER else "in BookKeeper",
        component=component,
        topic=topic,
        size_bytes=int(str(size)) if size is not None else 0,
        reason=reason,
        detail=detail,
    )
