from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.rollback.export import export
from streaming.rocketmq.store.json_files import json_table
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, converted_store, files_below, paths
from tests.unit.rocketmq.store.test_locks import broker
from udfs.rocketmq.json_text import parse


@pytest.mark.parametrize(("is_lmq", "name"), [(True, "lmqConsumerOffset.json"), (False, "consumerOffset.json")])
def test_what_went_in_comes_out_under_the_name_that_this_broker_reads(tmp_path: Path, is_lmq: bool, name: str) -> None:
    small_store(tmp_path / "s", is_lmq=is_lmq).write()
    backfill(tmp_path / "s")
    before = files_below(tmp_path / "s")
    made = export(paths(tmp_path / "s"), tmp_path / "out")
    assert list(made.files) == ["topics.json", "subscriptionGroup.json", name]
    assert files_below(tmp_path / "s") == before
    for file in made.files:
        old, new = json_table(tmp_path / "s" / "config", file), json_table(tmp_path / "out", file)
        assert old is not None
        assert new is not None
        assert new[0].pop("dataVersion")["counter"] == old[0].pop("dataVersion")["counter"] + 1
        assert {**new[0], "groupTopicMap": {}} == {**old[0], "groupTopicMap": {}}


def test_the_brokers_own_folder_is_left_to_rollback(tmp_path: Path) -> None:
    converted_store(tmp_path)
    with pytest.raises(SafetyError, match="rollback"):
        export(paths(tmp_path), tmp_path / "config")


def test_files_that_are_there_are_not_replaced(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    small_store(tmp_path / "other").write()
    backfill(tmp_path / "s")
    before = files_below(tmp_path / "other")
    with pytest.raises(SafetyError, match="name another folder"):
        export(paths(tmp_path / "s"), tmp_path / "other" / "config")
    assert files_below(tmp_path / "other") == before


def test_without_databases_there_is_nothing_to_export(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(SafetyError, match="no databases"):
        export(paths(tmp_path), tmp_path / "out")


def test_beside_a_database_that_this_program_does_not_know_nothing_is_exported(tmp_path: Path) -> None:
    converted_store(tmp_path)
    (tmp_path / "config" / "rdb").mkdir()
    (tmp_path / "config" / "rdb" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(SafetyError, match="config/rdb"):
        export(paths(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_file_of_offsets_the_operator_has_to_name_the_file_that_the_broker_reads(tmp_path: Path) -> None:
    converted_store(tmp_path)
    (tmp_path / "config" / "lmqConsumerOffset.json").unlink()
    with pytest.raises(SafetyError, match="--lmq"):
        export(paths(tmp_path), tmp_path / "out")
    assert export(paths(tmp_path, lmq=True), tmp_path / "out").files["lmqConsumerOffset.json"] == 3


def test_beside_a_broker_nothing_is_exported(tmp_path: Path) -> None:
    """Its last offsets are not in the database yet."""
    converted_store(tmp_path)
    with broker(tmp_path), pytest.raises(SafetyError, match="a broker runs"):
        export(paths(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_is_written_as_this_broker_writes_its_files(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    backfill(tmp_path / "s")
    export(paths(tmp_path / "s"), tmp_path / "one")
    (tmp_path / "s" / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{\n\t\t3:1\n\t}\n}')
    export(paths(tmp_path / "s"), tmp_path / "lines")
    one, lines = ((tmp_path / name / "lmqConsumerOffset.json").read_text() for name in ("one", "lines"))
    assert '"Orders@readers":{0:' in one
    assert '"Orders@readers":{\n\t\t\t0:' in lines
    assert parse(one) == parse(lines)


def test_after_a_broker_that_was_killed_nothing_is_exported(tmp_path: Path) -> None:
    """RocksDB may lack its last offsets, for which `rollback` refuses such a store, too."""
    converted_store(tmp_path)
    (tmp_path / "abort").touch()
    with pytest.raises(SafetyError, match=r"ABORT: .*/abort exists"):
        export(paths(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()
