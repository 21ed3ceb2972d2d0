from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.store.configuration import read_databases, read_json, rows_of, write_databases
from streaming.rocketmq.store.json_files import offsets_name
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import paths
from udfs.rocketmq import metadata as m


@pytest.mark.parametrize(("is_lmq", "name"), [(True, "lmqConsumerOffset.json"), (False, "consumerOffset.json")])
def test_the_offsets_come_from_the_file_that_is_there(tmp_path: Path, is_lmq: bool, name: str) -> None:
    small_store(tmp_path, is_lmq=is_lmq).write()
    assert offsets_name(paths(tmp_path)) == name
    assert read_json(paths(tmp_path)).files[m.OFFSETS] == name


def test_databases_have_the_contents_of_the_files(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    configuration = read_json(paths(tmp_path))
    write_databases(configuration, tmp_path / "made")
    assert read_databases(tmp_path / "made") == {
        name: rows_of(name, table) for name, table in configuration.tables.items()
    }


def test_databases_that_are_not_there_have_no_rows(tmp_path: Path) -> None:
    assert read_databases(tmp_path) == {name: m.ConfigRows({}, {}, {}) for name in (m.TOPICS, m.GROUPS, m.OFFSETS)}


def test_a_file_that_holds_another_table_is_named(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "config" / "topics.json").write_text("{}")
    with pytest.raises(SafetyError, match=r"topics\.json"):
        read_json(paths(tmp_path))
