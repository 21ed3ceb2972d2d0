"""moto's S3 in a thread of this process, with faults of real servers."""

import functools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape, unescape

import boto3
import botocore.session
from moto.s3.models import FakeDeleteMarker, s3_backends
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from streaming.sandbox.parts.s3_server import s3_app

# Each client reads the descriptions of S3 again, a tenth of a second of work; the tests create hundreds of clients.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)

HOST = "127.0.0.1"
BREAK = "break"  # as a fault's status: the connection ends without an answer
_KEY_AND_ETAG = re.compile(r"<Key>([^<]*)</Key><ETag>([^<]*)</ETag>")
_QUOTES = {"&quot;": '"'}
_STATUS = {"NoSuchKey": "404 Not Found", "PreconditionFailed": "412 Precondition Failed"}
_KEY = re.compile(rb"<Key>([^<]*)</Key>")

StartResponse = Callable[..., Any]
Match = Callable[[dict[str, Any]], bool]


def anything(_environ: dict[str, Any]) -> bool:
    return True


def bulk_delete(environ: dict[str, Any]) -> bool:
    return environ["REQUEST_METHOD"] == "POST" and str(environ["QUERY_STRING"]).startswith("delete")


def reads(environ: dict[str, Any]) -> bool:
    return environ["REQUEST_METHOD"] in ("GET", "HEAD")


@dataclass
class Fault:
    """Answers the next `times` matching requests with an error."""

    status: str
    code: str
    times: int
    match: Match


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: object, **__: object) -> None:
        return


@dataclass
class S3Server:
    """A server and its faults. lies: bulk deletes do nothing and return OK. overwrites: a conditional put ignores
    that the object exists. compares_etags: deletes compare ETags, like S3 and unlike moto.
    stop_after: requests until it goes away."""

    port: int
    delay_s: float = 0.0
    lies: bool = False
    overwrites: bool = False
    compares_etags: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    keys_per_s: float = 0.0
    stop_after: int = -1
    requests: list[str] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _server: BaseWSGIServer | None = None
    _app: Any = None
    _outsider: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _budget: tuple[float, float] = (0.0, 0.0)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def throttled(self) -> int:
        return self.requests.count("throttled")

    def client(self) -> Any:
        """Create another client, for operations that the store under test never does."""
        self._outsider = self._outsider or boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="outsider",
            aws_secret_access_key="any",
        )
        return self._outsider

    def answer(self, code: str, *, status: str = "503 Slow Down", times: int = 1, match: Match = anything) -> None:
        self._faults.append(Fault(status, code, times, match))

    def fill(self, bucket: str, objects: Mapping[str, bytes], metadata: Mapping[str, str] | None = None) -> None:
        """Store objects without HTTP, which is a hundred times faster."""
        backend = _backend_of(bucket)
        for key, content in objects.items():
            stored = backend.put_object(bucket, key, content)
            if metadata:
                stored.set_metadata({f"x-amz-meta-{name}": value for name, value in metadata.items()})

    def keys(self, bucket: str) -> list[str]:
        """Return every key, sorted. For assertions: faults are ignored."""
        return sorted(_backend_of(bucket).buckets[bucket].keys.keys())

    def start(self) -> None:
        self._app = self._app or s3_app()
        self._server = make_server(HOST, self.port, self, threaded=True, request_handler=_Quiet)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def heal(self) -> None:
        self.overwrites = self.compares_etags = False
        self.delay_s, self.lies, self.keys_per_s, self.stop_after = 0.0, False, 0.0, -1
        self.refused.clear()
        self._faults.clear()
        self.requests.clear()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        self.requests.append(environ["REQUEST_METHOD"])
        time.sleep(self.delay_s)
        if self._went_away():
            raise ConnectionAbortedError  # the connection breaks without an answer
        if self.overwrites:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        fault = self._fault(environ)
        if fault is not None and fault.status == BREAK:
            raise ConnectionAbortedError
        if fault is not None:
            return _error(start_response, fault.status, fault.code)
        if environ["REQUEST_METHOD"] == "DELETE" and (code := self._condition(environ)):
            return _error(start_response, _STATUS[code], code)
        if bulk_delete(environ):
            return self._bulk_delete(environ, start_response)
        with self._lock:
            return list(self._app(environ, start_response))

    def _condition(self, environ: dict[str, Any]) -> str:
        """Return S3's code for a DELETE whose condition does not hold; "" if it may continue."""
        etag = environ.pop("HTTP_IF_MATCH", "")  # moto compares it, in this request alone
        bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
        return _compared(bucket, key, etag) if etag and self.compares_etags else ""

    def _went_away(self) -> bool:
        if self.stop_after < 0:
            return False
        self.stop_after -= 1
        if self.stop_after >= 0:
            return False
        self.stop_after = 0
        threading.Thread(target=self.stop).start()
        return True

    def _fault(self, environ: dict[str, Any]) -> Fault | None:
        for fault in self._faults:
            if fault.times > 0 and fault.match(environ):
                fault.times -= 1
                return fault
        return None

    def _bulk_delete(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        keys = [key.decode() for key in _KEY.findall(body)]
        if self.keys_per_s and not self._affords(len(keys)):
            self.requests.append("throttled")
            return _error(start_response, "503 Slow Down", "SlowDown")
        refused = {key: self.refused[key] for key in keys if key in self.refused}
        if self.compares_etags:
            bucket = environ["PATH_INFO"].strip("/")
            judged = {unescape(key): unescape(etag, _QUOTES) for key, etag in _KEY_AND_ETAG.findall(body.decode())}
            refused |= {key: code for key, etag in judged.items() if (code := _compared(bucket, key, etag))}
        if self.lies or refused:
            # the bucket's name is the path; keys that are not refused are deleted singly
            bucket = environ["PATH_INFO"].strip("/")
            if not self.lies:
                for key in set(keys) - set(refused):
                    self._delete(bucket, key)
            return _deleted(start_response, refused)
        environ["wsgi.input"] = _Body(body)
        with self._lock:
            return list(self._app(environ, start_response))

    def _delete(self, bucket: str, key: str) -> None:
        with self._lock:
            _backend_of(bucket).delete_object(bucket, key)

    def _affords(self, keys: int) -> bool:
        with self._lock:
            left, at_s = self._budget
            now_s = time.monotonic()
            left = min(self.keys_per_s, left + (now_s - at_s) * self.keys_per_s)
            affords = left >= keys
            self._budget = (left - keys if affords else left, now_s)
            return affords


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int = -1) -> bytes:
        cut = len(self._data) if size < 0 else size
        data, self._data = self._data[:cut], self._data[cut:]
        return data


@contextmanager
def s3_running() -> Iterator[S3Server]:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    server = S3Server(port)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _backend_of(bucket: str) -> Any:
    for partitions in s3_backends.values():
        for backend in partitions.values():
            if bucket in backend.buckets:
                return backend
    raise KeyError(bucket)


def _compared(bucket: str, key: str, etag: str) -> str:
    """Return S3's code for a delete with this ETag; "" if it may continue."""
    stored = _backend_of(bucket).buckets[bucket].keys.get(key)
    if stored is None or isinstance(stored, FakeDeleteMarker):
        return "NoSuchKey"
    return "" if stored.etag == etag else "PreconditionFailed"


def _error(start_response: StartResponse, status: str, code: str) -> Iterable[bytes]:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected by the test</Message></Error>"
    return _xml(start_response, status, text)


def _deleted(start_response: StartResponse, refused: dict[str, str]) -> Iterable[bytes]:
    errors = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>{code}</Code><Message>injected by the test</Message></Error>"
        for key, code in refused.items()
    )
    return _xml(start_response, "200 OK", f"<?xml version='1.0'?><DeleteResult>{errors}</DeleteResult>")


def _xml(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = text.encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]
