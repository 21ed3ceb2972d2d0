from pathlib import Path

from streaming.rocketmq.move import set_aside_databases, set_aside_queues
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, place


def test_current_leaves_first_so_that_no_half_database_is_ever_taken_for_one(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    backfill(tmp_path)
    where, moved = place(tmp_path), list[str]()

    def rename(source: Path, target: Path) -> None:
        moved.append(source.name)
        source.replace(target)

    set_aside_queues(where, where.own / "kept-x", rename)
    assert moved[0] == "CURRENT"
    assert not [path for path in where.rocksdb.iterdir() if path.is_file()]
    assert (where.own / "kept-x" / "consumequeue" / "CURRENT").exists()


def test_the_queues_own_folders_stay(tmp_path: Path) -> None:
    store = small_store(tmp_path).write()
    backfill(tmp_path)
    where = place(tmp_path)
    set_aside_queues(where, where.own / "kept-x")
    assert {path.name for path in where.rocksdb.iterdir()} == {topic for topic, _queue in store.units}


def test_databases_go_and_json_stays(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    names = {path.name for path in (tmp_path / "config").iterdir()}
    backfill(tmp_path)
    where = place(tmp_path)
    set_aside_databases(where, where.own / "kept-x")
    assert {path.name for path in where.config.iterdir()} == names


def test_where_nothing_is_nothing_is_set_aside(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    where = place(tmp_path)
    set_aside_queues(where, where.own / "kept-x")
    set_aside_databases(where, where.own / "kept-x")
    assert not where.own.exists()
