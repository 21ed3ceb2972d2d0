"""Selects findings by the operator's filters and adds them up: by class, topic, namespace and component, and age."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from streaming.audit import audit_columns as a
from streaming.audit.audit_options import FindingFilters
from streaming.audit.findings import is_class
from udfs import columns as c
from udfs.records import LedgerType
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
    """The number and bytes of the findings under a label and a part of it."""

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


def matching(findings: DataFrame, filters: FindingFilters) -> DataFrame:
    """Select the findings that pass the filters; with max_bytes, only the oldest orphans that fit into it."""
    passes = F.lit(True)
    for name, value in (
        (c.TENANT, filters.tenant),
        (a.NAMESPACE, filters.namespace),
        (c.COMPONENT, str(filters.component) if filters.component else ""),
    ):
        if value:
            passes = passes & F.col(name).eqNullSafe(value)
    if filters.older_than_seconds:
        is_old = F.coalesce(F.col(a.AGE_SECONDS), F.lit(-1)) >= filters.older_than_seconds
        # MISSING has no age, and the filter selects orphans to delete
        passes = passes & (is_old | is_class(FindingClass.MISSING))
    kept = findings.where(passes)
    return _within(kept, filters.max_bytes) if filters.max_bytes else kept


def _within(findings: DataFrame, max_bytes: int) -> DataFrame:
    oldest_first = Window.partitionBy(a.CLASS).orderBy(F.desc(a.AGE_SECONDS), c.LEDGER_ID, c.UUID)
    running = F.sum(c.BYTES).over(oldest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    fits = ~is_class(FindingClass.ORPHAN) | (F.col("running") <= max_bytes)
    return findings.withColumn("running", running).where(fits).drop("running")


def summarize(findings: DataFrame) -> Summary:
    """Add the findings up. The driver gets a few hundred rows, however many findings there are."""
    orphans = findings.where(is_class(FindingClass.ORPHAN))
    return Summary(
        by_class=_amounts(findings, F.col(a.CLASS), F.col(c.REASON)),
        by_topic=_topics(orphans),
        by_namespace=_amounts(orphans, F.col(a.NAMESPACE), F.col(c.COMPONENT)),
        by_age=_ages(orphans),
        missing=_samples(findings, FindingClass.MISSING),
        unknown=_samples(findings, FindingClass.UNKNOWN),
    )


def _amounts(rows: DataFrame, label: Column, part: Column) -> tuple[Amount, ...]:
    grouped = rows.groupBy(label.alias("label"), part.alias("part")).agg(
        F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")
    )
    largest = grouped.orderBy(F.desc("total"), F.desc("n"), "label", "part").limit(_AMOUNTS).collect()
    return tuple(Amount(row["label"] or "", row["part"] or "", row["n"], row["total"] or 0) for row in largest)


def _topics(orphans: DataFrame) -> tuple[TopicRow, ...]:
    grouped = orphans.groupBy(c.TENANT, a.NAMESPACE, c.TOPIC_NAME).agg(
        F.count(F.lit(1)).alias("n"),
        F.sum(c.BYTES).alias("total"),
        F.max(a.AGE_SECONDS).alias("oldest"),
        F.array_join(F.array_sort(F.collect_set(c.COMPONENT)), ", ").alias("components"),
    )
    rows = grouped.orderBy(F.desc("total"), F.desc("n"), c.TOPIC_NAME).limit(_TOPICS).collect()
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
        for r in rows
    )


def _ages(orphans: DataFrame) -> tuple[Amount, ...]:
    bucket = F.lit(AGES[-1][0])
    for label, below in reversed(AGES[:-1]):
        bucket = F.when(F.col(a.AGE_SECONDS) < below, label).otherwise(bucket)
    by_label = {amount.label: amount for amount in _amounts(orphans, bucket, F.lit(""))}
    return tuple(by_label.get(label, Amount(label, "", 0, 0)) for label, _below in AGES)


def _samples(findings: DataFrame, finding_class: FindingClass) -> tuple[FindingSample, ...]:
    rows = findings.where(is_class(finding_class)).orderBy(F.desc(c.BYTES), c.LEDGER_ID).limit(SAMPLES).collect()
    return tuple(_sample(row.asDict()) for row in rows)


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
