"""Tables of the state directory, read without Spark: a condition finds its rows, whichever writer wrote the files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from streaming.state.delta.delta_tables import Table, opened, scan

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("outcome", pa.string()), pa.field("payload", pa.binary())])
NAMES = ("DELETED", "RETRY")


@pytest.fixture
def rewritten(tmp_path: Path) -> Table:
    """Ten rows; deltalake has deleted one and rewritten the file of the others."""
    rows = [{"n": n, "outcome": NAMES[n % 2], "payload": b"x"} for n in range(10)]
    write_deltalake(tmp_path / "receipts", pa.Table.from_pylist(rows, schema=SCHEMA))
    DeltaTable(tmp_path / "receipts").delete("n = 3")
    table = opened(str(tmp_path), "receipts")
    assert table is not None
    assert pa.types.is_string_view(pq.read_schema(table.file_uris()[0]).field("outcome").type)
    return table


@pytest.mark.parametrize("columns", [["n"], ["payload", "n"], None], ids=["one", "two", "all"])
def test_a_condition_on_text_finds_its_rows_in_a_file_that_deltalake_has_rewritten(
    rewritten: Table, columns: list[str] | None
) -> None:
    batches = list(scan(rewritten, (ds.field("outcome") == "RETRY") & (ds.field("n") < 9), columns))

    assert sorted(n for batch in batches for n in batch["n"].to_pylist()) == [1, 5, 7]
    assert {tuple(batch.schema.names) for batch in batches} == {tuple(columns or SCHEMA.names)}


def test_a_compacted_table_is_read_as_before(rewritten: Table, tmp_path: Path) -> None:
    rewritten.optimize.compact()
    table = opened(str(tmp_path), "receipts")
    assert table is not None

    kept = [n for batch in scan(table, ds.field("outcome").isin(["DELETED"]), ["n"]) for n in batch["n"].to_pylist()]

    assert sorted(kept) == [0, 2, 4, 6, 8]
    assert sum(batch.num_rows for batch in scan(table)) == 9
