"""The search for a configuration, and the question before a change."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from streaming.cli.options import CONFIG_VARIABLE, Config, OptionalConfig
from streaming.errors import ConfigError

app = typer.Typer()


@app.command()
def needs(config: Config) -> None:
    typer.echo(str(config))


@app.command()
def takes(config: OptionalConfig = None) -> None:
    typer.echo(str(config))


class Places:
    """A system's file and an operator's file; each test creates the files that it needs."""

    def __init__(self, folder: Path) -> None:
        self.system, self.named, self.of_variable = (folder / f"{name}.toml" for name in ("system", "named", "var"))

    def chosen(self, command: str, *arguments: str, variable: str | None = None) -> str:
        result = CliRunner().invoke(app, [command, *arguments], obj=self.system, env={CONFIG_VARIABLE: variable})
        if isinstance(result.exception, ConfigError):
            raise result.exception
        return result.output.strip()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.mark.parametrize("command", ["needs", "takes"])
def test_the_option_comes_before_the_variable_and_the_variable_before_the_systems_file(
    places: Places, command: str
) -> None:
    places.system.touch()
    named, of_variable = str(places.named), str(places.of_variable)
    assert places.chosen(command, "--config", named, variable=of_variable) == named
    assert places.chosen(command, variable=of_variable) == of_variable
    assert places.chosen(command) == str(places.system)
    assert places.chosen(command, variable="") == str(places.system)


def test_without_any_configuration_the_error_lists_the_possible_files(places: Places) -> None:
    with pytest.raises(ConfigError) as refused:
        places.chosen("needs")
    for place in ("--config", CONFIG_VARIABLE, str(places.system)):
        assert place in str(refused.value)


def test_a_command_that_needs_no_configuration_works_without(places: Places) -> None:
    assert places.chosen("takes") == "None"


ASK = """
import sys
from streaming.cli.options import confirm
from streaming.errors import ReaperError
try:
    confirm("Really?", yes="--yes" in sys.argv)
except ReaperError as error:
    print(error)
    sys.exit(error.exit_code)
except KeyboardInterrupt:
    sys.exit(130)
print("did it")
"""


def ask(*arguments: str, answer: str | None) -> tuple[int, str]:
    """Run the question with an answer from a terminal, or (None) with a standard input that is no terminal."""
    ours, theirs = pty.openpty()
    try:
        if answer:
            os.write(ours, answer.encode())
        done = subprocess.run(
            [sys.executable, "-c", ASK, *arguments],
            stdin=theirs if answer is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "answer", "code", "asks"),
    [
        pytest.param([], "y\n", 0, True, id="yes"),
        pytest.param([], "n\n", 4, True, id="no"),
        pytest.param([], "\n", 4, True, id="only Enter"),
        pytest.param(["--yes"], "", 0, False, id="answered beforehand"),
        pytest.param([], "perhaps\ny\n", 0, True, id="an answer that is neither is asked for again"),
        pytest.param([], "\x04", 4, True, id="the end of input"),
        pytest.param([], None, 2, False, id="a script that did not answer beforehand"),
        pytest.param(["--yes"], None, 0, False, id="a script that did"),
    ],
)
def test_a_question_is_asked_at_a_terminal_and_a_script_must_answer_beforehand(
    arguments: list[str], answer: str | None, code: int, asks: bool
) -> None:
    ended, text = ask(*arguments, answer=answer)
    assert (ended, "Really?" in text, "did it" in text) == (code, asks, code == 0), text
