"""`ledger-reaper config show` and `validate`."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.config.load import load
from streaming.config.toml_text import toml_value
from streaming.errors import ConfigError

MINE = """
[pulsar]
admin_url = "http://broker:8080"
[safety]
open_quarantine_days = 2
[tiered_storage]
allowed = [{ bucket = "offloaded", exclusive = true }]
[space]
currency = "a\\"b\\u007f\\n"
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "my.toml"
    file.write_text(MINE)
    return file


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["config", *arguments])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def sources(text: str) -> dict[str, str]:
    return dict(line.partition(" = ")[0::2] for line in text.splitlines() if " = " in line)


def test_the_shown_configuration_gives_the_same_settings(mine: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown.toml"
    shown.write_text(printed("show", "--config", str(mine)))
    assert load(shown) == load(mine)


def test_each_key_names_its_source(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_REAPER__PULSAR__ADMIN_URL", "http://other:8080")
    shown = sources(printed("show", "--config", str(mine)))
    assert shown["admin_url"] == '"http://other:8080"  # LEDGER_REAPER__PULSAR__ADMIN_URL'
    assert shown["open_quiet_period"] == f'"2d"  # {mine}', "set by its older name"
    assert shown["service_url"].endswith("# default")


def test_only_changed_keys_are_shown_on_request(mine: Path) -> None:
    assert set(sources(printed("show", "--changed", "--config", str(mine)))) == {
        "admin_url",
        "open_quiet_period",
        "allowed",
        "currency",
    }


def test_without_a_file_the_defaults_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEDGER_REAPER_CONFIG", raising=False)
    lines = [json.loads(line) for line in printed("show", "--json").splitlines()]
    assert {line["source"] for line in lines} == {"default"}
    assert {"key": "two_phase.max_retry_delete_count", "value": 10, "source": "default"} in lines


def test_passwords_in_options_of_java_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[spark]\njava_options = "-Xmx1g -Djavax.net.ssl.trustStorePassword=hunter2 -Da=b"\n')
    for form in ((), ("--json",)):
        text = printed("show", "--config", str(file), *form)
        assert "hunter2" not in text
        assert "-Xmx1g -Djavax.net.ssl.trustStorePassword=" in text
        assert "-Da=b" in text


@pytest.mark.parametrize(
    "option",
    ["-Da.password='hunter2 hunter2'", "'-Da.password=x hunter2'", "-Da.keyPass=hunter2", "-Da.password='hunter2"],
)
def test_a_password_is_left_out_as_a_whole(tmp_path: Path, option: str) -> None:
    file = tmp_path / "my.toml"
    file.write_text(f'[spark]\njava_options = "-Xmx1g {option}"\n')
    assert "hunter2" not in printed("show", "--config", str(file))


def test_a_valid_file_is_valid_although_files_that_it_names_are_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[pulsar]\ntoken_file = "/nowhere/token"\n')
    text = printed("validate", "--config", str(file))
    assert text.splitlines()[0] == f"{file}: valid"
    assert "note: pulsar.token_file: /nowhere/token can't be read" in text
    assert json.loads(printed("validate", "--json", "--config", str(file)))["valid"] is True


def test_every_fault_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[pulsar]\nadmin_urls = "http://a"\n[metrics]\nport = 70000\n')
    with pytest.raises(ConfigError, match=r"admin_urls(.|\n)*metrics\.port") as refused:
        printed("validate", "--config", str(file))
    assert refused.value.exit_code == 2
    result = CliRunner().invoke(app, ["config", "validate", "--json", "--config", str(file)])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["valid"], len(answer["faults"])) == (2, False, 2)


def test_files_of_windows_editors_are_read(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_bytes(b'\xef\xbb\xbf[pulsar]\r\nadmin_url = "http://broker:8080"\r\n')
    assert printed("validate", "--config", str(file)).startswith(f"{file}: valid")


@pytest.mark.parametrize("value", ["", 'a"b\\', "\x7f\n", 1, 0.5, True, [], [{"a": "b", "c": False}], {}])
def test_a_value_is_read_back_as_it_was_written(value: object) -> None:
    assert tomllib.loads(f"key = {toml_value(value)}") == {"key": value}
