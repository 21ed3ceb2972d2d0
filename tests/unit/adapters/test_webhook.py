"""Messages reach the URL in the file, over verified TLS, within a time limit; and no error shows the URL."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.webhook import Webhook
from streaming.errors import ConfigError, RefusedError, UnavailableError
from tests.certificates import certificate

PATH = "/services/T0/s3cret"


class Receiver:
    """What a server on this machine got, and what it answers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.taken: list[tuple[str, str, Any]] = []  # path, content type, body
        self.status = 200
        self.location = ""


@contextmanager
def receiving(certified: tuple[Path, Path] | None = None) -> Iterator[Receiver]:
    """Serve until the block ends; with the files of a certificate and its key, over TLS."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.taken.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(receiver.status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None: ...  # a client that refuses our certificate

    with Server(("127.0.0.1", 0), Handler) as server:
        if certified:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certified)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        receiver = Receiver(f"http{'s' if certified else ''}://127.0.0.1:{server.server_port}{PATH}")
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()


def webhook(folder: Path, url: str, *, ca_file: Path | str = "", seconds: float = 10, secret: bool = True) -> Webhook:
    """A webhook whose file contains the URL."""
    (folder / "url").write_text(f"{url}\n")
    return Webhook(url_file=str(folder / "url"), ca_file=str(ca_file), is_secret=secret, seconds=seconds)


def test_a_message_is_posted_as_json_and_each_answer_means_something(tmp_path: Path) -> None:
    with receiving() as receiver:
        hook = webhook(tmp_path, receiver.url)
        hook.post({"text": "hello"})
        assert receiver.taken == [(PATH, "application/json", {"text": "hello"})]
        for status, error in (
            (403, RefusedError),
            (404, RefusedError),
            (429, UnavailableError),
            (500, UnavailableError),
        ):
            receiver.status = status
            with pytest.raises(error, match=str(status)) as failed:
                hook.post({})
            assert "s3cret" not in str(failed.value)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with receiving() as elsewhere, receiving() as receiver:
        receiver.status, receiver.location = 307, elsewhere.url
        with pytest.raises(RefusedError, match="refused the message with 307"):
            webhook(tmp_path, receiver.url).post({})
        assert (len(receiver.taken), elsewhere.taken) == (1, [])


def test_a_private_authority_is_trusted_only_if_the_configuration_names_it(tmp_path: Path) -> None:
    certified = certificate(tmp_path, "127.0.0.1")
    with receiving(certified) as receiver:
        webhook(tmp_path, receiver.url, ca_file=certified[0]).post({"text": "hello"})
        assert len(receiver.taken) == 1
        with pytest.raises(UnavailableError, match=r"certificate is refused: self-signed.*notify\.ca_file") as failed:
            webhook(tmp_path, receiver.url).post({})
        assert len(receiver.taken) == 1
    assert "s3cret" not in str(failed.value)


def test_a_certificate_of_another_host_is_refused_although_its_authority_is_trusted(tmp_path: Path) -> None:
    certified = certificate(tmp_path, "hooks.example.com")
    with receiving(certified) as receiver:
        with pytest.raises(UnavailableError, match=r"certificate is refused: .*not valid for '127\.0\.0\.1'") as failed:
            webhook(tmp_path, receiver.url, ca_file=certified[0]).post({})
        assert receiver.taken == []
    assert "s3cret" not in str(failed.value)


def test_an_authority_that_no_file_contains_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for ca_file in ("nowhere.pem", "empty.pem"):
        with pytest.raises(ConfigError, match=rf"notify\.ca_file .*{ca_file} can't be used"):
            webhook(tmp_path, "https://hooks.example.com/s3cret", ca_file=tmp_path / ca_file).check()


@contextmanager
def dripping(reply: bytes) -> Iterator[str]:
    """A server that sends a reply once, and then a byte again and again; yields its URL."""
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            try:
                connection.sendall(reply)
                while not ended.wait(0.05):
                    connection.sendall(b"x")
            except OSError:
                return  # the client has left

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{PATH}"
        finally:
            ended.set()
            thread.join(10)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nX-Long: "], ids=["garbage", "endless header"])
def test_a_receiver_whose_answer_never_ends_is_left_in_time(tmp_path: Path, reply: bytes) -> None:
    with dripping(reply) as url, pytest.raises(UnavailableError, match=r"does not answer: \w*Timeout") as failed:
        webhook(tmp_path, url, seconds=0.5).post({})
    assert "s3cret" not in str(failed.value)


def test_a_receiver_that_accepts_no_connection_to_its_end_is_left_in_time(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(UnavailableError, match=r"does not answer: \w*Timeout"),
    ):
        webhook(tmp_path, f"https://127.0.0.1:{silent.getsockname()[1]}{PATH}", seconds=0.5).post({})


def test_the_body_of_an_answer_is_not_awaited(tmp_path: Path) -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n") as url:
        webhook(tmp_path, url).post({})


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        pytest.param("http://192.0.2.1/services/s3cret", True, id="Slack"),
        pytest.param("http://me:s3cret@192.0.2.1/api/v2/alerts", False, id="a password"),
        pytest.param("http://127.evil.invalid/s3cret", True, id="a name like this machine"),
    ],
)
def test_a_url_with_a_secret_is_not_used_without_tls(tmp_path: Path, url: str, secret: bool) -> None:
    hook = webhook(tmp_path, url, secret=secret)
    for use in (hook.check, lambda: hook.post({})):
        with pytest.raises(ConfigError, match="must be https:") as refused:
            use()
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        pytest.param("https://hooks.example.com/s3cret", True, id="Slack over TLS"),
        pytest.param("http://127.0.0.1/s3cret", True, id="this machine"),
        pytest.param("http://192.0.2.1:9093/api/v2/alerts", False, id="Alertmanager has no secret"),
        pytest.param("https://me:s3cret@192.0.2.1/api/v2/alerts", False, id="a password over TLS"),
    ],
)
def test_these_urls_are_taken(tmp_path: Path, url: str, secret: bool) -> None:
    webhook(tmp_path, url, secret=secret).check()


@pytest.mark.parametrize(
    "content",
    [
        *("", "slack.com/x", "ftp://slack.com/s3cret", "http://[s3cret", "http://a b/s3cret"),
        *("https://a:99999/s3cret", "https://a:0/s3cret", "https://a:abc/s3cret"),
    ],
)
def test_a_file_without_a_url_is_refused_without_its_content(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError, match="must contain one URL") as refused:
        webhook(tmp_path, content).check()
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="can't be read"):
        Webhook(url_file=str(tmp_path / "nowhere"), is_secret=True).check()


@pytest.mark.parametrize("host", ["a..b", "a" * 300, "xn--"], ids=["empty label", "long label", "no Punycode"])
def test_a_webhook_that_no_request_can_name_is_a_failure_without_its_url(tmp_path: Path, host: str) -> None:
    with pytest.raises(UnavailableError, match="does not answer") as failed:
        webhook(tmp_path, f"https://{host}/s3cret").post({})
    assert "s3cret" not in str(failed.value)
