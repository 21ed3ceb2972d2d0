"""Requests of audits are kept with their publication, left out by the next audit, and removed with their findings."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from streaming.audit.output import Output
from streaming.audit.publication import asked
from tests.builders import UUID
from udfs import columns as c

pytestmark = pytest.mark.spark

OTHER_UUID = UUID.replace("0", "f", 1)


def _findings(spark: SparkSession, *findings: tuple[int, str | None]) -> DataFrame:
    return spark.createDataFrame(list(findings), f"{c.LEDGER_ID} bigint, {c.UUID} string")


def _ids(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row[c.LEDGER_ID], row[c.UUID] or "") for row in rows.collect())


def test_an_audit_leaves_out_requests_of_a_finished_publication(spark: SparkSession, output: Output) -> None:
    asked.keep(output, "first", _findings(spark, (1, None), (2, UUID)))
    asked.keep(output, "cut short", _findings(spark, (3, None)))
    findings = _findings(spark, (1, None), (1, UUID), (2, None), (2, UUID), (2, OTHER_UUID), (3, None))

    new = asked.without_asked(findings, output, ["first"])

    assert _ids(new) == [(1, UUID), (2, ""), (2, OTHER_UUID), (3, "")]


def test_before_the_first_publication_everything_is_new(spark: SparkSession, output: Output) -> None:
    findings = _findings(spark, (1, None))

    assert _ids(asked.without_asked(findings, output, [])) == [(1, "")]
    asked.forget(output, findings)


def test_a_publication_is_read_in_its_last_version(spark: SparkSession, output: Output) -> None:
    asked.keep(output, "first", _findings(spark, (1, None)))
    asked.keep(output, "first", _findings(spark, (2, UUID)))

    assert _ids(asked.rows(spark, output, "first")) == [(2, UUID)]


@pytest.mark.parametrize("output", ["disk", "s3"], indirect=True)
def test_a_publication_is_removed_when_none_of_its_requests_is_found_any_more(
    spark: SparkSession, output: Output
) -> None:
    asked.keep(output, "gone", _findings(spark, (1, None), (2, UUID)))
    asked.keep(output, "half gone", _findings(spark, (3, None), (4, None)))
    findings = _findings(spark, (2, OTHER_UUID), (4, None))

    asked.forget(output, findings)

    assert output.folders("asked") == ["publication=half gone"]
    assert _ids(asked.without_asked(findings, output, ["half gone"])) == [(2, OTHER_UUID)]
