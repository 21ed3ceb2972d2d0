"""Saved rows are replaced as a whole, those of an earlier version are loaded, and incomplete rows never count."""

from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.audit.output import FINDINGS, Output
from streaming.audit.tables import Rows, Tables
from streaming.errors import ConfigError, UnavailableError

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])


def _rows(tables: Tables, *ids: int) -> Rows:
    return tables.of([{"id": number, "name": "é'\n"} for number in ids], SCHEMA)


def _ids(rows: Rows) -> list[Any]:
    return [row["id"] for row in rows.fetched()]


def _put(output: Output, name: str, *ids: int) -> None:
    content = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([{"id": number, "name": ""} for number in ids], schema=SCHEMA), content)
    output.write(name, content.getvalue().to_pybytes())


@pytest.mark.parametrize("output", ["disk", "s3"], indirect=True)
def test_saved_rows_replace_older_rows(tables: Tables, output: Output) -> None:
    assert not output.has(FINDINGS)
    output.save(FINDINGS, _rows(tables, 1, 2))
    output.save(FINDINGS, _rows(tables, 3))
    assert _ids(output.load(tables, FINDINGS)) == [3]
    output.save(FINDINGS, _rows(tables))
    assert output.has(FINDINGS)
    assert _ids(output.load(tables, FINDINGS)) == []
    output.remove(FINDINGS)
    assert not output.has(FINDINGS)


@pytest.mark.parametrize("output", ["disk", "s3"], indirect=True)
@pytest.mark.parametrize("complete", ["_SUCCESS", "whole.parquet"])
def test_rows_of_an_earlier_version_count_once_they_are_complete_and_until_the_next_audit(
    tables: Tables, output: Output, complete: str
) -> None:
    _put(output, f"{FINDINGS}/part-00000-x.snappy.parquet", 1, 2)
    _put(output, f"{FINDINGS}/part-00001-x.snappy.parquet", 3)
    assert not output.has(FINDINGS)
    with pytest.raises(ConfigError, match="has no complete rows: run the audit again"):
        output.load(tables, FINDINGS)
    if complete == "_SUCCESS":
        output.write(f"{FINDINGS}/_SUCCESS", b"")
    else:
        _put(output, f"{FINDINGS}/whole.parquet")
    assert _ids(output.load(tables, FINDINGS)) == [1, 2, 3]

    output.save(FINDINGS, _rows(tables, 9))

    assert _ids(output.load(tables, FINDINGS)) == [9]
    assert output.names(FINDINGS) == ["rows.parquet"]


def test_rows_that_fail_in_the_middle_leave_the_earlier_rows(tables: Tables, output: Output) -> None:
    output.save(FINDINGS, _rows(tables, 1))
    too_large = tables.of([{"id": 2**62}, {"id": 2**62}], SCHEMA).select(
        "SELECT (sum(id) OVER ())::BIGINT AS id FROM rows"
    )

    with pytest.raises(UnavailableError):
        output.save(FINDINGS, too_large)

    assert _ids(output.load(tables, FINDINGS)) == [1]
    assert output.names(FINDINGS) == ["rows.parquet"]


def test_an_interrupted_write_leaves_the_earlier_rows(tables: Tables, output: Output) -> None:
    output.save(FINDINGS, _rows(tables, 1))

    with (
        mock.patch.object(pq.ParquetWriter, "write_batch", side_effect=OSError("no space")),
        pytest.raises(UnavailableError),
    ):
        output.save(FINDINGS, _rows(tables, 2, 3))

    assert _ids(output.load(tables, FINDINGS)) == [1]
