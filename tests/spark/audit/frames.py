"""Small frames of the audit's rows; missing columns are null."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import audit_columns as a
from streaming.audit.findings import findings
from udfs import columns as c


def rows_of(spark: SparkSession, schema: Any, rows: list[dict[str, Any]]) -> DataFrame:
    names = [field.name for field in schema]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], from_arrow_schema(schema))


def ids(rows: DataFrame) -> list[int]:
    return sorted(row[c.LEDGER_ID] for row in rows.select(c.LEDGER_ID).collect())


def finding(ledger_id: int, **changes: Any) -> dict[str, Any]:
    row = {
        a.CLASS: "ORPHAN",
        c.LEDGER_ID: ledger_id,
        c.LEDGER_TYPE: "LEDGER",
        c.COMPONENT: "MANAGED_LEDGER",
        a.MANAGED_LEDGER: "public/default/persistent/a%2Fb+c",
        c.REFERENCE_KEY: "data:public/default/persistent/a%2Fb+c",
        c.BYTES: 100,
        c.REASON: "UNREFERENCED",
        a.LAST_CHANGE_MS: 1_000,
        a.SEEN_MS: 1_000 + ledger_id * 1_000,
        a.CANDIDATE: False,
        a.IS_REFERENCE: False,
    }
    return row | changes


def findings_of(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    nothing = rows_of(spark, a.SUSPECT, [])
    return findings(nothing, nothing, rows_of(spark, a.SUSPECT, list(rows)))
