"""Small tables of the audit's rows; missing columns are null."""

from typing import Any

from streaming.audit import audit_columns as a
from streaming.audit.findings import findings
from streaming.audit.tables import Rows, Tables
from udfs import columns as c


def ids(rows: Rows) -> list[int]:
    return sorted(row[c.LEDGER_ID] for row in rows.fetched())


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


def findings_of(tables: Tables, *rows: dict[str, Any]) -> Rows:
    nothing = tables.of([], a.SUSPECT)
    return findings(nothing, nothing, tables.of(rows, a.SUSPECT))
