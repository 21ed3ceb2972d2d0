"""What is listed and what is referred to, told apart by ledger id alone: one outer join on longs."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streaming.audit import columns as a
from udfs import columns as c
from udfs.audit import NOT_FINDINGS, FindingClass
from udfs.records import LedgerType

_MS_PER_SECOND = 1000
_REFERRED = "referred"


def ids_of(listed: DataFrame) -> DataFrame:
    """Only the ids of what was listed."""
    return listed.where(F.col(c.LEDGER_ID).isNotNull()).select(c.LEDGER_ID)


def bookkeeper_references(references: DataFrame) -> DataFrame:
    """References that keep a BookKeeper ledger alive."""
    return references.where(F.col(a.IN_BOOKKEEPER))


def pairs_of(objects: DataFrame) -> DataFrame:
    """One row an offload attempt: what there is of it, how large, and when it was last written."""
    return (
        objects.where(F.col(c.UUID).isNotNull())
        .groupBy(a.STORE, c.UUID, c.LEDGER_ID)
        .agg(
            F.sum(c.BYTES).alias(c.BYTES),
            F.max(a.LAST_CHANGE_MS).alias(a.LAST_CHANGE_MS),
            F.max(~F.col(a.IS_INDEX)).alias(a.HAS_DATA),
            F.max(a.IS_INDEX).alias(a.HAS_INDEX),
        )
    )


def offload_references(references: DataFrame, only_store: str) -> DataFrame:
    """References to tiered storage; one that names no bucket means the only one there is."""
    named = F.when(F.col(a.STORE) == "", F.lit(only_store)).otherwise(F.col(a.STORE))
    return references.where(F.col(c.UUID).isNotNull()).withColumn(a.STORE, named)


def unreferenced_pairs(pairs: DataFrame, references: DataFrame) -> DataFrame:
    """Attempts that no list names, wherever it says they are: a UUID is never given out twice."""
    named = offload_references(references, "").select(c.UUID, c.LEDGER_ID)
    return pairs.join(named, [c.UUID, c.LEDGER_ID], "left_anti")


def unlisted_objects(references: DataFrame, pairs: DataFrame, stores: Sequence[str], only_store: str) -> DataFrame:
    """References to complete offloads in listed stores that lack an object, as suspects of being missing."""
    complete = offload_references(references, only_store).where(F.col(a.IS_COMPLETE) & F.col(a.STORE).isin([*stores]))
    whole = pairs.where(F.col(a.HAS_DATA) & F.col(a.HAS_INDEX)).select(c.UUID, c.LEDGER_ID)
    return _as_missing(complete.join(whole, [c.UUID, c.LEDGER_ID], "left_anti"), LedgerType.OFFLOAD_LEDGER)


def one_sided(listed: DataFrame, references: DataFrame) -> DataFrame:
    """Ids that only one side has: LEDGER_ID, IS_REFERENCE (a reference whose ledger was not listed).

    Ids alone go through this one join, sorted and merged: it spills to disk where a hash table would not fit.
    """
    left = ids_of(listed)
    right = bookkeeper_references(references).select(F.col(c.LEDGER_ID).alias(_REFERRED))
    joined = left.join(right, F.col(c.LEDGER_ID) == F.col(_REFERRED), "full_outer")
    is_reference = F.col(c.LEDGER_ID).isNull()
    alone = joined.where(is_reference | F.col(_REFERRED).isNull())
    return alone.select(F.coalesce(c.LEDGER_ID, _REFERRED).alias(c.LEDGER_ID), is_reference.alias(a.IS_REFERENCE))


def unreferenced(compared: DataFrame) -> DataFrame:
    """Of one_sided's: ids that were listed and that no reference names."""
    return compared.where(~F.col(a.IS_REFERENCE)).select(c.LEDGER_ID)


def unlisted(references: DataFrame, compared: DataFrame) -> DataFrame:
    """References whose ledger was not listed (of one_sided's), as suspects of being missing (columns.SUSPECT)."""
    missing = compared.where(F.col(a.IS_REFERENCE)).select(c.LEDGER_ID)
    return _as_missing(bookkeeper_references(references).join(missing, c.LEDGER_ID, "left_semi"), LedgerType.LEDGER)


def _as_missing(references: DataFrame, ledger_type: LedgerType) -> DataFrame:
    extra = {c.LEDGER_TYPE: F.lit(str(ledger_type)), a.IS_REFERENCE: F.lit(True)}
    return references.select(*[_suspect_column(field.name, references, extra) for field in a.SUSPECT])


def problems(rows: DataFrame) -> DataFrame:
    """Paths that could not be read, and why."""
    return rows.where(F.col(a.PATH).isNotNull()).select(a.PATH, c.DETAIL).distinct()


def askable(suspects: DataFrame) -> DataFrame:
    """Suspects whose owner can be asked."""
    return suspects.where(F.col(a.CLASS).isNull())


def candidates(looked: DataFrame) -> DataFrame:
    """What a first look calls an orphan, or missing."""
    return looked.where(F.col(a.CANDIDATE))


def by_owner(suspects: DataFrame, tasks: int) -> DataFrame:
    """One owner's suspects in one partition, next to each other."""
    return suspects.repartition(tasks, c.REFERENCE_KEY).sortWithinPartitions(c.REFERENCE_KEY, c.LEDGER_ID)


def findings(suspects: DataFrame, first: DataFrame, second: DataFrame) -> DataFrame:
    """Everything that is a finding, in the words of columns.FINDING, ordered by class and owner, and numbered."""
    final = suspects.where(F.col(a.CLASS).isNotNull()).unionByName(first.where(~F.col(a.CANDIDATE)))
    final = final.unionByName(second).where(~F.col(a.CLASS).isin([str(each) for each in NOT_FINDINGS]))
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


def is_class(finding_class: FindingClass) -> Column:
    """Rows of that class."""
    return F.col(a.CLASS) == F.lit(str(finding_class))


def _suspect_column(name: str, rows: DataFrame, extra: dict[str, Column]) -> Column:
    if name in extra:
        return extra[name].alias(name)
    kinds = {"int64": "bigint", "bool": "boolean"}
    return (
        (F.col(name) if name in rows.columns else F.lit(None))
        .cast(kinds.get(str(a.SUSPECT.field(name).type), "string"))
        .alias(name)
    )
