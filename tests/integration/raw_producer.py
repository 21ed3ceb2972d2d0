"""A producer that writes Pulsar's frames itself, so that a test can set every field of a message."""

import socket
import struct
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.pulsar_fields import Fields, Value, field, framed, metadata, named
from udfs.entry_ranges import MessageAddress
from udfs.formats.internal_stats import Position

_SEND = {
    "producer_id": 1,
    "sequence_id": 2,
    "num_messages": 3,
    "txnid_least_bits": 4,
    "txnid_most_bits": 5,
    "highest_sequence_id": 6,
    "is_chunk": 7,
    "marker": 8,
}
_CONNECT, _CONNECTED, _PRODUCER, _SEND_TYPE, _RECEIPT, _SEND_ERROR, _ERROR = 2, 3, 5, 6, 7, 8, 14
_PRODUCER_SUCCESS, _PING, _PONG, _LOOKUP, _LOOKED_UP = 17, 18, 19, 23, 24
_PROTOCOL_VERSION = 19
_TIMEOUT_S = 30.0
_IDLE_S = 20.0  # pings stay unanswered between calls, and the broker closes the connection after a minute


class RefusedByBrokerError(Exception):
    """The broker refused the message; the text is its own."""


class RawProducer:
    """A connection to a broker with a producer for each topic; a context manager for one thread."""

    def __init__(self, service_url: str) -> None:
        self.acknowledged: list[MessageAddress] = []
        url = urlsplit(service_url)
        self._address = (url.hostname or "127.0.0.1", url.port or 6650)
        self._producers: dict[str, int] = {}
        self._sequence = 0

    def __enter__(self) -> Self:
        self._connect()
        return self

    def reconnect(self) -> None:
        """Open a new connection; a broker's refusal may have closed the old connection and its producers."""
        self._socket.close()
        self._connect()

    def _connect(self) -> None:
        self._producers.clear()
        self._used_s = time.monotonic()
        self._socket = socket.create_connection(self._address, timeout=_TIMEOUT_S)
        self._command(_CONNECT, field(1, "raw") + field(4, _PROTOCOL_VERSION))
        self._expect(_CONNECTED)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, topic: str, payload: bytes, command: Fields | None = None, **fields: Value) -> Position:
        """Publish one entry.

        Args:
            topic: a partition or a topic without partitions.
            payload: of the entry.
            command: further fields of CommandSend.
            fields: of the metadata; the others are set as by a client.

        Raises:
            RefusedByBrokerError: the broker did not store the entry.
        """
        self._sequence += 1
        defaults: dict[str, Value] = {
            "producer_name": "raw",
            "sequence_id": self._sequence,
            "publish_time": int(time.time() * 1000),
        }
        return self.send_bytes(topic, metadata(**{**defaults, **fields}), payload, command)

    def send_bytes(self, topic: str, written: bytes, payload: bytes, command: Fields | None = None) -> Position:
        """Publish one entry with arbitrary bytes as its metadata; like `send` otherwise."""
        if time.monotonic() - self._used_s > _IDLE_S:
            self.reconnect()
        self._used_s = time.monotonic()
        producer = self._producer(topic)
        command_fields = {"producer_id": producer, "sequence_id": self._sequence, "num_messages": 1, **(command or {})}
        body = framed(written, payload)
        self._command(_SEND_TYPE, named(_SEND, command_fields), body)
        receipt = _parse(self._expect(_RECEIPT))
        stored = _parse(_bytes(receipt[3][0]))
        position = _number(stored[1][0]), _number(stored[2][0])
        self.acknowledged.append((topic, *position, -1))
        return position

    def _producer(self, topic: str) -> int:
        if topic not in self._producers:
            # before a look-up, no broker owns the topic's bundle
            self._command(_LOOKUP, field(1, topic) + field(2, 1))
            self._expect(_LOOKED_UP)
            number = len(self._producers) + 1
            self._command(_PRODUCER, field(1, topic) + field(2, number) + field(3, number))
            self._expect(_PRODUCER_SUCCESS)
            self._producers[topic] = number
        return self._producers[topic]

    def _command(self, kind: int, fields: bytes, body: bytes = b"") -> None:
        command = field(1, kind) + field(kind, fields)
        self._socket.sendall(struct.pack(">II", 4 + len(command) + len(body), len(command)) + command + body)

    def _expect(self, expected: int) -> bytes:
        while True:
            (size,) = struct.unpack(">I", self._read(4))
            frame = self._read(size)
            (length,) = struct.unpack(">I", frame[:4])
            command = _parse(frame[4 : 4 + length])
            kind = _number(command[1][0])
            if kind == expected:
                return _bytes(command[kind][0])
            if kind == _PING:
                self._command(_PONG, b"")
            elif kind in (_ERROR, _SEND_ERROR):
                raise RefusedByBrokerError(repr(_parse(_bytes(command[kind][0]))))

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            part = self._socket.recv(size - len(read))
            if not part:
                raise RefusedByBrokerError("the broker closed the connection")
            read += part
        return bytes(read)


def _parse(data: bytes) -> dict[int, list[int | bytes]]:
    """Return the values of each field number in a message without fixed-width fields."""
    fields: dict[int, list[int | bytes]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        tag = varint()
        if tag & 7 == 0:
            fields.setdefault(tag >> 3, []).append(varint())
        else:
            size = varint()
            fields.setdefault(tag >> 3, []).append(data[position : position + size])
            position += size
    return fields


def _number(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value
