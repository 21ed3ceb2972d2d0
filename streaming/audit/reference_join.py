"""Compares the ledgers and objects that exist with those that topics refer to.

Ledgers are compared by their id alone, in one outer join on longs; objects by the UUID and ledger id in their names.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streaming.audit import audit_columns as a
from udfs import columns as c
from udfs.records import LedgerType

_REFERRED = "referred"


def ids_of(listed: DataFrame) -> DataFrame:
    """Return the ids that were listed, without the rows about paths that could not be listed."""
    return listed.where(F.col(c.LEDGER_ID).isNotNull()).select(c.LEDGER_ID)


def bookkeeper_references(references: DataFrame) -> DataFrame:
    """Select the references that keep a BookKeeper ledger alive."""
    return references.where(F.col(a.IN_BOOKKEEPER))


def pairs_of(objects: DataFrame) -> DataFrame:
    """Return a row for each offload attempt: which of its two objects exist, their bytes, and their last change."""
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
    """Select the references to tiered storage.

    Args:
        references: rows of columns.REFERENCE.
        only_store: the bucket of references that name none; "" if there is no such bucket.
    """
    named = F.when(F.col(a.STORE) == "", F.lit(only_store)).otherwise(F.col(a.STORE))
    return references.where(F.col(c.UUID).isNotNull()).withColumn(a.STORE, named)


def unreferenced_pairs(pairs: DataFrame, references: DataFrame) -> DataFrame:
    """Return the offload attempts that no reference names."""
    # whatever bucket a reference names: no UUID is ever assigned twice
    named = offload_references(references, "").select(c.UUID, c.LEDGER_ID)
    return pairs.join(named, [c.UUID, c.LEDGER_ID], "left_anti")


def unlisted_objects(references: DataFrame, pairs: DataFrame, stores: Sequence[str], only_store: str) -> DataFrame:
    """Return references to complete offloads of which an object is missing, as suspects (columns.SUSPECT).

    Only references to `stores` count, which are the buckets that could be listed.
    """
    complete = offload_references(references, only_store).where(F.col(a.IS_COMPLETE) & F.col(a.STORE).isin([*stores]))
    whole = pairs.where(F.col(a.HAS_DATA) & F.col(a.HAS_INDEX)).select(c.UUID, c.LEDGER_ID)
    return _as_missing(complete.join(whole, [c.UUID, c.LEDGER_ID], "left_anti"), LedgerType.OFFLOAD_LEDGER)


def one_sided(listed: DataFrame, references: DataFrame) -> DataFrame:
    """Return the ids that the other side does not have; IS_REFERENCE is true for those of references."""
    # only ids go through this join, sorted and merged: it spills to disk where a hash table would not fit into memory
    left = ids_of(listed)
    right = bookkeeper_references(references).select(F.col(c.LEDGER_ID).alias(_REFERRED))
    joined = left.join(right, F.col(c.LEDGER_ID) == F.col(_REFERRED), "full_outer")
    is_reference = F.col(c.LEDGER_ID).isNull()
    alone = joined.where(is_reference | F.col(_REFERRED).isNull())
    return alone.select(F.coalesce(c.LEDGER_ID, _REFERRED).alias(c.LEDGER_ID), is_reference.alias(a.IS_REFERENCE))


def unreferenced(compared: DataFrame) -> DataFrame:
    """Select from one_sided's rows the ids that were listed and that no reference names."""
    return compared.where(~F.col(a.IS_REFERENCE)).select(c.LEDGER_ID)


def unlisted(references: DataFrame, compared: DataFrame) -> DataFrame:
    """Return the references whose ledger was not listed, as suspects (columns.SUSPECT)."""
    missing = compared.where(F.col(a.IS_REFERENCE)).select(c.LEDGER_ID)
    return _as_missing(bookkeeper_references(references).join(missing, c.LEDGER_ID, "left_semi"), LedgerType.LEDGER)


def problems(rows: DataFrame) -> DataFrame:
    """Return the paths that could not be read, with the reasons."""
    return rows.where(F.col(a.PATH).isNotNull()).select(a.PATH, c.DETAIL).distinct()


def askable(suspects: DataFrame) -> DataFrame:
    """Select the suspects that have an owner to read; the others have their class already."""
    return suspects.where(F.col(a.CLASS).isNull())


def candidates(checked: DataFrame) -> DataFrame:
    """Select the suspects that were orphans, or missing, in the first check."""
    return checked.where(F.col(a.CANDIDATE))


def by_owner(suspects: DataFrame, tasks: int) -> DataFrame:
    """Sort the suspects by owner, all of an owner in the same partition."""
    # so that a task reads the owner once
    return suspects.repartition(tasks, c.REFERENCE_KEY).sortWithinPartitions(c.REFERENCE_KEY, c.LEDGER_ID)


def _as_missing(references: DataFrame, ledger_type: LedgerType) -> DataFrame:
    extra = {c.LEDGER_TYPE: F.lit(str(ledger_type)), a.IS_REFERENCE: F.lit(True)}
    return references.select(*[_suspect_column(field.name, references, extra) for field in a.SUSPECT])


def _suspect_column(name: str, rows: DataFrame, extra: dict[str, Column]) -> Column:
    if name in extra:
        return extra[name].alias(name)
    kinds = {"int64": "bigint", "bool": "boolean"}
    return (
        (F.col(name) if name in rows.columns else F.lit(None))
        .cast(kinds.get(str(a.SUSPECT.field(name).type), "string"))
        .alias(name)
    )
