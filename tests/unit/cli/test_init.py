"""`ledger-reaper init` without a cluster: what it asks, proposes, refuses and writes."""

import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.check import first_configuration
from streaming.cli.main import app
from streaming.config.load import load
from streaming.errors import ConfigError, UnavailableError
from udfs.requests.lanes import Lanes


def init(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["init", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def ask(*arguments: str) -> None:
    """Run the command in this process, on the terminal of the fixture."""
    app(["init", *arguments], standalone_mode=False)


def test_the_written_file_is_valid_and_explains_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    init("--untried", "--out", str(file), "--admin-url", "http://broker:8080", "--zookeeper", "zk:2181/a")
    settings = load(file)
    assert (settings.pulsar.admin_url, settings.pulsar.service_url) == ("http://broker:8080", "pulsar://broker:6650")
    assert settings.zookeeper.hosts == "zk:2181/a"
    assert settings.state.dir == str(tmp_path / "state")
    assert settings.safety.exclusive_bookkeeper is False, "nobody declared it"
    assert 'lanes = "one"' in file.read_text(), "isolated tenants need a choice before the first request"
    lines = file.read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert [lines[number] for number in keys if not lines[number - 1].startswith("#")] == []


def test_tenants_get_request_topics_of_their_own_if_that_is_chosen(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    init("--untried", "--out", str(file), "--lanes", "tenant")
    assert load(file).topics.lanes is Lanes.TENANT


def test_an_address_with_tls_proposes_tls(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    init("--untried", "--out", str(file), "--admin-url", "https://broker:8443", "--ca-file", "ca.pem")
    written = tomllib.loads(file.read_text())["pulsar"]
    assert written["service_url"] == "pulsar+ssl://broker:6651"
    assert written["tls_trust_certs_file"] == str(Path("ca.pem").absolute()), "counts from where the operator is"


@pytest.mark.parametrize(
    ("content", "options", "written"),
    [
        pytest.param("eyJh.eyJz.c2ln\n", (), {"token_file": "secret"}, id="token"),
        pytest.param("reaper:password\n", (), {"basic_file": "secret"}, id="password"),
        pytest.param(
            '{"client_id": "c", "client_secret": "s", "issuer_url": "https://issuer/realm"}',
            ("--oauth2-audience", "urn:pulsar"),
            {
                "oauth2_key_file": "secret",
                "oauth2_issuer_url": "https://issuer/realm",
                "oauth2_audience": "urn:pulsar",
            },
            id="OAuth2",
        ),
        pytest.param(
            "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n",
            (),
            {"tls_cert_file": "secret", "tls_key_file": "secret"},
            id="client certificate with its key",
        ),
    ],
)
def test_the_kind_of_credentials_is_found_in_their_file(
    tmp_path: Path, content: str, options: tuple[str, ...], written: dict[str, str]
) -> None:
    file, secret = tmp_path / "my.toml", tmp_path / "secret"
    secret.write_text(content)
    secured = ("--admin-url", "https://broker:8443", "--ca-file", "/ca.pem", "--credentials-file", str(secret))
    init("--untried", "--out", str(file), *secured, *options)
    keys = tomllib.loads(file.read_text())["pulsar"]
    others = {"admin_url", "service_url", "tls_trust_certs_file"}
    expected = {key: str(secret) if value == "secret" else value for key, value in written.items()}
    assert {key: value for key, value in keys.items() if key not in others} == expected


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("# mine\n")
    with pytest.raises(ConfigError, match="exists"):
        init("--untried", "--out", str(file))
    assert file.read_text() == "# mine\n"
    init("--untried", "--force", "--out", str(file))
    assert file.read_text() != "# mine\n"


def test_a_wrong_answer_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pulsar\.service_url"):
        init("--untried", "--out", str(tmp_path / "my.toml"), "--service-url", "http://broker:8080")
    with pytest.raises(ConfigError, match="credentials"):
        init("--untried", "--out", str(tmp_path / "my.toml"), "--admin-url", "http://me:secret@broker:8080")
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_does_not_answer_ends_a_script(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        init("--out", str(tmp_path / "my.toml"), "--admin-url", "http://127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


def test_a_question_is_repeated_after_a_failed_trial(
    terminal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(settings: object) -> str:
        if "wrong" in str(settings):
            raise UnavailableError("it does not answer")
        return "it answers"

    steps = [first_configuration.Step(step.texts, answers) for step in first_configuration.STEPS]
    monkeypatch.setattr(first_configuration, "STEPS", steps)
    monkeypatch.setattr(first_configuration, "proposals", lambda *_, **__: {})
    file = tmp_path / "my.toml"
    lines = [
        *("http://wrong:8080", "", "n"),  # the admin URL and no token; its trial fails, so it is asked again
        *("http://broker:8080", ""),
        "http://broker:8080",  # no address of this protocol: asked again, since no command would accept it
        *("pulsar://wrong:6650", "y"),  # kept although its trial failed
        *("", "zk:2181", "y"),  # no digest; the trial fails because of the kept address
        "y",  # BookKeeper is this cluster's alone
    ]
    os.write(terminal, "".join(f"{line}\n" for line in lines).encode())
    ask("--out", str(file))
    written = tomllib.loads(file.read_text())
    assert written["pulsar"] == {"admin_url": "http://broker:8080", "service_url": "pulsar://wrong:6650"}
    assert written["zookeeper"] == {"hosts": "zk:2181"}
    assert written["safety"] == {"exclusive_bookkeeper": True}
    said = capsys.readouterr().err
    assert said.count("PROBLEM  it does not answer") == 3
    assert "Admin API of the brokers" in said
