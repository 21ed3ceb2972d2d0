"""Access tokens from a real OAuth2 server on this machine: kept, renewed, refused; no secret in any error."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from streaming.adapters.pulsar import oauth2
from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp
from streaming.adapters.pulsar.oauth2 import OAuth2, access_token
from streaming.errors import ConfigError, ReaperError, RefusedError, UnavailableError
from tests.certificates import certificate
from tests.contract.http_stub import CannedAnswer, http_stub
from tests.oauth2_server import OAuth2Server, oauth2_server

SECRET = "secret+of/the client"


@pytest.fixture
def server() -> Iterator[OAuth2Server]:
    oauth2._tokens.clear()
    with oauth2_server(b"a key", {"reaper": SECRET}) as running:
        yield running
    oauth2._tokens.clear()


@pytest.fixture
def ours(server: OAuth2Server, tmp_path: Path) -> OAuth2:
    key = server.key_file(tmp_path / "key.json", "reaper")
    return OAuth2(key_file=str(key), issuer_url=f"{server.url}/", audience=server.audience, scope=server.scope)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(oauth2, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_token_is_kept_until_a_tenth_of_its_life_is_left(
    server: OAuth2Server, ours: OAuth2, clock: list[float]
) -> None:
    first = access_token(ours)
    clock[0] += 269
    assert access_token(ours) == first
    assert server.forms == [
        {
            "grant_type": "client_credentials",
            "client_id": "reaper",
            "client_secret": SECRET,
            "audience": "urn:pulsar",
            "scope": "reap",
        }
    ]
    clock[0] += 1
    access_token(ours)
    assert len(server.forms) == 2


def test_a_token_is_used_to_its_end_while_the_issuer_gives_no_other(
    server: OAuth2Server, ours: OAuth2, clock: list[float]
) -> None:
    first = access_token(ours)
    server.secrets["reaper"] = "rotated"
    clock[0] += 280
    assert access_token(ours) == first
    assert access_token(ours) == first
    assert len(server.forms) == 2  # not asked again at once
    clock[0] += 25
    with pytest.raises(RefusedError, match="invalid_client"):
        access_token(ours)
    server.key_file(Path(ours.key_file), "reaper")
    assert access_token(ours)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        pytest.param((401, {"error": SECRET}), RefusedError, r"\(401\)", id="an error that is no name"),
        pytest.param((500, {}), UnavailableError, "answered 500", id="a fault of the server"),
        pytest.param((200, {"access_token": ""}), UnavailableError, "without a valid access token", id="no token"),
        pytest.param(
            (200, {"access_token": f"{SECRET}\n"}), UnavailableError, "without a valid access token", id="two lines"
        ),
    ],
)
def test_other_answers_are_named_without_the_secret(
    server: OAuth2Server, ours: OAuth2, answer: tuple[int, dict[str, object]], error: type[ReaperError], text: str
) -> None:
    server.answer = answer
    with pytest.raises(error, match=text) as raised:
        access_token(ours)
    assert SECRET not in str(raised.value)


def test_a_token_of_unknown_life_is_kept_for_a_minute(server: OAuth2Server, ours: OAuth2, clock: list[float]) -> None:
    server.answer = (200, {"access_token": "abc"})
    assert access_token(ours) == access_token(ours) == "abc"
    clock[0] += 54
    access_token(ours)
    assert len(server.forms) == 2


@pytest.mark.parametrize("endpoint", ["http://issuer.example.com/token", "ftp://127.0.0.1.example.com/token"])
def test_no_client_secret_is_sent_in_clear_text_to_another_machine(
    server: OAuth2Server, ours: OAuth2, endpoint: str
) -> None:
    server.token_endpoint = endpoint
    with pytest.raises(UnavailableError, match="not reached over TLS"):
        access_token(ours)


def test_an_issuer_that_does_not_answer_or_is_none_is_named(server: OAuth2Server, ours: OAuth2) -> None:
    for url in ("http://127.0.0.1:1", server.url.replace("realm", "other")):
        with pytest.raises(UnavailableError, match=r"check pulsar\.oauth2_issuer_url"):
            access_token(OAuth2(key_file=ours.key_file, issuer_url=url))


def test_an_issuer_that_drips_its_answer_holds_no_thread(ours: OAuth2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth2, "_TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection = listener.accept()[0]
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(100):
                    connection.sendall(b" ")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UnavailableError, match="too slowly"):
            access_token(OAuth2(key_file=ours.key_file, issuer_url=url))


def test_an_issuer_whose_name_dns_cannot_have_is_named(ours: OAuth2) -> None:
    with pytest.raises(UnavailableError, match=r"check pulsar\.oauth2_issuer_url"):
        access_token(OAuth2(key_file=ours.key_file, issuer_url="https://a..b"))


@pytest.mark.parametrize(
    "life", [float("inf"), float("nan"), 10**400, -1, "300"], ids=["infinite", "nan", "huge", "negative", "text"]
)
def test_a_life_that_is_none_counts_as_unknown(
    server: OAuth2Server, ours: OAuth2, clock: list[float], life: object
) -> None:
    server.answer = (200, {"access_token": "abc", "expires_in": life})
    access_token(ours)
    clock[0] += 54
    access_token(ours)
    assert len(server.forms) == 2


def test_a_token_that_a_broker_refuses_is_replaced_and_the_issuer_is_not_flooded(
    server: OAuth2Server, ours: OAuth2, clock: list[float]
) -> None:
    with http_stub() as broker:
        broker.answer_with("/admin/v2/clusters", CannedAnswer(401))
        credentials = Credentials(oauth2=ours)
        settings = PulsarAdminSettings(admin_url=broker.url, credentials=credentials)
        with PulsarHttp(settings) as http:
            assert http.get("v2/clusters").status == 401
            assert http.get("v2/clusters").status == 401
            assert len(server.forms) == 1
            clock[0] += 10
            server.answer = (200, {"access_token": "another", "expires_in": 300})
            http.get("v2/clusters")
            assert credentials.secret() == "another"
            http.get("v2/clusters")
            clock[0] += 9
            http.get("v2/clusters")
    assert len(server.forms) == 2


@pytest.mark.parametrize("content", [SECRET, json.dumps([SECRET]), json.dumps({"client_secret": SECRET})])
def test_an_unusable_key_file_is_named_and_not_quoted(ours: OAuth2, content: str) -> None:
    Path(ours.key_file).write_text(content)
    with pytest.raises(ConfigError, match="client_id and client_secret") as raised:
        access_token(ours)
    assert SECRET not in str(raised.value)
    Path(ours.key_file).unlink()
    with pytest.raises(ConfigError, match="can't be read"):
        access_token(ours)


def test_the_issuers_certificate_must_be_of_an_authority_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oauth2._tokens.clear()
    certified = certificate(tmp_path, "127.0.0.1")
    with oauth2_server(b"a key", {"reaper": SECRET}, certified=certified) as server:
        key = server.key_file(tmp_path / "key.json", "reaper")
        ours = OAuth2(key_file=str(key), issuer_url=server.url, audience=server.audience, scope=server.scope)
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            access_token(ours)
        assert server.forms == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certified[0]))
        assert access_token(ours)


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(server: OAuth2Server, ours: OAuth2) -> None:
    with oauth2._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if oauth2._lock.acquire(timeout=5) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert access_token(ours)
