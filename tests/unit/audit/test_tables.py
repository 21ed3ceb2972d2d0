"""Values of others are no part of a query, sums are exact, nulls have one order, and no query starts after a stop."""

from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from streaming.audit.stopping import StoppedError
from streaming.audit.tables import Tables
from streaming.errors import UnavailableError

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
MOST = 2**63 - 1
NAMES = ["a'b", 'a"b', "two\nlines", "nul\x00l", "$name", "'; DROP TABLE table_0; --", "ключ", ""]


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_only_a_value(tables: Tables, name: str) -> None:
    rows = tables.of([{"id": number, "name": each} for number, each in enumerate(NAMES)], SCHEMA)

    (row,) = tables.keep(rows.where("name = $name", name=name)).fetched()

    assert row == {"id": NAMES.index(name), "name": name}
    assert next(rows.where("name = $name", name=name).each()) == row


def test_parameters_of_nested_queries_are_separate(tables: Tables) -> None:
    rows = tables.of([{"id": number} for number in range(4)], SCHEMA)
    first, second = rows.where("id = $value", value=1), rows.where("id = $value", value=2)

    assert [row["id"] for row in first.and_also(second).where("id <= $value", value=2).fetched()] == [1, 2]


def test_ids_and_sums_are_exact(tables: Tables) -> None:
    rows = tables.of([{"id": MOST}, {"id": MOST - 1}], SCHEMA)

    assert [row["id"] for row in rows.fetched()] == [MOST, MOST - 1]
    assert rows.select("SELECT sum(id) AS total FROM rows").fetched() == [{"total": 2 * MOST - 1}]


def test_nulls_come_first_upwards_and_last_downwards(tables: Tables) -> None:
    rows = tables.of([{"id": 1}, {"id": None}, {"id": 2}], SCHEMA)

    assert [row["id"] for row in rows.select("FROM rows ORDER BY id").fetched()] == [None, 1, 2]
    assert [row["id"] for row in rows.select("FROM rows ORDER BY id DESC").fetched()] == [2, 1, None]


def test_batches_are_read_once(tables: Tables) -> None:
    batches = iter([pa.RecordBatch.from_pylist([{"id": 1, "name": "x"}], schema=SCHEMA)] * 3)

    rows = tables.keep_batches(batches, SCHEMA)

    assert next(batches, None) is None
    assert (rows.count(), rows.count("name")) == (3, 3)


def test_an_error_of_the_rows_source_is_the_callers(tables: Tables) -> None:
    def fails() -> "list[pa.RecordBatch]":
        raise UnavailableError("no ZooKeeper")

    with pytest.raises(UnavailableError, match=r"^no ZooKeeper$"):
        tables.keep_batches((batch for batch in fails()), SCHEMA)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_csv('/etc/hostname')",
        "FROM '/etc/hostname'",
        "FROM read_parquet('https://127.0.0.1:1/x.parquet')",
        "FROM some_local",
    ],
)
def test_a_query_reaches_no_file_address_or_variable(tables: Tables, sql: str) -> None:
    some_local = pa.table({"id": [1]})
    assert some_local.num_rows

    with pytest.raises(UnavailableError, match="the audit's tables"):
        tables.select(sql).fetched()


def test_no_query_starts_after_a_stop(tmp_path: Path) -> None:
    stop = Event()
    tables = Tables(tmp_path, stop)
    rows = tables.of([{"id": 1}, {"id": 2}], SCHEMA)
    each = rows.each()
    next(each)
    stop.set()

    with pytest.raises(StoppedError):
        rows.count()
    with pytest.raises(StoppedError):
        next(each)
    tables.close()
