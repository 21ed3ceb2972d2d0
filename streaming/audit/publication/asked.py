"""The orphans of each publication, in asked/, which are written before any request is sent.

An interrupted publication resumes from these rows. Repeated audits leave out the orphans in them.
"""

from collections.abc import Collection
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.audit.output import Output
from udfs import columns as c

_FOLDER = "asked"
_PUBLICATION = "publication"
_LEDGER_ID, _UUID = "asked_ledger_id", "asked_uuid"


def keep(output: Output, publication: str, orphans: DataFrame) -> None:
    """Write the orphans of a publication; a second call replaces the rows. Raises UnavailableError."""
    unfinished = f"{_FOLDER}/_{publication}"
    output.save(orphans, unfinished)
    output.replace(_folder(publication), unfinished)


def rows(spark: SparkSession, output: Output, publication: str) -> DataFrame:
    """Read the orphans that keep wrote."""
    return output.load(spark, _folder(publication))


def without_asked(orphans: DataFrame, output: Output, publications: Collection[str]) -> DataFrame:
    """Select the orphans that no publication has requested. Raises UnavailableError."""
    asked = _asked(orphans.sparkSession, output)
    if asked is None:
        return orphans
    # their requests may still wait or be dead letters, and the same requests would only accumulate there
    return orphans.join(asked.where(F.col(_PUBLICATION).isin([*publications])), _is_same(), "left_anti")


def forget(output: Output, findings: DataFrame) -> None:
    """Remove the rows of each publication whose orphans are no longer found. Raises UnavailableError."""
    asked = _asked(findings.sparkSession, output)
    if asked is None:
        return
    still = {row[0] for row in asked.join(findings, _is_same(), "left_semi").select(_PUBLICATION).distinct().collect()}
    for name in output.folders(_FOLDER):
        # safe, because BookKeeper never assigns an id twice: the same orphan is not found again
        if name.removeprefix(f"{_PUBLICATION}=") not in still:
            output.remove(f"{_FOLDER}/{name}")


def _asked(spark: SparkSession, output: Output) -> DataFrame | None:
    prefix = f"{_PUBLICATION}="
    names = [name.removeprefix(prefix) for name in output.folders(_FOLDER) if name.startswith(prefix)]
    kept = [_named(rows(spark, output, name), name) for name in names if output.has(_folder(name))]
    return reduce(DataFrame.unionByName, kept) if kept else None


def _named(asked: DataFrame, publication: str) -> DataFrame:
    named = F.lit(publication).alias(_PUBLICATION)
    return asked.select(F.col(c.LEDGER_ID).alias(_LEDGER_ID), F.col(c.UUID).alias(_UUID), named)


def _is_same() -> Column:
    return (F.col(c.LEDGER_ID) == F.col(_LEDGER_ID)) & F.col(c.UUID).eqNullSafe(F.col(_UUID))


def _folder(publication: str) -> str:
    return f"{_FOLDER}/{_PUBLICATION}={publication}"
