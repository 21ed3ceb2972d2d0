"""Files of tasks enter a table by one commit: all or none, once, and only one of two writers continues."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.errors import FencedError, UnavailableError
from streaming.state.delta import commits
from streaming.state.delta.commits import commit, has, written
from streaming.state.delta.delta_tables import Table, scan
from tests.tasks import Tasks

SCHEMA = pa.schema(
    [("n", pa.int64()), ("m", pa.int32()), ("text", pa.string()), ("about", pa.map_(pa.string(), pa.string()))]
)
APP = "app"


def rows(*numbers: int | None) -> pa.Table:
    return pa.Table.from_pylist(
        [{"n": n, "m": n, "text": f"a{n}", "about": [("k", "v")]} for n in numbers], schema=SCHEMA
    )


def write(path: Path, *tables: pa.Table, work: commits.Work | None = None) -> Any:
    tasks: Any = Tasks(*tables)
    return written(tasks, str(path), SCHEMA, work)


def numbers(path: Path, condition: ds.Expression | None = None) -> list[int | None]:
    found = [row["n"] for batch in scan(Table(str(path)), condition) for row in batch.to_pylist()]
    return sorted(found, key=lambda n: (n is None, n))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    DeltaTable.create(str(tmp_path / "table"), SCHEMA)
    return tmp_path / "table"


def test_files_of_tasks_are_in_the_table_after_the_commit_and_not_before(path: Path) -> None:
    files = write(path, rows(1, 2), rows(3))
    assert len(files) == 2
    assert numbers(path) == []
    commit(Table(str(path)), files, SCHEMA, APP, 1)
    assert numbers(path) == [1, 2, 3]


def test_a_task_without_rows_writes_no_file(path: Path) -> None:
    assert write(path, rows(), rows()) == []
    assert not list(path.glob("*.parquet"))


def test_the_work_is_done_in_the_task_and_its_columns_may_have_any_order(path: Path) -> None:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["about", "text", "m", "n"])
            yield batch

    commit(Table(str(path)), write(path, rows(7), work=twice), SCHEMA, APP, 1)
    assert numbers(path) == [7, 7]


def test_many_batches_become_one_file_of_a_few_row_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_GROUP_ROWS", 4)
    many = pa.concat_tables([rows(n) for n in range(10)])
    files = write(path, many)
    commit(Table(str(path)), files, SCHEMA, APP, 1)
    assert numbers(path) == list(range(10))
    assert len(files) == 1
    assert next(iter(ds.dataset(path / files[0].path).get_fragments())).metadata.num_row_groups == 3


@pytest.mark.parametrize("group_rows", [pytest.param(1, id="partly written"), 50_000])
def test_work_that_fails_leaves_no_file_and_its_own_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    monkeypatch.setattr(commits, "_GROUP_ROWS", group_rows)

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise OSError("the bookie is away")

    with pytest.raises(OSError, match="the bookie is away"):
        write(path, pa.concat_tables([rows(n) for n in range(3)]), work=fails)
    assert not list(path.glob("*.parquet"))


def test_a_store_that_refuses_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "table").touch()
    with pytest.raises(UnavailableError, match="can't be written"):
        write(tmp_path / "table", rows(1))


def test_a_file_is_on_the_disk_before_its_task_reports_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink()))
    files = write(path, rows(1), rows(2))
    assert flushed == [path / file.path for file in files]
    assert [file.size for file in files] == [file.stat().st_size for file in flushed]


def test_the_second_of_two_writers_is_refused(path: Path) -> None:
    first, *others = (Table(str(path)) for _ in range(3))
    commit(first, write(path, rows(1)), SCHEMA, APP, 1)
    for version, other in enumerate(others, start=1):
        with pytest.raises(FencedError, match="at transaction 1 of another run"):
            commit(other, write(path, rows(2)), SCHEMA, APP, version)
    assert numbers(path) == [1]


def test_exactly_one_of_racing_writers_continues(path: Path) -> None:
    for version in range(1, 13):
        files = [write(path, rows(version)) for _ in range(3)]
        tables = [Table(str(path)) for _ in files]
        with ThreadPoolExecutor(len(files)) as threads:
            together = threading.Barrier(len(files))
            went_on = list(threads.map(race, [together] * 3, tables, files, [version] * 3))
        assert sorted(went_on) == [False, False, True]
    assert numbers(path) == list(range(1, 13))


def race(together: threading.Barrier, table: Table, files: Any, version: int) -> bool:
    together.wait()
    try:
        commit(table, files, SCHEMA, APP, version)
    except FencedError:
        return False
    return True


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: table.delete("n = 1"), id="old rows removed"),
        pytest.param(lambda table: table.optimize.compact(), id="files merged"),
        pytest.param(lambda table: commit(table, [], SCHEMA, "another", 5), id="another application"),
    ],
)
def test_an_unrelated_change_in_between_does_not_refuse_a_commit(path: Path, change: Callable[[Table], object]) -> None:
    for version in (1, 2):
        commit(Table(str(path)), write(path, rows(version)), SCHEMA, APP, version)
    table, files = Table(str(path)), write(path, rows(3))
    change(Table(str(path)))
    commit(table, files, SCHEMA, APP, 3)
    assert {2, 3} <= set(numbers(path))
    assert table.transaction_version(APP) == 3


class AnswerLost(Table):
    """Commits, and then fails."""

    failure: Exception

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        Table(self.location).create_write_transaction(*args, **kwargs)
        raise self.failure


def test_a_store_that_refuses_our_second_try_since_it_took_the_first_has_our_files(path: Path) -> None:
    table, files = AnswerLost(str(path)), write(path, rows(1))
    table.failure = CommitFailedError("Concurrent transaction failed")
    commit(table, files, SCHEMA, APP, 1)
    assert numbers(path) == [1]


def test_a_commit_without_files_is_recognised_when_the_store_refuses_its_second_try(path: Path) -> None:
    table = AnswerLost(str(path))
    table.failure = CommitFailedError("Concurrent transaction failed")
    commit(table, [], SCHEMA, APP, 1)
    assert table.transaction_version(APP) == 1


def test_another_runs_commit_without_files_does_not_count_as_ours(path: Path) -> None:
    class Overtaken(Table):
        def create_write_transaction(self, *_args: Any, **_kwargs: Any) -> None:
            commit(Table(self.location), [], SCHEMA, APP, 1)
            raise CommitFailedError("Concurrent transaction failed")

    with pytest.raises(FencedError, match="at transaction 1 of another run"):
        commit(Overtaken(str(path)), [], SCHEMA, APP, 1)


def test_a_lost_answer_is_unavailable_and_the_files_are_found(path: Path) -> None:
    table, files = AnswerLost(str(path)), write(path, rows(1))
    table.failure = OSError("the store is away")
    with pytest.raises(UnavailableError, match="the store is away"):
        commit(table, files, SCHEMA, APP, 1)
    assert has(Table(str(path)), files)
    assert not has(Table(str(path)), write(path, rows(1)))


def test_a_commit_that_is_refused_for_ever_ends(path: Path) -> None:
    class Refuses(Table):
        def create_write_transaction(self, *_args: Any, **_kwargs: Any) -> None:
            raise CommitFailedError("no")

    with pytest.raises(UnavailableError, match="no"):
        commit(Refuses(str(path)), write(path, rows(1)), SCHEMA, APP, 1)


VALUES = st.lists(st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=4), max_size=4)


@settings(max_examples=15, deadline=None)
@given(files=VALUES, wanted=st.integers(-5, 5))
def test_statistics_leave_out_no_row_that_meets_a_condition(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int | None]], wanted: int
) -> None:
    path = tmp_path_factory.mktemp("stats") / "table"
    DeltaTable.create(str(path), SCHEMA)
    commit(Table(str(path)), write(path, *(rows(*each) for each in files)), SCHEMA, APP, 1)
    table = pa.concat_tables([rows(), *(rows(*each) for each in files)])
    for condition in (
        ds.field("n") == wanted,
        ds.field("m") >= wanted,
        ds.field("n").is_null(),
        (ds.field("n") > wanted) & (ds.field("text") == f"a{wanted + 1}"),
    ):
        expected = sorted(table.filter(condition)["n"].to_pylist(), key=lambda n: (n is None, n))
        assert numbers(path, condition) == expected


def test_statistics_keep_files_shut(path: Path) -> None:
    files = {}
    for version in (1, 2, 3):
        (file,) = write(path, rows(version))
        commit(Table(str(path)), [file], SCHEMA, APP, version)
        files[version] = file.path
    for shut in (1, 3):
        (path / files[shut]).unlink()
    assert numbers(path, ds.field("n") == 2) == [2]
