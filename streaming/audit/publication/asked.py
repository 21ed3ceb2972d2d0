"""What audits have asked the service to delete: the orphans of each publication, in asked/, written before any is sent.

A publication that was cut short goes on from these rows. An audit that repeats itself leaves out the orphans in them:
their requests may still wait, or lie among the dead letters, and the same requests would only pile up there.
"""

from collections.abc import Collection
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.audit.place import Place
from udfs import columns as c

_FOLDER = "asked"
_PUBLICATION = "publication"
_LEDGER_ID, _UUID = "asked_ledger_id", "asked_uuid"


def keep(place: Place, publication: str, orphans: DataFrame) -> None:
    """Write down which orphans a publication asks for; a second call replaces the rows. Raises UnavailableError."""
    part = f"{_FOLDER}/_{publication}"
    place.save(orphans, part)
    place.replace(_folder(publication), part)


def rows(spark: SparkSession, place: Place, publication: str) -> DataFrame:
    """Read the orphans that keep wrote."""
    return place.load(spark, _folder(publication))


def without_asked(orphans: DataFrame, place: Place, publications: Collection[str]) -> DataFrame:
    """Choose the orphans that none of the publications asked for. Raises UnavailableError."""
    asked = _asked(orphans.sparkSession, place)
    if asked is None:
        return orphans
    return orphans.join(asked.where(F.col(_PUBLICATION).isin([*publications])), _is_same(), "left_anti")


def forget(place: Place, findings: DataFrame) -> None:
    """Remove the rows of each publication of which nothing is found any more. Raises UnavailableError.

    That is safe because BookKeeper never gives an id out twice.
    """
    asked = _asked(findings.sparkSession, place)
    if asked is None:
        return
    still = {row[0] for row in asked.join(findings, _is_same(), "left_semi").select(_PUBLICATION).distinct().collect()}
    for name in place.folders(_FOLDER):
        if name.removeprefix(f"{_PUBLICATION}=") not in still:
            place.remove(f"{_FOLDER}/{name}")


def _asked(spark: SparkSession, place: Place) -> DataFrame | None:
    begin = f"{_PUBLICATION}="
    names = [name.removeprefix(begin) for name in place.folders(_FOLDER) if name.startswith(begin)]
    kept = [_named(rows(spark, place, name), name) for name in names if place.has(_folder(name))]
    return reduce(DataFrame.unionByName, kept) if kept else None


def _named(asked: DataFrame, publication: str) -> DataFrame:
    named = F.lit(publication).alias(_PUBLICATION)
    return asked.select(F.col(c.LEDGER_ID).alias(_LEDGER_ID), F.col(c.UUID).alias(_UUID), named)


def _is_same() -> Column:
    return (F.col(c.LEDGER_ID) == F.col(_LEDGER_ID)) & F.col(c.UUID).eqNullSafe(F.col(_UUID))


def _folder(publication: str) -> str:
    return f"{_FOLDER}/{_PUBLICATION}={publication}"
