import json
import shutil
import socket
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from streaming.adapters.rocksdb.database import opened
from streaming.cli.rocketmq import app
from streaming.errors import ConfigError, SafetyError, UnavailableError
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import backfill, check, files_below
from tests.unit.rocketmq.rollback.test_file_queues import with_a_row
from tests.unit.rocketmq.store.test_locks import broker

RUNNER = CliRunner()


def run(*words: object) -> str:
    result = RUNNER.invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("command", ["backfill", "rollback"])
def test_a_store_is_not_changed_without_an_answer(tmp_path: Path, command: str) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)
    with pytest.raises(ConfigError, match="--yes"):
        run(command, "--store", tmp_path)
    assert files_below(tmp_path) == before
    assert not (tmp_path / "ledger-reaper").exists()


def test_the_question_names_the_accepted_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_store(tmp_path).write()
    shutil.copytree(tmp_path / "consumequeue" / "Orders", tmp_path / "consumequeue" / "Gone")
    asked = list[str]()

    def confirm(question: str, **_how: object) -> None:
        asked.append(question)
        raise SafetyError("no")

    monkeypatch.setattr("streaming.cli.rocketmq.confirm", confirm)
    monkeypatch.setattr("streaming.cli.rocketmq.require_terminal", lambda **_how: None)
    words = ("backfill", "--store", tmp_path, "--accept-loss")
    for codes in (["unknown_topics"], ["UNINDEXED"], ["UNREAD_OFFSETS", "--accept-loss", "UNINDEXED"]):
        with pytest.raises(SafetyError, match="no"):
            run(*words, *codes)
    assert "UNKNOWN_TOPICS" in asked[0]
    assert "missing from topics.json: Gone." in asked[0]
    assert "UNINDEXED" not in asked[0]
    assert all("Gone" not in each and "UNINDEXED" in each for each in asked[1:])


@pytest.mark.parametrize("code", ["ABORT", "", "everything"])
def test_a_code_that_is_no_loss_is_not_accepted(tmp_path: Path, code: str) -> None:
    small_store(tmp_path).write()
    with pytest.raises(ConfigError, match=r"--accept-loss.*one of UNREAD_OFFSETS, UNKNOWN_TOPICS, UNINDEXED"):
        run("backfill", "--yes", "--store", tmp_path, "--accept-loss", code)


def test_nothing_is_forgotten_without_an_answer(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    backfill(tmp_path)
    run("export", "--store", tmp_path)
    with pytest.raises(ConfigError, match="--yes"):
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


def test_a_plan_next_to_a_running_broker_is_no_error_without_another_refusal(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").touch()
    with broker(tmp_path):
        assert "RUNNING" in run("plan", "--store", tmp_path)
        (tmp_path / "batchconsumequeue").mkdir()
        (tmp_path / "batchconsumequeue" / "x").write_bytes(b"x")
        with pytest.raises(SafetyError, match="BATCH_QUEUES"):
            run("plan", "--store", tmp_path)


def test_export_and_rollback_print_what_they_wrote(tmp_path: Path) -> None:
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
    assert "stay as they are in the JSON files" in run("rollback", "--store", tmp_path / "s", "--yes")


def test_rollback_names_entries_it_leaves_out_and_entries_that_only_the_files_have(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    backfill(tmp_path)
    with_a_row(tmp_path, b"%LMQ%a/\x1b[2J")
    with opened(tmp_path / "config" / "topics", ("kvDataVersion", "forbidden")) as database:
        database.delete("default", b"Orders")
    output = run("rollback", "--store", tmp_path, "--yes", "--offsets-of", "both")
    assert "topics.json: 1 entries that are missing in RocksDB, perhaps deleted there: 'Orders'" in output
    assert r"'%LMQ%a/\x1b[2J' has 1 messages in RocksDB, and gets no file queue" in output


@pytest.mark.parametrize("command", ["plan", "check"])
def test_a_report_that_can_not_be_written_is_refused_before_the_work(tmp_path: Path, command: str) -> None:
    small_store(tmp_path).write()
    for report in (tmp_path / "none" / "x.html", tmp_path):
        with pytest.raises(ConfigError, match="report"):
            run(command, "--store", tmp_path, "--report", report)


def test_a_folder_that_is_no_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no store"):
        run("plan", "--store", tmp_path)


def test_a_plan_is_printed_even_if_its_report_cannot_be_written(tmp_path: Path) -> None:
    """/dev/full takes no byte, as a full disk does."""
    small_store(tmp_path).write()
    result = RUNNER.invoke(app, ["plan", "--store", str(tmp_path), "--json", "--report", "/dev/full"])
    assert json.loads(result.stdout)["refusals"] == []
    assert isinstance(result.exception, UnavailableError)
    assert "the report could not be written" in str(result.exception)
    assert "No space left" in str(result.exception)
    (tmp_path / "abort").touch()
    result = RUNNER.invoke(app, ["plan", "--store", str(tmp_path), "--report", "/dev/full"])
    assert isinstance(result.exception, SafetyError)
    assert "ABORT; the report could not be written" in str(result.exception)


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_check_is_printed_even_if_its_report_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_sound: bool
) -> None:
    """The result took hours, and the exit code reports findings even if the page can't be written."""
    small_store(tmp_path).write()
    backfill(tmp_path)
    if not is_sound:
        with_a_row(tmp_path, b"Orders")
    made = check(tmp_path)
    assert made.is_sound == is_sound
    monkeypatch.setattr(
        "streaming.rocketmq.local_spark.local_spark", lambda: nullcontext(SimpleNamespace(sparkContext=None))
    )
    monkeypatch.setattr("streaming.rocketmq.inspect.check.Check.run", lambda *_args: made)
    result = RUNNER.invoke(app, ["check", "--store", str(tmp_path), "--json", "--report", "/dev/full"])
    assert result.stdout
    assert isinstance(result.exception, UnavailableError if is_sound else SafetyError)
    assert "the report could not be written" in str(result.exception)
    result = RUNNER.invoke(app, ["check", "--store", str(tmp_path), "--report", str(tmp_path / "page.html")])
    assert (result.exception is None) == is_sound
    assert (tmp_path / "page.html").stat().st_size


def test_a_port_that_is_in_use_is_reported(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port}: .*in use.*--metrics-port"):
            run("follow", "--store", tmp_path, "--metrics-port", port)
