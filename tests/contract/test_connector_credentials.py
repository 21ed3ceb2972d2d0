"""The credentials of the connector's Java client (streaming/spark/java), against an OAuth2 server."""

import json
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from streaming.spark.jars import CREDENTIALS, jars
from tests.combinations import with_connector
from tests.oauth2_server import oauth2_server

pytestmark = [
    with_connector,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="java compiles the test's program"),
]
PROGRAM = """
import ledgerreaper.FileAuthentication;

public class Ask {
    public static void main(String[] parameters) {
        for (String each : parameters) {
            FileAuthentication authentication = new FileAuthentication();
            authentication.configure(each);
            try {
                System.out.println(authentication.getAuthData().getCommandData());
            } catch (Exception error) {
                System.out.println("error: " + error.getMessage());
            }
        }
    }
}
"""


def asking(folder: Path, issuer_url: str, key_file: Path, times: int = 1) -> "subprocess.Popen[str]":
    """Start a JVM that asks for an access token, and prints each or an error."""
    (folder / "Ask.java").write_text(PROGRAM)
    libraries = [CREDENTIALS, *Path(pyspark.__file__).parent.glob("jars/jackson-*.jar"), *jars()]
    parameters = {"keyFile": str(key_file), "issuerUrl": issuer_url, "audience": "urn:pulsar", "scope": "reap"}
    command = ["java", "-cp", ":".join(map(str, libraries)), str(folder / "Ask.java")]
    return subprocess.Popen(command + [json.dumps(parameters)] * times, stdout=subprocess.PIPE, text=True)


def lines_of(process: "subprocess.Popen[str]") -> list[str]:
    try:
        return process.communicate(timeout=120)[0].splitlines()
    finally:
        process.kill()


def test_an_access_token_is_requested_once_and_kept(tmp_path: Path) -> None:
    with oauth2_server(b"k" * 32, {"reaper": "s3cret"}) as issuer:
        key = issuer.key_file(tmp_path / "key.json", "reaper")
        first, second = lines_of(asking(tmp_path, issuer.url, key, times=2))
    assert first == second
    assert first.count(".") == 2
    assert len(issuer.forms) == 1


@contextmanager
def dripping(start: bytes) -> Iterator[str]:
    """Serve on this machine: answer each request with `start`, and then one byte after the other, without an end."""
    is_over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                self.wfile.write(start)
                while not is_over.wait(0.2):
                    self.wfile.write(b"x")
            except OSError:
                pass  # the client has gone

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()


@pytest.mark.long  # ten seconds
def test_an_issuer_that_never_ends_its_answer_does_not_block_the_client(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"client_id": "reaper", "client_secret": "s3cret"}')
    with (
        dripping(b"HTTP/1.1 200 OK\r\nX-A: ") as in_headers,
        dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n") as in_body,
    ):
        for each in [asking(tmp_path, url, key) for url in (in_headers, in_body)]:
            [line] = lines_of(each)
            assert line.startswith("error: ")
