import shutil
from pathlib import Path

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.inspect.check_configuration import check_configuration
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, check, converted_store, paths
from udfs.rocketmq.compare import FindingKind


def test_json_that_a_broker_would_read_over_the_rows_is_found(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    assert check_configuration(paths(tmp_path)) == ([], [])
    store.counter += 3
    store.write_config()
    findings, _notes = check_configuration(paths(tmp_path))
    assert {each.kind for each in findings} == {FindingKind.CONFIG}
    assert len(findings) == 3


def test_offsets_that_differ_although_no_broker_has_worked_with_them_are_found(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    store.offsets["Orders@readers"][0] += 1
    store.write_config()
    findings, _notes = check_configuration(paths(tmp_path))
    assert ["Orders@readers" in each.text for each in findings] == [True]


def worked_with(root: Path, *gone: bytes, **offsets: int) -> None:
    with opened(root / "config" / "consumerOffsets", ("kvDataVersion", "forbidden")) as database:
        for name in gone:
            database.delete("default", name)
        rows_of_them = [(f"Orders@{group}".encode(), b'{"offsetTable":{"0":%d}}' % at) for group, at in offsets.items()]
        database.put_all("default", rows_of_them)
        database.flush()


def test_a_database_that_this_program_does_not_know_is_found(tmp_path: Path) -> None:
    converted_store(tmp_path)
    (tmp_path / "config" / "metadata").mkdir()
    (tmp_path / "config" / "metadata" / "CURRENT").write_text("MANIFEST-000004\n")
    (finding,) = check(tmp_path).findings
    assert finding.kind is FindingKind.CONFIG
    assert "config/metadata" in finding.text


def test_offsets_that_a_broker_has_lost_are_found(tmp_path: Path) -> None:
    converted_store(tmp_path)
    worked_with(tmp_path, b"Orders@readers", b"%LMQ%left@%LMQ%readers")
    findings, _notes = check_configuration(paths(tmp_path))
    assert [(each.kind, each.count) for each in findings] == [(FindingKind.CONFIG, 4)]
    assert "Orders@readers, queue 0" in findings[0].text


def test_offsets_below_those_of_the_file_are_found_unless_a_backfill_has_brought_them(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.offsets = {"Orders@readers": {0: 3}}
    store.write()
    backfill(tmp_path)
    worked_with(tmp_path, readers=2)
    assert check_configuration(paths(tmp_path))[0] == []  # somebody has set the group back
    shutil.rmtree(tmp_path / "ledger-reaper")
    findings, _notes = check_configuration(paths(tmp_path))
    assert ["2 instead of 3" in each.text for each in findings] == [True]


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"counter":"x"}'])
def test_a_damaged_version_is_reported(tmp_path: Path, value: bytes) -> None:
    converted_store(tmp_path)
    with opened(tmp_path / "config" / "topics", ("kvDataVersion", "forbidden")) as database:
        database.put_all("kvDataVersion", [(b"kvDataVersionKey", value)])
    with pytest.raises(SafetyError, match="config/topics"):
        check(tmp_path)
