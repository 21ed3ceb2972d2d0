"""Commands that act on many objects at once ask the operator at the terminal, with the count; a script needs --yes."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.clock import SystemClock
from streaming.errors import ConfigError, SafetyError
from tests.unit.reconcile.rows import write_rows
from udfs import columns as c
from udfs.units import DAY_MS

EVERY = pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["accept", "--all"], id="every topic's list"),
        pytest.param(["dlq", "replay", "--all"], id="every dead letter, again"),
        pytest.param(["dlq", "replay", "--reason", "IN_USE"], id="dead letters that match, again"),
        pytest.param(["dlq", "write-off", "--all", "--why", "not ours"], id="every dead letter, never again"),
        pytest.param(["audit", "--publish"], id="every orphan"),
        pytest.param(["audit", "--publish", "--watch", "6h"], id="every orphan, again and again"),
        pytest.param(["snapshots", "audit", "--publish"], id="every orphan among the snapshots"),
    ],
)


@EVERY
def test_a_script_without_yes_is_refused_before_any_service_is_called(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*arguments, "--config", str(config_at(tmp_path))])
    assert isinstance(result.exception, ConfigError), result.output
    assert "--yes answers the question beforehand" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["accept", "--all"], id="every topic's list"),
        pytest.param(["audit", "--publish", "--watch", "6h"], id="every orphan, again and again"),
    ],
)
def test_the_answer_no_ends_the_command(
    arguments: list[str], terminal: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.write(terminal, b"n\n")
    with pytest.raises(SafetyError, match="nothing was done"):
        app([*arguments, "--config", str(config_at(tmp_path))], standalone_mode=False)
    assert "[y/N]" in capsys.readouterr().err


def config_at(folder: Path) -> Path:
    """A configuration whose state directory exists."""
    config = folder / "config.toml"
    (folder / "state").mkdir()
    config.write_text('[state]\ndir = "state"\n')
    return config


def test_accepting_every_list_counts_those_that_shrank(
    terminal: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, now_ms = config_at(tmp_path), SystemClock().now_ms()
    for number, days in enumerate((1, 2, 9)):
        about = {c.AT_MS: now_ms - days * DAY_MS, c.OUTCOME: "RETRY", c.REASON: "SOURCE_SHRANK"}
        named = {c.TOPIC_NAME: f"persistent://a/b/c{number}"}
        write_rows(tmp_path / "state", "receipts", [(1, number, -1)], about=about | named)
    os.write(terminal, b"n\n")
    with pytest.raises(SafetyError):
        app(["accept", "--all", "--config", str(config)], standalone_mode=False)
    assert "(the lists of 2 topics in the last week, according to the receipts)?" in capsys.readouterr().err
