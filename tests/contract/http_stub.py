"""An HTTP server that gives the answers it was told to, and remembers what it was asked."""

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    authorization: str | None
    body: bytes


@dataclass(frozen=True)
class Told:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    after_seconds: float = 0.0


@dataclass
class HttpStub:
    """answers: path, with its query or without -> what to say, one after the other; the last one stays."""

    url: str = ""
    answers: dict[str, deque[Told]] = field(default_factory=lambda: defaultdict(deque))
    asked: list[Asked] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def tell(self, path: str, *answers: Told) -> None:
        self.answers[path].extend(answers)

    def next_answer(self, asked: Asked) -> Told:
        self.asked.append(asked)
        answers = self.answers.get(asked.path) or self.answers[asked.path.partition("?")[0]]
        if not answers:
            return Told(418)
        return answers.popleft() if len(answers) > 1 else answers[0]


@contextmanager
def http_stub() -> Iterator[HttpStub]:
    stub = HttpStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            told = stub.next_answer(Asked(self.command, self.path, self.headers.get("Authorization"), body))
            stub.stopping.wait(told.after_seconds)
            self.send_response(told.status)
            for name, value in (*told.headers, ("Content-Length", str(len(told.body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(told.body)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield stub
    finally:
        stub.stopping.set()
        server.shutdown()
        server.server_close()
