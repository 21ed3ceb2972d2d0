"""An HTTP server that returns canned answers and records the requests."""

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    authorization: str | None
    body: bytes


@dataclass(frozen=True)
class CannedAnswer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    after_seconds: float = 0.0


@dataclass
class HttpStub:
    """The answers and the requests of a server."""

    url: str = ""
    # path, with or without its query -> answers in succession; the last answer is repeated
    answers: dict[str, deque[CannedAnswer]] = field(default_factory=lambda: defaultdict(deque))
    requests: list[ReceivedRequest] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def answer_with(self, path: str, *answers: CannedAnswer) -> None:
        self.answers[path].extend(answers)

    def next_answer(self, request: ReceivedRequest) -> CannedAnswer:
        self.requests.append(request)
        answers = self.answers.get(request.path) or self.answers[request.path.partition("?")[0]]
        if not answers:
            return CannedAnswer(418)
        return answers.popleft() if len(answers) > 1 else answers[0]


@contextmanager
def http_stub() -> Iterator[HttpStub]:
    stub = HttpStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = stub.next_answer(ReceivedRequest(self.command, self.path, self.headers.get("Authorization"), body))
            stub.stopping.wait(answer.after_seconds)
            self.send_response(answer.status)
            for name, value in (*answer.headers, ("Content-Length", str(len(answer.body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

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
