import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.adapters.rocksdb.database import opened
from streaming.cli.rocketmq import app
from streaming.errors import ConfigError, SafetyError
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, files_below
from tests.unit.rocketmq.test_file_queues import with_a_row
from tests.unit.rocketmq.test_locks import broker

RUNNER = CliRunner()


def run(*words: object) -> str:
    result = RUNNER.invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", ["backfill", "rollback"])
def test_a_store_is_not_touched_without_a_word(tmp_path: Path, command: str) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match="--yes"):
        run(command, "--store", tmp_path)
    assert files_below(tmp_path) == before
    assert not (tmp_path / "ledger-reaper").exists()


def test_nothing_is_forgotten_without_a_word(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    backfill(tmp_path)
    run("export", "--store", tmp_path)
    with pytest.raises(SafetyError, match="--yes"):
        run("forget", "--store", tmp_path)
    assert list((tmp_path / "ledger-reaper").glob("export-*"))
    run("forget", "--store", tmp_path, "--yes")
    assert not list((tmp_path / "ledger-reaper").glob("export-*"))


def test_a_plan_is_printed_and_a_refusal_is_an_error(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    value = json.loads(run("plan", "--store", tmp_path / "s", "--json", "--report", tmp_path / "plan.html"))
    assert value["refusals"] == []
    assert (tmp_path / "plan.html").exists()
    (tmp_path / "s" / "abort").write_bytes(b"")
    with pytest.raises(SafetyError, match="ABORT"):
        run("plan", "--store", tmp_path / "s")


def test_a_plan_beside_a_running_broker_is_no_error_unless_something_else_speaks_against_it(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").touch()
    with broker(tmp_path):
        assert "RUNNING" in run("plan", "--store", tmp_path)
        (tmp_path / "batchconsumequeue").mkdir()
        (tmp_path / "batchconsumequeue" / "x").write_bytes(b"x")
        with pytest.raises(SafetyError, match="BATCH_QUEUES"):
            run("plan", "--store", tmp_path)


def test_export_and_rollback_say_what_they_wrote(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    backfill(tmp_path / "s")
    made = json.loads(run("export", "--store", tmp_path / "s", "--out", tmp_path / "out", "--json"))
    assert made == {
        "out": str(tmp_path / "out"),
        "files": {"topics.json": 3, "subscriptionGroup.json": 1, "lmqConsumerOffset.json": 3},
    }
    back = json.loads(run("rollback", "--store", tmp_path / "s", "--yes", "--json"))
    assert back["files"] == {}
    backfill(tmp_path / "s")
    assert "stay as the JSON files have them" in run("rollback", "--store", tmp_path / "s", "--yes")


def test_rollback_names_what_it_leaves_out_and_what_only_the_files_have(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    backfill(tmp_path)
    with_a_row(tmp_path, b"%LMQ%a/\x1b[2J")
    with opened(tmp_path / "config" / "topics", ("kvDataVersion", "forbidden")) as database:
        database.delete("default", b"Orders")
    said = run("rollback", "--store", tmp_path, "--yes", "--offsets-of", "both")
    assert "topics.json: 1 entries that RocksDB lacks, deleted there perhaps: 'Orders'" in said
    assert r"'%LMQ%a/\x1b[2J' has 1 messages in RocksDB, and gets no file queue" in said


@pytest.mark.parametrize("command", ["plan", "check"])
def test_a_report_that_nobody_could_write_is_said_before_the_work(tmp_path: Path, command: str) -> None:
    small_store(tmp_path).write()
    for report in (tmp_path / "none" / "x.html", tmp_path):
        with pytest.raises(ConfigError, match="report"):
            run(command, "--store", tmp_path, "--report", report)


def test_a_folder_that_is_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store"):
        run("plan", "--store", tmp_path)
