"""Commands that act on many things at once ask the person at the terminal before they speak to any service."""

import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.cli.main import app
from streaming.errors import SafetyError


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a terminal; what is written to the file descriptor is what the person types."""
    person, ours = pty.openpty()
    with open(ours) as stdin:  # noqa: PTH123  a descriptor, no path
        monkeypatch.setattr(sys, "stdin", stdin)
        yield person
    os.close(person)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["accept", "--all"], id="every topic's list"),
        pytest.param(["undo", "--topic", "a/b/c"], id="every ledger of a topic"),
        pytest.param(["undo", "--since", "2h", "--objects"], id="every object of a time"),
        pytest.param(["dlq", "replay", "--all"], id="every dead letter, again"),
        pytest.param(["dlq", "replay", "--reason", "IN_USE"], id="dead letters that match, again"),
        pytest.param(["dlq", "write-off", "--all", "--why", "not ours"], id="every dead letter, never again"),
        pytest.param(["audit", "--publish"], id="every orphan"),
    ],
)
def test_no_for_an_answer_ends_the_command(
    arguments: list[str], terminal: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    (tmp_path / "state").mkdir()
    config.write_text('[state]\ndir = "state"\n')
    os.write(terminal, b"n\n")
    with pytest.raises(SafetyError, match="nothing was done"):
        app([*arguments, "--config", str(config)], standalone_mode=False)
    assert "[y/N]" in capsys.readouterr().err
