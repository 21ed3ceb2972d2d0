from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.rollback.export import export
from streaming.rocketmq.rollback.run import rollback
from streaming.rocketmq.workspace.forget import description_of, forget, forgettable
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.convert.test_backfill import (
    KINDS,
    RENAMES,
    KilledError,
    database_of,
    dying_rename,
    expected_of,
    renames,
)
from tests.unit.rocketmq.converted import CLOCK, backfill, check, converted_store, files_below, paths
from tests.unit.rocketmq.store.test_locks import broker


def test_what_was_kept_goes_and_nothing_else(tmp_path: Path) -> None:
    converted_store(tmp_path)
    where = paths(tmp_path)
    export(where, where.own / "export-x")
    rollback(where, CLOCK)
    before = files_below(tmp_path)
    folders = forgettable(where)
    assert sorted(folder.name[:6] for folder in folders) == ["export", "kept-2"]
    forget(where, folders)
    assert forgettable(where) == []
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("killed_at", renames(range(RENAMES), KINDS))
def test_a_backfill_that_has_not_ended_is_taken_back_and_forgotten(tmp_path: Path, killed_at: int) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)
    with pytest.raises(KilledError):
        backfill(tmp_path, rename=dying_rename(killed_at))
    where = paths(tmp_path)
    assert forgettable(where) == [where.staging]
    assert "unfinished" in description_of(where, where.staging)
    forget(where, [where.staging])
    assert files_below(tmp_path) == before


def test_files_that_an_upgrade_has_left_are_forgotten_and_the_upgrade_stays(tmp_path: Path) -> None:
    """The state after a kill between the rename of CURRENT and the removal of the staging folder."""
    store = small_store(tmp_path).write()

    def rename(source: Path, target: Path) -> None:
        source.replace(target)
        if target.name == "CURRENT":
            raise KilledError

    with pytest.raises(KilledError):
        backfill(tmp_path, rename=rename)
    before, where = files_below(tmp_path), paths(tmp_path)
    assert "finished" in description_of(where, where.staging)
    forget(where, [where.staging])
    assert files_below(tmp_path) == before
    assert forgettable(where) == []
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).is_sound


def test_nothing_is_taken_out_of_a_store_beside_a_broker(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(KilledError):
        backfill(tmp_path, rename=dying_rename(5))
    before = files_below(tmp_path)
    where = paths(tmp_path)
    with broker(tmp_path), pytest.raises(SafetyError, match="a broker runs"):
        forget(where, [where.staging])
    assert files_below(tmp_path) == before


def test_description_of_not_ours_is_not_forgotten(tmp_path: Path) -> None:
    converted_store(tmp_path)
    where = paths(tmp_path)
    for folder in (where.config, where.own, where.own / "kept-none"):
        with pytest.raises(SafetyError, match="not kept by this program"):
            forget(where, [folder])


def test_where_nothing_was_kept_there_is_nothing_to_forget(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    assert forgettable(paths(tmp_path)) == []


def test_each_folder_is_described(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    where = paths(tmp_path)
    folders = [where.follow, where.staging, where.own / "kept-x", where.own / "export-x"]
    assert [description_of(where, folder).split()[-1] for folder in folders] == [
        "continue",
        "backfill",
        "files",
        "export",
    ]
