"""`ledger-reaper submit-args`: a line to paste, a list for programs, and what every host needs."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.spark import jars as artifacts


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of `make dist` that the line depends on."""
    monkeypatch.setattr(artifacts, "jars", lambda **_: [tmp_path / "a jar.jar"])
    (tmp_path / "environment.tar.gz").touch()
    return tmp_path


def run(dist: Path, *arguments: str) -> tuple[str, str]:
    config = dist / "config.toml"
    config.write_text(
        '[state]\ndir = "/shared/state"\n[pulsar]\nadmin_url = "https://pulsar"\ntoken_file = "/etc/reaper/token"\n'
    )
    result = CliRunner().invoke(app, ["submit-args", "--config", str(config), "--dist", str(dist), *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_the_line_is_for_a_shell_and_the_list_is_the_same(dist: Path) -> None:
    line, _ = run(dist, "--master", "spark://head:7077")
    listed, _ = run(dist, "--master", "spark://head:7077", "--json")
    assert line.count("\n") == 1
    assert shlex.split(line) == json.loads(listed)
    assert str(dist / "a jar.jar") in json.loads(listed)


def test_a_command_after_two_dashes_keeps_its_options(dist: Path) -> None:
    listed, _ = run(dist, "--master", "yarn", "--json", "--", "run", "--until-idle")
    assert json.loads(listed)[-4:-1] == ["run", "--until-idle", "--config"]


def test_the_files_that_every_host_needs_are_listed(dist: Path) -> None:
    _, requirements = run(dist, "--master", "spark://head:7077")
    assert "Every host must reach the same folder at state.dir, /shared/state" in requirements
    assert "this file: /etc/reaper/token" in requirements
    assert run(dist)[1] == ""  # no requirements on one machine


def test_a_script_gets_the_line_only_if_the_master_is_not_local(dist: Path) -> None:
    assert run(dist, "--unless-local") == ("", "")
    assert run(dist, "--unless-local", "--master", "yarn")[0]
