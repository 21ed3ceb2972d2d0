"""Help, version, completion, and commands in the order of use."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.main import COMMANDS, Listed, app
from streaming.errors import ConfigError


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def every_command() -> list[list[str]]:
    return [
        path
        for name in COMMANDS
        for path in ([name], *([name, below] for below in getattr(Listed(name).load(), "commands", {})))
    ]


def test_commands_are_listed_in_the_order_of_use_without_the_older_name() -> None:
    code, text = run("-h")
    assert code == 0
    listed = [line.split()[1] for line in text.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert listed == [name for name in COMMANDS if name != "cluster"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_help_of_each_command(name: str) -> None:
    listed = Listed(name)
    assert (listed.name, listed.help) == (name, listed.load().help)


def test_without_docstrings_commands_are_listed_without_help() -> None:
    done = subprocess.run(
        [sys.executable, "-OO", "-m", "streaming", "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "receipts" in done.stdout) == (0, True), done.stderr


LOADED = """
import atexit, sys
from streaming.__main__ import main
atexit.register(lambda: print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr))
sys.argv = ["ledger-reaper", *sys.argv[1:]]
main()
"""
SLOW = {"boto3", "httpx", "kazoo", "numpy", "pandas", "pulsar", "pyspark", "rocksdict"}


@pytest.mark.parametrize(
    ("arguments", "not_loaded"),
    [
        pytest.param(["--help"], SLOW | {"deltalake", "pyarrow", "pydantic", "udfs"}, id="help"),
        pytest.param(["audit", "--help"], SLOW | {"deltalake", "pyarrow"}, id="help of a command"),
        pytest.param(["receipts", "--config", "{config}"], SLOW | {"google"}, id="receipts"),
    ],
)
def test_a_command_loads_no_slow_package_that_it_does_not_need(
    arguments: list[str], not_loaded: set[str], tmp_path: Path
) -> None:
    config = tmp_path / "my.toml"
    (tmp_path / "state").mkdir()
    config.write_text(f'[state]\ndir = "{tmp_path}/state"\n')
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *(each.format(config=config) for each in arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    loaded = {*done.stderr.rpartition("loaded: ")[2].split()}
    assert (done.returncode, "streaming" in loaded) == (0, True), done.stderr
    assert not_loaded & loaded == set()


WITHOUT_SPARK = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from streaming.__main__ import main
sys.argv = ["ledger-reaper", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [(("run",), 2), (("submit-args", "--master", "local"), 2), (("jars",), 2), (("receipts",), 0)],
    ids=str,
)
def test_without_pyspark_commands_that_need_it_name_the_package_to_install(
    command: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    config = tmp_path / "my.toml"
    (tmp_path / "state").mkdir()
    config.write_text(
        f'[state]\ndir = "{tmp_path}/state"\n[checkpoints]\ndir = "{tmp_path}/checkpoints"\n[metrics]\nport = 0\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *command, "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("ledger-reaper: PySpark is not installed: install ledger-reaper[spark35]" in done.stderr) is (code == 2)
    assert "Traceback" not in done.stderr


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


@pytest.mark.parametrize("time", ["0s", "31d", "soon"])
def test_a_time_between_collections_that_no_bookie_takes_is_refused(time: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--gc-wait {time}"):
        CliRunner().invoke(app, ["sandbox", "up", "--home", str(tmp_path), "--gc-wait", time], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version") == (0, f"ledger-reaper {version('ledger-reaper')}\n")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        pytest.param("ledger-reaper re", ["receipts", "release", "request", "resume"], id="commands"),
        pytest.param("ledger-reaper receipts --outcome DE", ["DEAD_LETTER", "DELETED"], id="outcomes"),
        pytest.param("ledger-reaper audit --component SCH", ["SCHEMA_STORAGE"], id="components"),
        pytest.param("ledger-reaper dlq list --reason NOT_J", ["NOT_JSON"], id="reasons"),
        pytest.param("ledger-reaper sandbox up --store ", ["both", "file", "rocksdb"], id="stores of RocketMQ"),
        pytest.param("ledger-reaper sandbox up --pulsar 3", ["3.3.6"], id="versions of Pulsar"),
        pytest.param("ledger-reaper sandbox up --rocketmq 5.3", ["5.3.3"], id="versions of RocketMQ"),
        pytest.param("ledger-reaper submit-args --deploy-mode cl", ["client", "cluster"], id="deploy modes"),
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
