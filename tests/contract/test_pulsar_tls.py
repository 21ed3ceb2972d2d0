"""Every Pulsar client compares the broker's name with its certificate first, and shows the newest of its own."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from streaming.adapters.pulsar.http import PulsarAdminSettings, PulsarHttp
from streaming.adapters.pulsar.publish import new_client
from streaming.adapters.pulsar.readers.frames import Connection
from streaming.config.sections import PulsarSettings
from streaming.errors import ReaperError
from tests.certificates import certificate, client_certificate
from tests.pulsar_settings import pulsar_settings

TOKEN = b"a-token-that-nobody-else-may-see"


class _Listener(socketserver.ThreadingTCPServer):
    """Accepts TLS connections, and records every byte that a client sends after the handshake."""

    daemon_threads = True

    def __init__(self, pem: Path, key: Path) -> None:
        self.received = bytearray()
        self.clients: list[str] = []  # the common names of their certificates
        self.has_received = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pem, key)
        self._context.load_verify_locations(pem)
        self._context.verify_mode = ssl.CERT_OPTIONAL
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        try:
            with self._context.wrap_socket(request, server_side=True) as secured:
                if shown := secured.getpeercert(binary_form=True):
                    subject = x509.load_der_x509_certificate(shown).subject
                    self.clients += [str(name.value) for name in subject]
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


@contextmanager
def _frames(pulsar: PulsarSettings) -> Iterator[Callable[[], object]]:
    yield Connection(pulsar, pulsar.service_url).__enter__


@contextmanager
def _admin(pulsar: PulsarSettings) -> Iterator[Callable[[], object]]:
    with PulsarHttp(PulsarAdminSettings.of(pulsar)) as http:
        yield partial(http.get, "v2/clusters")


@contextmanager
def _library(pulsar: PulsarSettings) -> Iterator[Callable[[], object]]:
    import pulsar as library

    client = new_client(pulsar)

    def ask() -> None:
        try:
            client.get_topic_partitions("persistent://t/ns/x")
        except library.PulsarException as error:
            raise ReaperError(str(error)) from error

    yield ask
    client.close()


@pytest.mark.parametrize("open_client", [_frames, _admin, _library])
@pytest.mark.parametrize(
    ("certified", "check", "sends"),
    [
        pytest.param("localhost", True, True, id="the right name"),
        pytest.param("evil.example.com", True, False, id="another name"),
        pytest.param("evil.example.com", False, True, id="another name, not compared"),
    ],
)
def test_a_server_whose_certificate_has_another_name_gets_no_token(
    open_client: object, certified: str, check: bool, sends: bool, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    with _listening(tmp_path, certified) as (server, pem):
        port = server.server_address[1]
        pulsar = pulsar_settings(
            service_url=f"pulsar+ssl://localhost:{port}",
            admin_url=f"https://localhost:{port}",
            token_file=str(token),
            tls_trust_certs_file=str(pem),
            tls_check_hostname=check,
            timeout_seconds=1,
        )
        assert callable(open_client)
        with open_client(pulsar) as ask, pytest.raises(ReaperError):
            ask()

        assert (TOKEN in server.received) is sends


@pytest.mark.parametrize("open_client", [_frames, _admin, _library])
def test_a_rotated_certificate_is_shown_by_the_next_connection(open_client: object, tmp_path: Path) -> None:
    with _listening(tmp_path, "localhost") as (server, pem):
        cert, key = client_certificate(tmp_path, "first", (pem, tmp_path / "key.pem"))
        port = server.server_address[1]
        pulsar = pulsar_settings(
            service_url=f"pulsar+ssl://localhost:{port}",
            admin_url=f"https://localhost:{port}",
            tls_cert_file=str(cert),
            tls_key_file=str(key),
            tls_trust_certs_file=str(pem),
            timeout_seconds=1,
        )
        assert callable(open_client)
        with open_client(pulsar) as ask:
            with pytest.raises(ReaperError):
                ask()
            assert set(server.clients) == {"first"}
            client_certificate(tmp_path, "second", (pem, tmp_path / "key.pem"))
            server.clients.clear()
            with pytest.raises(ReaperError):
                ask()
            assert set(server.clients) == {"second"}
