"""Rows of the tables `receipts` and `waiting`, as far as a reconciliation reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from streaming import schemas
from streaming.state.delta.delta_tables import table_path
from udfs import columns as c

SOURCE = "persistent://pulsar/system/d-partition-0"


def write_rows(
    state: Path,
    table: str,
    positions: list[tuple[int, int, int]],
    source: str = SOURCE,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Add a row for each position (ledger, entry, index in a batch or -1); `about` are columns that all rows have."""
    schema = schemas.WAITING if table == "waiting" else schemas.RECEIPT
    rows = [
        dict.fromkeys(schema.names)
        | {c.SOURCE: source, c.POSITION_LEDGER: ledger, c.POSITION_ENTRY: entry, c.POSITION_BATCH: index}
        | dict(about or {})
        for ledger, entry, index in positions
    ]
    write_deltalake(table_path(str(state), table), pa.Table.from_pylist(rows, schema=schema), mode="append")
