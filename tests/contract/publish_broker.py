"""A fake broker that is sufficient for clients to publish and read; the test chooses its answers."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from udfs.formats.internal_stats import Position

CONNECT, PRODUCER, SEND, SEND_RECEIPT, CLOSE_PRODUCER, ERROR, PING = 2, 5, 6, 7, 15, 14, 18
CONNECTED, SUCCESS, PRODUCER_SUCCESS, PONG, PARTITIONED, LOOKUP = 3, 13, 17, 19, 21, 23
SUBSCRIBE, MESSAGE, FLOW, CLOSE_CONSUMER, GET_LAST = 4, 9, 11, 16, 29
PRODUCER_FENCED = 25
MAX_MESSAGE_BYTES = 5 * 1024 * 1024

Fields = dict[int, Any]


class PublishBroker:
    """A broker of a single topic, on its own port.

    Args:
        on_send: called with a sequence id: True answers, False does not, None closes the producer, as fencing does.
        last_sequence_id: of the producer.
        takes_bytes: the largest message; a larger message closes the connection, as at a real broker.
        entries: by topic and position; a reader gets all entries after its start at once.
    """

    def __init__(
        self,
        on_send: Callable[[int], bool | None] = lambda _id: True,
        last_sequence_id: int = -1,
        takes_bytes: int = MAX_MESSAGE_BYTES,
        entries: Mapping[str, Mapping[Position, bytes]] | None = None,
    ) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self.producers: list[str] = []
        self.connections = 0
        self._on_send = on_send
        self._takes_bytes = takes_bytes
        self._last = last_sequence_id
        self._fenced = False
        self._entries = entries or {}
        self._readers: dict[int, tuple[str, Position]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no further connection."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with contextlib.suppress(OSError):
            while len(head := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">I", head)[0])
                size = struct.unpack(">I", frame[:4])[0]
                command = _fields(frame[4 : 4 + size])
                kind = command[1]
                if kind == SEND and size + self._takes_bytes < len(frame) - 4:
                    connection.close()
                    return
                answer = self._answer(kind, _fields(command.get(kind, b"")), frame[4 + size :])
                if answer:
                    connection.sendall(answer)

    def _answer(self, kind: int, request: Fields, rest: bytes) -> bytes:
        answers: dict[int, Callable[[], bytes]] = {
            CONNECT: lambda: _command(CONNECTED, _text(1, b"test") + _number(2, 19) + _number(3, self._takes_bytes)),
            PARTITIONED: lambda: _command(PARTITIONED + 1, _number(1, 0) + _number(2, request[2]) + _number(3, 0)),
            LOOKUP: lambda: _command(
                LOOKUP + 1, _text(1, self.url.encode()) + _number(3, 1) + _number(4, request[2]) + _number(5, 1)
            ),
            PRODUCER: lambda: self._producer(request),
            SEND: lambda: self._stored(request, rest),
            CLOSE_PRODUCER: lambda: _command(SUCCESS, _number(1, request[2])),
            PING: lambda: _command(PONG, b""),
            SUBSCRIBE: lambda: self._subscribed(request),
            GET_LAST: lambda: self._last_position(request),
            FLOW: lambda: self._sent_to(request[1]),
            CLOSE_CONSUMER: lambda: _command(SUCCESS, _number(1, request[2])),
        }
        return answers[kind]() if kind in answers else b""

    def _producer(self, request: Fields) -> bytes:
        if self._fenced:
            return _command(ERROR, _number(1, request[3]) + _number(2, PRODUCER_FENCED) + _text(3, b"fenced"))
        name = request.get(4, b"named-by-the-broker")
        self.producers.append(name.decode())
        return _command(PRODUCER_SUCCESS, _number(1, request[3]) + _text(2, name) + _number(3, self._last))

    def _stored(self, request: Fields, rest: bytes) -> bytes:
        self.sent.append((request[2], rest))
        verdict = self._on_send(request[2])
        if verdict is None:
            self._fenced = True
            return _command(CLOSE_PRODUCER, _number(1, request[1]) + _number(2, 99))
        position = _number(1, 5) + _number(2, len(self.sent))
        return (
            _command(SEND_RECEIPT, _number(1, request[1]) + _number(2, request[2]) + _text(3, position))
            if verdict
            else b""
        )

    def _subscribed(self, request: Fields) -> bytes:
        start = _fields(request[9])
        self._readers[request[4]] = request[1].decode(), (_signed(start[1]), _signed(start[2]))
        return _command(SUCCESS, _number(1, request[5]))

    def _last_position(self, request: Fields) -> bytes:
        topic, _start = self._readers[request[1]]
        return _command(GET_LAST + 1, _text(1, _message_id(max(self._entries[topic]))) + _number(2, request[2]))

    def _sent_to(self, reader: int) -> bytes:
        topic, start = self._readers[reader]
        self._readers[reader] = topic, max(self._entries[topic])
        return b"".join(
            _command(MESSAGE, _number(1, reader) + _text(2, _message_id(position)), data)
            for position, data in sorted(self._entries[topic].items())
            if position > start
        )


def _message_id(position: Position) -> bytes:
    return _number(1, position[0]) + _number(2, position[1])


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    octets = []
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes((*octets, number))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _command(kind: int, body: bytes, data: bytes = b"") -> bytes:
    command = _number(1, kind) + _text(kind, body)
    return struct.pack(">II", len(command) + 4 + len(data), len(command)) + command + data


def _fields(message: bytes) -> Fields:
    """Return the first protobuf field of each number."""
    octets = iter(message)
    fields: Fields = {}
    for octet in octets:
        key = _read_varint(octets, octet)
        kind = key & 7
        if kind == 0:
            value: Any = _read_varint(octets, next(octets))
        else:
            size = {1: 8, 5: 4}.get(kind) or _read_varint(octets, next(octets))
            value = bytes(next(octets) for _ in range(size))
        fields.setdefault(key >> 3, value)
    return fields


def _read_varint(octets: Iterator[int], octet: int) -> int:
    number, shift = octet & 127, 7
    while octet & 128:
        octet = next(octets)
        number |= (octet & 127) << shift
        shift += 7
    return number
