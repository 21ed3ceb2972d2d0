"""Each kind of credentials: what a connection sends, what the connector is told, and that no secret is shown."""

import json
import pickle
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.pulsar.credentials import OWN_JAVA, Credentials
from streaming.errors import ConfigError
from tests.pulsar_settings import pulsar_settings

JAVA = "org.apache.pulsar.client.impl.auth."
SECRET = "s3cret"


def _file(folder: Path, content: str) -> str:
    file = folder / "secret"
    file.write_text(content)
    return str(file)


def _of(**keys: Any) -> Credentials:
    return Credentials.of(pulsar_settings(**keys))


def test_without_a_file_nothing_is_sent() -> None:
    credentials = _of()
    assert (credentials.method, credentials.secret(), credentials.headers()) == ("", "", {})
    assert not credentials.sends_secret
    assert credentials.of_connector() is None


def test_a_token_is_read_each_time(tmp_path: Path) -> None:
    credentials = _of(token_file=_file(tmp_path, f"{SECRET}\n"))
    assert (credentials.method, credentials.headers()) == ("token", {"Authorization": f"Bearer {SECRET}"})
    _file(tmp_path, "rotated")
    assert credentials.secret() == "rotated"
    assert credentials.of_connector() == (f"{JAVA}AuthenticationToken", f"file://{tmp_path}/secret")


@pytest.mark.parametrize("token", [f"{SECRET}\n{SECRET}", f"{SECRET}\x00", f"{SECRET}\xe9"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    credentials = _of(token_file=_file(tmp_path, token))
    with pytest.raises(ConfigError, match=r"secret must contain one token, on one line$") as refused:
        credentials.headers()
    assert SECRET not in str(refused.value)


def test_user_and_password_are_sent_in_the_form_of_pulsars_clients(tmp_path: Path) -> None:
    credentials = _of(basic_file=_file(tmp_path, f"reaper:{SECRET}\n"))
    basic = b64encode(f"reaper:{SECRET}".encode()).decode()
    assert (credentials.method, credentials.secret()) == ("basic", f"reaper:{SECRET}")
    assert credentials.headers() == {"Authorization": f"Basic {basic}"}
    assert credentials.of_connector() == (OWN_JAVA, json.dumps({"basicFile": f"{tmp_path}/secret"}))


def test_a_certificate_sends_no_secret() -> None:
    credentials = _of(tls_cert_file="/c", tls_key_file="/k")
    assert (credentials.method, credentials.secret(), credentials.headers()) == ("tls", "", {})
    assert not credentials.sends_secret
    assert credentials.of_connector() == (
        f"{JAVA}AuthenticationTls",
        json.dumps({"tlsCertFile": "/c", "tlsKeyFile": "/k"}),
    )


def test_the_connector_gets_what_oauth2_needs_and_no_secret(tmp_path: Path) -> None:
    key = _file(tmp_path, json.dumps({"client_id": "reaper", "client_secret": SECRET}))
    credentials = _of(oauth2_key_file=key, oauth2_issuer_url="https://i", oauth2_audience="a", oauth2_scope="s")
    assert (credentials.method, credentials.sends_secret) == ("token", True)
    shown = credentials.of_connector()
    assert shown is not None
    expected = {"keyFile": key, "issuerUrl": "https://i", "audience": "a", "scope": "s"}
    assert (shown[0], json.loads(shown[1])) == (OWN_JAVA, expected)
    assert SECRET not in repr(credentials) + repr(shown)
    assert pickle.loads(pickle.dumps(credentials)) == credentials


@pytest.mark.parametrize("content", [f"only{SECRET}", f"reaper:{SECRET}:more", f"reaper:{SECRET}\nother:line", ""])
def test_a_file_without_user_and_password_is_named_and_not_quoted(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError, match=r"basic_file .*must contain one line `user:password`") as raised:
        _of(basic_file=_file(tmp_path, content)).secret()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("key", ["token_file", "basic_file"])
def test_a_file_that_cant_be_read_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"pulsar\.{key} /no/such can't be read"):
        _of(**{key: "/no/such"}).headers()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not a text file"):
        _of(**{key: str(tmp_path / "binary")}).headers()
