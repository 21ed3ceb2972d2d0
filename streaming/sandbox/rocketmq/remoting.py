"""The part of RocketMQ's remoting protocol that asks a name server whether it knows a topic."""

import itertools
import json
import socket
import struct

GET_ROUTE_BY_TOPIC = 105
_SUCCESS = 0
_ANSWER_BYTES = 16 << 20
_opaque = itertools.count(1)


def knows_topic(address: str, topic: str, *, timeout_seconds: float = 2.0) -> bool:
    """Whether the name server at host:port has a route for the topic; False too if it does not answer."""
    try:
        return _ask(address, GET_ROUTE_BY_TOPIC, {"topic": topic}, timeout_seconds) == _SUCCESS
    except (OSError, ValueError):
        return False


def _ask(address: str, code: int, fields: dict[str, str], timeout_seconds: float) -> int:
    """Return the answer's code. A frame is its length, the header's length (first byte 0 for JSON), header and body."""
    host, _, port = address.rpartition(":")
    header = {"code": code, "language": "OTHER", "version": 0, "opaque": next(_opaque), "flag": 0, "extFields": fields}
    data = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), timeout=timeout_seconds) as connection:
        connection.sendall(struct.pack(">ii", 4 + len(data), len(data)) + data)
        with connection.makefile("rb") as answer:
            length, header_length = struct.unpack(">ii", _exactly(answer.read(8), 8))
            if not 0 < header_length & 0xFFFFFF <= length <= _ANSWER_BYTES:
                raise ValueError(f"{address} does not speak RocketMQ's protocol")
            fields = json.loads(_exactly(answer.read(header_length & 0xFFFFFF), header_length & 0xFFFFFF))
    return int(fields["code"])


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ValueError(f"got {len(data)} bytes instead of {length}")
    return data
