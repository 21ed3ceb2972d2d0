"""Turns the results of the checks into findings: one numbered table and its totals."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streaming.audit import audit_columns as a
from streaming.audit.certificate import MAX_NAMESPACES
from streaming.audit.result import InUse
from udfs import columns as c
from udfs.records import LedgerType
from udfs.verdicts.finding_classes import NOT_FINDINGS, UNREAD, FindingClass

_MS_PER_SECOND = 1000
_NAMESPACES = 500


def findings(suspects: DataFrame, first: DataFrame, second: DataFrame) -> DataFrame:
    """Return every finding with the columns of columns.FINDING, ordered by class and owner, and numbered.

    Args:
        suspects: the suspects; those without an owner have their class already.
        first: the suspects after the first check. For its candidates, only the second check's result counts.
        second: the candidates after the second check.
    """
    final = suspects.where(F.col(a.CLASS).isNotNull()).unionByName(first.where(~F.col(a.CANDIDATE)))
    final = final.unionByName(second).where(~F.col(a.CLASS).isin([str(name) for name in NOT_FINDINGS]))
    local_name = F.element_at(F.split(a.MANAGED_LEDGER, "/persistent/"), 2)
    namespace = F.split(a.MANAGED_LEDGER, "/persistent/")[0]
    topic = F.concat(F.lit("persistent://"), namespace, F.lit("/"), F.url_decode(local_name))
    age_ms = F.col(a.SEEN_MS) - F.col(a.LAST_CHANGE_MS)
    named = final.withColumns(
        {
            a.NAMESPACE: namespace,
            c.TENANT: F.split(a.MANAGED_LEDGER, "/")[0],
            c.TOPIC_NAME: topic,
            a.AGE_SECONDS: F.floor(age_ms / _MS_PER_SECOND),
        }
    )
    ordered = named.orderBy(a.CLASS, c.REFERENCE_KEY, c.LEDGER_ID, c.UUID)
    return ordered.withColumn(a.NUMBER, F.monotonically_increasing_id()).select(*a.FINDING)


def unjudged_by_namespace(found: DataFrame) -> list[tuple[str, int, str]]:
    """Return (namespace, count, detail of one of them) for the suspects whose owners could not be read."""
    unread = found.where(is_class(FindingClass.UNKNOWN) & F.col(c.REASON).isin([str(reason) for reason in UNREAD]))
    grouped = unread.groupBy(F.coalesce(a.NAMESPACE, F.lit("")).alias(a.NAMESPACE)).agg(
        F.count(F.lit(1)).alias("n"), F.min(c.DETAIL).alias(c.DETAIL)
    )
    rows = grouped.orderBy(a.NAMESPACE).limit(MAX_NAMESPACES + 1).collect()
    return [(row[a.NAMESPACE], row["n"], row[c.DETAIL] or "") for row in rows]


def is_class(finding_class: FindingClass) -> Column:
    """Select the rows of that class."""
    return F.col(a.CLASS) == F.lit(str(finding_class))


def totals(found: DataFrame, first: DataFrame, second: DataFrame, listed: Mapping[str, int]) -> dict[str, Any]:
    """Count what was listed, what is in use, and each class of findings with its bytes."""
    classes = {name: {"count": 0, "bytes": 0} for name in FindingClass if name not in NOT_FINDINGS}
    for row in found.groupBy(a.CLASS).agg(F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")).collect():
        classes[FindingClass(row[a.CLASS])] = {"count": row["n"], "bytes": row["total"] or 0}
    checked = first.where(~F.col(a.CANDIDATE)).unionByName(second)
    is_ledger = F.col(c.LEDGER_TYPE) == str(LedgerType.LEDGER)
    used_after_all = checked.where(is_class(FindingClass.IN_USE) & is_ledger & ~F.col(a.IS_REFERENCE)).count()
    in_use = listed["ledgers"] - listed["unreferenced"] + used_after_all
    counts = {"ledgers": listed["ledgers"], "objects": listed["objects"], "in_use": in_use}
    return counts | {str(each): amount for each, amount in classes.items()}


def in_use_by_namespace(references: DataFrame) -> tuple[InUse, ...]:
    """Add up the references of the topics' lists by namespace, component and ledger type.

    Only the _NAMESPACES groups with the most bytes are returned, so a namespace may lose its small groups.
    """
    kind = F.when(F.col(a.IN_BOOKKEEPER), str(LedgerType.LEDGER)).otherwise(str(LedgerType.OFFLOAD_LEDGER))
    grouped = references.where(F.col(c.LEDGER_ID).isNotNull()).groupBy(a.NAMESPACE, c.COMPONENT, kind.alias("kind"))
    largest = grouped.agg(F.count(F.lit(1)).alias("n"), F.sum(c.BYTES).alias("total")).orderBy(F.desc("total"))
    return tuple(
        InUse(
            namespace=row[a.NAMESPACE],
            component=row[c.COMPONENT],
            ledger_type=row["kind"],
            count=row["n"],
            size_bytes=row["total"] or 0,
        )
        for row in largest.limit(_NAMESPACES).collect()
    )
