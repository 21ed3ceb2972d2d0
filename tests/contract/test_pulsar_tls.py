"""Every Pulsar client compares the broker's name with its certificate before it sends the token."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp
from streaming.adapters.pulsar.publish import new_client
from streaming.adapters.pulsar.readers.frames import Connection
from streaming.config.sections import PulsarSettings
from streaming.errors import ReaperError
from tests.certificates import certificate

TOKEN = b"a-token-that-nobody-else-may-see"


class _Listener(socketserver.ThreadingTCPServer):
    """Accepts TLS connections, and records every byte that a client sends after the handshake."""

    daemon_threads = True

    def __init__(self, pem: Path, key: Path) -> None:
        self.received = bytearray()
        self.has_received = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem, key)
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        try:
            with self._context.wrap_socket(request, server_side=True) as secured:
                while data := secured.recv(4096):
                    self.received += data
                    if TOKEN in self.received:
                        self.has_received.set()
                        return
        except OSError:  # a client that does not trust the certificate ends the handshake
            return


@contextmanager
def _listening(folder: Path, name: str) -> Iterator[tuple[_Listener, Path]]:
    pem, key = certificate(folder, name)
    with _Listener(pem, key) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server, pem
        server.shutdown()


def _by_frames(pulsar: PulsarSettings) -> None:
    with Connection(pulsar, pulsar.service_url):
        pass


def _by_admin(pulsar: PulsarSettings) -> None:
    with PulsarHttp(PulsarAdminSettings.of(pulsar)) as http:
        http.get("v2/clusters")


def _by_client(pulsar: PulsarSettings) -> None:
    import pulsar as library

    client = new_client(pulsar)
    try:
        client.get_topic_partitions("persistent://t/ns/x")
    except library.PulsarException as error:
        raise ReaperError(str(error)) from error
    finally:
        client.close()


@pytest.mark.parametrize("ask", [_by_frames, _by_admin, _by_client])
@pytest.mark.parametrize(
    ("certified", "check", "sends"),
    [
        pytest.param("localhost", True, True, id="the right name"),
        pytest.param("evil.example.com", True, False, id="another name"),
        pytest.param("evil.example.com", False, True, id="another name, not compared"),
    ],
)
def test_a_server_whose_certificate_has_another_name_gets_no_token(
    ask: object, certified: str, check: bool, sends: bool, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    with _listening(tmp_path, certified) as (server, pem):
        port = server.server_address[1]
        pulsar = PulsarSettings(
            service_url=f"pulsar+ssl://localhost:{port}",
            admin_url=f"https://localhost:{port}",
            token_file=str(token),
            tls_trust_certs_file=str(pem),
            tls_check_hostname=check,
            timeout_seconds=1,
        )
        assert callable(ask)
        with pytest.raises(ReaperError):
            ask(pulsar)

        assert (TOKEN in server.received) is sends
