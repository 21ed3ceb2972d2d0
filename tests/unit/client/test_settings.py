"""Settings that can't work are refused at once, and no secret goes to another machine unencrypted."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger_reaper_client import (
    Basic,
    ConfigurationError,
    InvalidRequestError,
    OAuth2,
    RefusedError,
    Settings,
    Tls,
    Token,
    TokenFile,
    UnavailableError,
)
from ledger_reaper_client.urls import each_url, may_carry_secret
from tests.contract.http_stub import CannedAnswer, http_stub

_WITH_CLIENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "clients" / "python" / "src")}
REFUSED = """
import pulsar
from ledger_reaper_client import Settings
client = Settings("pulsar://127.0.0.1:1", "http://127.0.0.1:1", lanes="tenant", timeout_seconds=1).open_client()
try:
    client.create_producer("persistent://a/b/c")
    raise SystemExit("it was not refused")
except pulsar.PulsarException:
    client.shutdown()
"""
GOOD: dict[str, Any] = {"service_url": "pulsar://b:6650", "admin_url": "http://b:8080", "lanes": "tenant"}
SECRET = "a-secret-token"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"service_url": "http://b:8080"}, "service_url"),
        ({"admin_url": "b:8080"}, "admin_url"),
        ({"lanes": "one"}, "lanes"),
        ({"lanes": ""}, "give either"),
        ({"topic": "persistent://t/n/x"}, "give either"),
        ({"lane_partitions": 0}, "lane_partitions"),
        ({"lane_partitions": 65}, "lane_partitions"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"lanes": "", "topic": "persistent://t/c/n/x"}, "topic is"),
        ({"credentials": Token(SECRET)}, "unencrypted to another machine"),
        ({"credentials": Basic("u", SECRET)}, "unencrypted to another machine"),
        ({"credentials": Token(SECRET), "service_url": "pulsar+ssl://b:6651"}, "unencrypted to another machine"),
    ],
)
def test_settings_that_can_not_work_are_refused(change: dict[str, Any], named: str) -> None:
    assert Settings(**GOOD)
    with pytest.raises(ConfigurationError, match=named) as raised:
        Settings(**{**GOOD, **change})
    assert SECRET not in str(raised.value)


def test_a_topic_with_an_invalid_name_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not a topic"):
        Settings(**{**GOOD, "lanes": "", "topic": "orders"})


def test_a_secret_goes_over_tls_or_to_this_machine_only() -> None:
    for url in ("https://b:8443", "pulsar+ssl://b:6651", "http://127.0.0.1:80", "pulsar://[::1]:6650"):
        assert may_carry_secret(url)
    for url in ("http://192.0.2.1:80", "pulsar://192.0.2.1:6650", "http://", "http://127.example.invalid:1"):
        assert not may_carry_secret(url)
    settings = Settings("pulsar+ssl://b:6651", "https://b:8443", lanes="tenant", credentials=Token(SECRET))
    with pytest.raises(UnavailableError, match="no secret is sent there"):
        settings.headers("http://192.0.2.1:8080/admin")


def test_a_url_may_name_several_hosts() -> None:
    assert each_url("http://a:8080,b:8080/") == ("http://a:8080", "http://b:8080")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    local = {"service_url": "pulsar://127.0.0.1:6650", "admin_url": "http://127.0.0.1:8080", "lanes": "tenant"}
    for credentials in (Token(SECRET), Basic("u", SECRET)):
        assert SECRET not in repr(Settings(**local, credentials=credentials))  # type: ignore[arg-type]
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\nmore\n")
    for bad in (TokenFile(str(file)), Token("two\nlines"), Token("")):
        with pytest.raises(ConfigurationError, match="one token, on one line") as raised:
            bad.secret()
        assert SECRET not in str(raised.value)


def test_a_token_file_and_a_supplier_are_read_for_each_use(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = iter(["one", "two"])
    by_file, by_supplier = TokenFile(str(file)), Token(lambda: next(tokens))
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        assert by_file.secret() == text == by_supplier.secret()
    file.unlink()
    with pytest.raises(ConfigurationError, match="can't be read"):
        by_file.secret()


def test_tls_files_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    settings = dataclasses.replace(Settings(**GOOD), tls=Tls(str(file)))
    with pytest.raises(ConfigurationError, match="TLS"):
        settings.ssl_context()


def key_file(folder: Path) -> str:
    file = folder / "key.json"
    file.write_text(json.dumps({"client_id": "me", "client_secret": SECRET}))
    return str(file)


def test_oauth2_keeps_an_access_token_until_it_is_refused(tmp_path: Path) -> None:
    with http_stub() as stub:
        endpoint = json.dumps({"token_endpoint": f"{stub.url}/token"}).encode()
        stub.answer_with("/.well-known/openid-configuration", CannedAnswer(200, endpoint))
        answers = [CannedAnswer(200, json.dumps({"access_token": f"t{n}", "expires_in": 99}).encode()) for n in (1, 2)]
        stub.answer_with("/token", *answers, CannedAnswer(503))
        oauth2 = OAuth2(key_file(tmp_path), stub.url, audience="brokers")
        assert [oauth2.secret(), oauth2.secret()] == ["t1", "t1"]
        oauth2.refused()
        assert oauth2.secret() == "t2"
        assert (
            stub.requests[1].body
        ) == b"grant_type=client_credentials&client_id=me&client_secret=a-secret-token&audience=brokers"
        oauth2.refused()
        with pytest.raises(UnavailableError, match="answered 503"):
            oauth2.secret()


def test_oauth2_names_the_refusal_and_not_the_secret(tmp_path: Path) -> None:
    with http_stub() as stub:
        endpoint = json.dumps({"token_endpoint": f"{stub.url}/token"}).encode()
        stub.answer_with("/.well-known/openid-configuration", CannedAnswer(200, endpoint))
        stub.answer_with("/token", CannedAnswer(401, json.dumps({"error": f"bad {SECRET}"}).encode()))
        with pytest.raises(RefusedError, match="refuses the client") as raised:
            OAuth2(key_file(tmp_path), stub.url).secret()
        assert SECRET not in str(raised.value)
        (tmp_path / "key.json").write_text(f'{{"client_secret": "{SECRET}"')
        with pytest.raises(ConfigurationError, match="JSON with client_id") as wrong:
            OAuth2(str(tmp_path / "key.json"), stub.url).secret()
        assert SECRET not in str(wrong.value)


def test_oauth2_sends_the_client_secret_to_no_endpoint_without_tls(tmp_path: Path) -> None:
    with http_stub() as stub:
        endpoint = json.dumps({"token_endpoint": "http://192.0.2.1/token"}).encode()
        stub.answer_with("/.well-known/openid-configuration", CannedAnswer(200, endpoint))
        with pytest.raises(UnavailableError, match="the client secret is not sent there"):
            OAuth2(key_file(tmp_path), stub.url).secret()


def test_what_the_library_logs_is_not_printed_to_stdout() -> None:
    """A caller's stdout may be piped to another program."""
    command = [sys.executable, "-c", REFUSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=_WITH_CLIENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "ERROR" in done.stderr
