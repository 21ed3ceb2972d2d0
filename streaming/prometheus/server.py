"""The HTTP server for Prometheus and for probes. It answers GET and HEAD, and changes nothing.

A connection is closed after _SECONDS, and the oldest one if there are more than _CONNECTIONS. So clients that send or
read slowly never keep Prometheus out.
"""

import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer, TCPServer, ThreadingMixIn
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import choose_encoder

from streaming.prometheus import table
from streaming.prometheus.health import Health
from streaming.prometheus.registry import Registry

log = logging.getLogger("ledger-reaper")

_SECONDS = 10.0
_CONNECTIONS = 32
_SPARK_BYTES = 8 * 1024 * 1024
_SPARK_SECONDS = 5.0
SPARK_PATH = "/metrics/prometheus/"  # of Spark's PrometheusServlet
_TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """An answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


class MetricsServer(ThreadingMixIn, TCPServer):
    """Answers on a listening socket, from the start of a `with` block to its end, which releases the port.

    Args:
        registry: what /metrics shows.
        health: what /healthz and /readyz report.
        listener: the listening socket.
    """

    daemon_threads = True

    def __init__(self, registry: Registry, health: Health, listener: socket.socket) -> None:
        self._registry, self._health = registry, health
        self._open: dict[socket.socket, float] = {}  # connection -> when it is closed at the latest
        self._guard = threading.Lock()
        self.spark_ui = ""  # URL of Spark's UI; "": there is none
        # not TCPServer's, which would bind a socket of its own
        BaseServer.__init__(self, listener.getsockname(), _Handler)
        self.socket = listener

    @property
    def port(self) -> int:
        """The port."""
        return int(self.socket.getsockname()[1])

    def __enter__(self) -> Self:
        """Answer in a thread."""
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop answering, and release the port."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own. Close the oldest connection if there are too many."""
        with self._guard:
            self._open[request] = time.monotonic() + _SECONDS
            oldest = next(iter(self._open)) if len(self._open) > _CONNECTIONS else None
        if oldest is not None:
            _cut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that are older than _SECONDS. serve_forever calls this twice a second."""
        now_s = time.monotonic()
        with self._guard:
            slow = [connection for connection, until_s in self._open.items() if until_s < now_s]
        for connection in slow:
            _cut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log an error of ours; ignore a connection that broke."""
        if not isinstance(sys.exception(), OSError):
            log.error("metrics: a request could not be answered", exc_info=True)

    def answer(self, path: str, accept: str) -> Answer:
        """Answer a request for a path."""
        match path:
            case "/metrics":
                return self._metrics(accept)
            case "/metrics/spark":
                return self._sparks()
            case "/healthz":
                return _probe(self._health.stalled)
            case "/readyz":
                return _probe(self._health.waits_for)
        return _text(HTTPStatus.NOT_FOUND, "there are /metrics, /metrics/spark, /healthz and /readyz")

    def _metrics(self, accept: str) -> Answer:
        if not self._registry.is_identified:
            # series without the cluster's name would be other series
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "starting: the cluster's name is not known yet")
        self._registry.set(table.READY, int(not self._health.waits_for))
        encode, content_type = choose_encoder(accept)
        return Answer(HTTPStatus.OK, encode(self._registry), content_type)

    def _sparks(self) -> Answer:
        if not self.spark_ui:
            return _text(HTTPStatus.NOT_FOUND, "Spark has no UI, which serves its metrics (or has not started yet)")
        try:
            return _fetched(self.spark_ui)
        except (OSError, HTTPException) as error:
            return _text(HTTPStatus.BAD_GATEWAY, f"Spark's UI does not answer: {error or type(error).__name__}")


@contextmanager
def serving(registry: Registry, health: Health, listener: socket.socket | None) -> Iterator[MetricsServer | None]:
    """Serve the metrics while the block runs, and close the listener at its end; None: serve nothing."""
    if listener is None:
        yield None
        return
    address = listener.getsockname()[0]
    with MetricsServer(registry, health, listener) as server:
        shown = f"[{address}]" if ":" in address else address
        log.info("metrics: http://%s:%s/metrics", shown, server.port)
        yield server


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    server_version, sys_version = "ledger-reaper", ""
    timeout = _SECONDS
    server: MetricsServer

    def do_GET(self) -> None:
        """Answer."""
        answer = self.server.answer(self.path.partition("?")[0], ", ".join(self.headers.get_all("Accept", [])))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def do_HEAD(self) -> None:
        """Answer without the body."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer an unknown method, or what is no HTTP request, in plain text."""
        is_method = code == HTTPStatus.NOT_IMPLEMENTED  # BaseHTTPRequestHandler's answer to another method
        code = HTTPStatus.METHOD_NOT_ALLOWED if is_method else code
        # not `message`, which quotes the client
        body = f"{HTTPStatus(code).phrase}\n".encode()
        self.send_response(code)
        self.send_header("Content-Type", _TEXT)
        if is_method:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _probe(fault: str) -> Answer:
    return _text(HTTPStatus.SERVICE_UNAVAILABLE, fault) if fault else _text(HTTPStatus.OK, "ok")


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode())


def _fetched(ui: str) -> Answer:
    """Return the driver's metrics as its UI serves them. Raises OSError, HTTPException."""
    parts = urlsplit(ui)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=_SPARK_SECONDS)) as connection:
        connection.request("GET", f"{parts.path.rstrip('/')}{SPARK_PATH}")
        response = connection.getresponse()
        body = response.read(_SPARK_BYTES + 1)
    if response.status != HTTPStatus.OK:
        return _text(HTTPStatus.BAD_GATEWAY, f"Spark's UI answers {response.status} {response.reason}")
    if len(body) > _SPARK_BYTES:
        return _text(HTTPStatus.BAD_GATEWAY, f"Spark's metrics are larger than {_SPARK_BYTES} bytes")
    return Answer(HTTPStatus.OK, body, CONTENT_TYPE_LATEST)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just ended
        connection.shutdown(socket.SHUT_RDWR)
