"""What audits have asked for is remembered with the publication, left out by the next turn, and forgotten when gone."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from streaming.audit.output import Output
from streaming.audit.publication import asked
from tests.builders import UUID
from udfs import columns as c

pytestmark = pytest.mark.spark

OTHER_UUID = UUID.replace("0", "f", 1)


def _found(spark: SparkSession, *findings: tuple[int, str | None]) -> DataFrame:
    return spark.createDataFrame(list(findings), f"{c.LEDGER_ID} bigint, {c.UUID} string")


def _ids(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row[c.LEDGER_ID], row[c.UUID] or "") for row in rows.collect())


def test_a_turn_leaves_out_what_a_finished_publication_asked_for(spark: SparkSession, place: Output) -> None:
    asked.keep(place, "first", _found(spark, (1, None), (2, UUID)))
    asked.keep(place, "cut short", _found(spark, (3, None)))
    found = _found(spark, (1, None), (1, UUID), (2, None), (2, UUID), (2, OTHER_UUID), (3, None))

    new = asked.without_asked(found, place, ["first"])

    assert _ids(new) == [(1, UUID), (2, ""), (2, OTHER_UUID), (3, "")]


def test_before_the_first_publication_everything_is_new(spark: SparkSession, place: Output) -> None:
    found = _found(spark, (1, None))

    assert _ids(asked.without_asked(found, place, [])) == [(1, "")]
    asked.forget(place, found)


def test_a_publication_is_read_as_it_was_kept_last(spark: SparkSession, place: Output) -> None:
    asked.keep(place, "first", _found(spark, (1, None)))
    asked.keep(place, "first", _found(spark, (2, UUID)))

    assert _ids(asked.rows(spark, place, "first")) == [(2, UUID)]


def test_a_publication_is_forgotten_once_nothing_of_it_is_found_any_more(spark: SparkSession, place: Output) -> None:
    asked.keep(place, "gone", _found(spark, (1, None), (2, UUID)))
    asked.keep(place, "half gone", _found(spark, (3, None), (4, None)))
    found = _found(spark, (2, OTHER_UUID), (4, None))

    asked.forget(place, found)

    assert place.folders("asked") == ["publication=half gone"]
    assert _ids(asked.without_asked(found, place, ["half gone"])) == [(2, OTHER_UUID)]
