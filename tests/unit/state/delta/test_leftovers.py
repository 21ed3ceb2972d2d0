"""Unused files are removed and files that may be needed stay, however long the remover was suspended."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from streaming.state.delta.commits import commit, written, written_here
from streaming.state.delta.delta_tables import Table, scan, tidy
from streaming.state.delta.leftovers import file_name, remove_leftovers
from tests.tasks import Tasks

SCHEMA = pa.schema([("n", pa.int64())])
APP = "app"
MONTH_S = 30 * 86_400


@pytest.fixture
def path(tmp_path: Path) -> Path:
    DeltaTable.create(str(tmp_path / "table"), SCHEMA)
    return tmp_path / "table"


def rows(number: int) -> pa.Table:
    return pa.table({"n": [number]}, SCHEMA)


def write(path: Path, version: int) -> list[AddAction]:
    tasks: Any = Tasks(rows(version))
    return written(tasks, str(path), SCHEMA, version=version)


def add(path: Path, version: int) -> None:
    commit(Table(str(path)), write(path, version), SCHEMA, APP, version)


def numbers(path: Path) -> list[int]:
    return sorted(n for batch in scan(Table(str(path))) for n in batch.column(0).to_pylist())


def age(path: Path) -> None:
    """Set the times of all files to a month ago."""
    for each in path.glob("*.parquet"):
        written_s = each.stat().st_mtime - MONTH_S
        os.utime(each, (written_s, written_s))


def remove(path: Path, table: Table | None = None, keep_hours: int = 0) -> None:
    remove_leftovers(table or Table(str(path)), str(path), APP, keep_hours=keep_hours)


@pytest.mark.parametrize("is_tidied", [False, True])
def test_a_writer_that_was_suspended_for_a_month_removes_nothing_of_newer_commits(
    path: Path, *, is_tidied: bool
) -> None:
    add(path, 1)
    suspended = Table(str(path))
    add(path, 2)
    being_written = write(path, 3)
    age(path)
    if is_tidied:
        tidy(suspended, APP, keep_hours=0)
    else:
        remove(path, suspended)
    assert numbers(path) == [1, 2]
    commit(Table(str(path)), being_written, SCHEMA, APP, 3)
    assert numbers(path) == [1, 2, 3]


def test_a_file_without_a_commit_is_removed_once_no_run_can_commit_it(path: Path) -> None:
    add(path, 1)
    (lost,) = (path / file.path for file in write(path, 2))
    (also_lost,) = (path / file.path for file in written_here(rows(2).to_batches(), str(path), SCHEMA, version=2))
    age(path)
    remove(path)
    assert lost.exists()
    assert also_lost.exists()
    add(path, 2)
    remove(path)
    assert not lost.exists()
    assert not also_lost.exists()
    assert numbers(path) == [1, 2]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("part-00000-cbeb4e7b-6406-43c6-99b6-e6ebb8f883b8-c000.zstd.parquet", id="deltalake's"),
        pytest.param(file_name(None), id="of no transaction, or of an older version of ours"),
        pytest.param(file_name(1) + ".crc", id="something else"),
    ],
)
def test_a_file_of_unknown_origin_stays(path: Path, name: str) -> None:
    add(path, 1)
    (path / name).touch()
    age(path)
    remove(path)
    assert (path / name).exists()


def test_merged_files_are_removed_after_some_hours_and_not_before(path: Path) -> None:
    add(path, 1)
    add(path, 2)
    merged = list(path.glob("*.parquet"))
    age(path)
    tidy(Table(str(path)), APP, keep_hours=1)
    assert all(each.exists() for each in merged)
    reader = Table(str(path))
    tidy(reader, APP, keep_hours=0)
    assert not any(each.exists() for each in merged)
    assert numbers(path) == [1, 2]
    tidy(Table(str(path)), APP, keep_hours=0)  # the log still names them, and they are gone
    assert numbers(path) == [1, 2]
