"""A proxy before an S3 server that refuses requests above a rate, as a bucket does whose rate others use up."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

HOST = "127.0.0.1"
_REFUSAL = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_OF_A_CONNECTION = {"connection", "transfer-encoding", "content-length", "expect"}


@dataclass
class ThrottlingProxy:
    """The proxy; `per_s` limits the requests that it forwards in a second."""

    target: str  # of the S3 server: http://host:port
    endpoint: str = ""
    per_s: float = float("inf")
    forwarded: int = 0
    refused: int = 0
    _left: float = 0.0
    _at_s: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def admits(self) -> bool:
        """Count a request, and return whether it may go to the server."""
        with self._lock:
            now_s = time.monotonic()
            self._left = min(max(1.0, self.per_s), self._left + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s
            is_admitted = self._left >= 1
            if is_admitted:
                self._left -= 1
                self.forwarded += 1
            else:
                self.refused += 1
            return is_admitted


@contextmanager
def throttling_proxy(target: str) -> Iterator[ThrottlingProxy]:
    """Run a proxy, which forwards everything until `per_s` is set."""
    proxy = ThrottlingProxy(target)

    class Handler(_Handler):
        state = proxy

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        proxy.endpoint = f"http://{HOST}:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield proxy
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    state: ThrottlingProxy
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.state.admits():
            self._send(503, "Slow Down", [("Content-Type", "application/xml")], _REFUSAL)
            return
        parts = urlsplit(self.state.target)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_CONNECTION}
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as connection:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OF_A_CONNECTION]
        if self.command == "HEAD":
            kept.append(("Content-Length", answer.getheader("Content-Length") or "0"))
        self._send(answer.status, answer.reason, kept, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815  names of BaseHTTPRequestHandler

    def _send(self, status: int, reason: str, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status, reason)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
