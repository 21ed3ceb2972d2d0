"""A producer that writes Pulsar's frames by hand, so that every field of a message can be what a test likes."""

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
_IDLE_S = 20.0  # nobody answers the broker's pings in between, and after a minute it hangs up


class RefusedByBrokerError(Exception):
    """The broker would not store the message, in its own words."""


class RawProducer:
    """A connection to a broker with producers on it, one a topic. A context manager; from one thread."""

    def __init__(self, service_url: str) -> None:
        self.acknowledged: list[MessageAddress] = []
        where = urlsplit(service_url)
        self._address = (where.hostname or "127.0.0.1", where.port or 6650)
        self._producers: dict[str, int] = {}
        self._sequence = 0

    def __enter__(self) -> Self:
        self._connect()
        return self

    def connect_anew(self) -> None:
        """Close the connection and its producers, as a broker's refusal may have done already, and open another."""
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
        """Store one entry; fields of its metadata that are not given are as a client would set them.

        command: further fields of CommandSend. Raises RefusedByBrokerError.
        """
        self._sequence += 1
        usual: dict[str, Value] = {
            "producer_name": "raw",
            "sequence_id": self._sequence,
            "publish_time": int(time.time() * 1000),
        }
        return self.send_bytes(topic, metadata(**{**usual, **fields}), payload, command)

    def send_bytes(self, topic: str, written: bytes, payload: bytes, command: Fields | None = None) -> Position:
        """Store one entry whose metadata is any bytes at all. Raises RefusedByBrokerError."""
        if time.monotonic() - self._used_s > _IDLE_S:
            self.connect_anew()
        self._used_s = time.monotonic()
        producer = self._producer(topic)
        said = {"producer_id": producer, "sequence_id": self._sequence, "num_messages": 1, **(command or {})}
        body = framed(written, payload)
        self._command(_SEND_TYPE, named(_SEND, said), body)
        receipt = _parse(self._expect(_RECEIPT))
        stored = _parse(_bytes(receipt[3][0]))
        position = _number(stored[1][0]), _number(stored[2][0])
        self.acknowledged.append((topic, *position, -1))
        return position

    def _producer(self, topic: str) -> int:
        if topic not in self._producers:
            # without a look-up, the broker has not taken the topic's namespace
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

    def _expect(self, wanted: int) -> bytes:
        while True:
            (size,) = struct.unpack(">I", self._read(4))
            frame = self._read(size)
            (length,) = struct.unpack(">I", frame[:4])
            command = _parse(frame[4 : 4 + length])
            kind = _number(command[1][0])
            if kind == wanted:
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
    """Field number -> its values, of a message without fixed-width fields."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            fields.setdefault(tag >> 3, []).append(varint())
        else:
            size = varint()
            fields.setdefault(tag >> 3, []).append(data[at : at + size])
            at += size
    return fields


def _number(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value
