"""A TCP proxy between a client and ZooKeeper that closes the connection at a chosen request or answer."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Cut = Callable[[bytes], bool]


def _never(_frame: bytes) -> bool:
    return False


@dataclass
class CuttingProxy:
    """Passes frames to a server, or cuts the connection."""

    target: int
    port: int = 0
    cut_request: Cut = _never  # returns True to cut the connection instead of passing a request
    cut_answer: Cut = _never  # the same for an answer
    cuts: int = 0
    deaf: int = 0  # connections that are accepted first and never answered
    _unanswered: list[socket.socket] = field(default_factory=list)
    _listener: socket.socket = field(default_factory=socket.socket)

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _address = self._listener.accept()
                if self.deaf > len(self._unanswered):
                    self._unanswered.append(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self.target))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, sink, name in ((client, server, "cut_request"), (server, client, "cut_answer")):
                    threading.Thread(target=self._pump, args=(source, sink, name), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(source):
                if getattr(self, name)(frame):
                    self.cuts += 1
                    break
                sink.sendall(len(frame).to_bytes(4, "big") + frame)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _frame(source: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(source, 4), "big")
    return _exactly(source, length)


def _exactly(source: socket.socket, length: int) -> bytes:
    parts = []
    while length > 0:
        part = source.recv(min(length, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


@contextmanager
def cutting_proxy(target: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
