from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.workspace.forget import forget
from streaming.rocketmq.workspace.move import is_moved_in, set_aside_databases, set_aside_queues
from streaming.rocketmq.workspace.staging import moved_of, sealed_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.convert.test_backfill import KilledError
from tests.unit.rocketmq.converted import backfill, converted_store, paths


def killed_before_current(root: Path) -> None:
    """Have a backfill die where one rename is left."""

    def rename(source: Path, target: Path) -> None:
        if target == paths(root).rocksdb / "CURRENT":
            raise KilledError
        source.replace(target)

    with pytest.raises(KilledError):
        backfill(root, rename=rename)


def test_what_is_taken_back_counts_as_moved_in_no_more(tmp_path: Path) -> None:
    """Else `check` would take offsets that a direct switch has lost for ones that consumers have set back."""
    small_store(tmp_path).write()
    killed_before_current(tmp_path)
    where = paths(tmp_path)
    assert moved_of(where) is not None
    forget(where, [where.staging])
    assert moved_of(where) is None


def test_a_current_of_a_broker_ends_no_move_of_ours(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    killed_before_current(tmp_path)
    where = paths(tmp_path)
    (where.rocksdb / "CURRENT").write_text("MANIFEST-000001\n")
    sealed = sealed_of(where)
    assert sealed is not None
    assert not is_moved_in(where, sealed)
    with pytest.raises(SafetyError, match="--replace"):
        backfill(tmp_path)
    assert (where.rocksdb / "CURRENT").read_text() == "MANIFEST-000001\n"
    forget(where, [where.staging])
    assert (moved_of(where), where.staging.exists()) == (None, False)


def test_current_leaves_first_so_that_no_half_database_counts(tmp_path: Path) -> None:
    converted_store(tmp_path)
    where, moved = paths(tmp_path), list[str]()

    def rename(source: Path, target: Path) -> None:
        moved.append(source.name)
        source.replace(target)

    set_aside_queues(where, where.own / "kept-x", rename)
    assert moved[0] == "CURRENT"
    assert not [path for path in where.rocksdb.iterdir() if path.is_file()]
    assert (where.own / "kept-x" / "consumequeue" / "CURRENT").exists()


def test_the_queues_own_folders_stay(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    where = paths(tmp_path)
    set_aside_queues(where, where.own / "kept-x")
    assert {path.name for path in where.rocksdb.iterdir()} == {topic for topic, _queue in store.units}


def test_databases_go_and_json_stays(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    names = {path.name for path in (tmp_path / "config").iterdir()}
    backfill(tmp_path)
    where = paths(tmp_path)
    set_aside_databases(where, where.own / "kept-x")
    assert {path.name for path in where.config.iterdir()} == names


def test_where_nothing_is_nothing_is_set_aside(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    where = paths(tmp_path)
    set_aside_queues(where, where.own / "kept-x")
    set_aside_databases(where, where.own / "kept-x")
    assert not where.own.exists()
