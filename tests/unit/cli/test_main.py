"""Help, version, completion, and commands in the order of use."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from streaming.cli.main import ORDER_OF_USE, app
from streaming.errors import ConfigError


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def every_command() -> list[list[str]]:
    groups = get_command(app).commands  # type: ignore[attr-defined]
    return [
        path
        for name, command in groups.items()
        for path in ([name], *([name, below] for below in getattr(command, "commands", {})))
    ]


def test_commands_are_listed_in_the_order_of_use_without_unfinished_and_older_names() -> None:
    code, text = run("-h")
    assert code == 0
    listed = [line.split()[1] for line in text.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert listed == [name for name in ORDER_OF_USE if name != "cluster"]
    assert set(get_command(app).commands) == set(ORDER_OF_USE)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_both_help_options(path: list[str]) -> None:
    code, text = run(*path, "-h")
    assert code == 0
    assert re.search(r"--help\s+-h\s", text), "it offers no --help"
    assert f"Usage: ledger-reaper {' '.join(path)} " in text


@pytest.mark.parametrize("name", ["sandbox", "cluster"])
def test_the_sandbox_has_both_names(name: str) -> None:
    code, text = run(name, "-h")
    assert code == 0
    assert all(command in text for command in ("up", "down", "status"))


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version") == (0, f"ledger-reaper {version('ledger-reaper')}\n")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        pytest.param("ledger-reaper re", ["receipts", "release", "request", "resume"], id="commands"),
        pytest.param("ledger-reaper receipts --outcome DE", ["DEAD_LETTER", "DELETED"], id="outcomes"),
        pytest.param("ledger-reaper audit --component SCH", ["SCHEMA_STORAGE"], id="components"),
        pytest.param("ledger-reaper dlq list --reason NOT_J", ["NOT_JSON"], id="reasons"),
    ],
)
def test_the_shell_completes_commands_and_values(line: str, completed: list[str]) -> None:
    asked = {
        "_LEDGER_REAPER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "_TYPER_COMPLETE_ARGS": line,
    }
    done = subprocess.run(
        [sys.executable, "-m", "streaming"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | asked,
    )
    assert sorted(done.stdout.split()) == completed, done.stderr


def test_dead_letters_are_filtered_by_reason_and_closed_with_a_why() -> None:
    code, text = run("dlq", "write-off", "--reason", "NOT_JSON", "--config", "unread.toml")
    assert code == 2
    assert "--why" in text


@pytest.mark.parametrize("ledgers", [(), ("4711", "--ledger", "4712")], ids=["none", "two"])
def test_explain_takes_one_ledger(ledgers: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["explain", *ledgers, "--config", "unread.toml"])
    assert isinstance(result.exception, ConfigError)
    assert "explain 4711" in str(result.exception)


@pytest.mark.parametrize("command", ["explain", "undo", "receipts"])
@pytest.mark.parametrize("ledger", ["-5", "9223372036854775808", "x"])
def test_an_invalid_ledger_id_is_refused_before_anything_is_read(command: str, ledger: str) -> None:
    code, text = run(command, "--ledger", ledger, "--config", "unread.toml")
    assert code == 2
    assert "--ledger" in text
