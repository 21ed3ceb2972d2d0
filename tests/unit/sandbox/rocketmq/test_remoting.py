import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streaming.sandbox.rocketmq.remoting import GET_ROUTE_BY_TOPIC, knows_topic


def frame(code: int, body: bytes = b"") -> bytes:
    header = json.dumps({"code": code, "language": "JAVA", "opaque": 1}).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


@contextmanager
def answering(answer: bytes, asked: list[bytes] | None = None) -> Iterator[str]:
    """Something that listens and answers once; asked gets what it was sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                if asked is not None:
                    asked.append(connection.recv(65536))
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def test_a_name_server_is_asked_in_its_own_protocol() -> None:
    asked: list[bytes] = []
    with answering(frame(0, b"{}"), asked) as address:
        assert knows_topic(address, "broker-a")

    length, header_length = struct.unpack(">ii", asked[0][:8])
    assert length == len(asked[0]) - 4 == 4 + header_length
    header = json.loads(asked[0][8:])
    assert (header["code"], header["extFields"]) == (GET_ROUTE_BY_TOPIC, {"topic": "broker-a"})


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(frame(17), id="it knows no such topic"),
        pytest.param(b"", id="it hangs up"),
        pytest.param(frame(0)[:9], id="it hangs up in the middle"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="it is a web server"),
    ],
)
def test_any_other_answer_is_no(answer: bytes) -> None:
    with answering(answer) as address:
        assert not knows_topic(address, "broker-a")


def test_a_port_without_a_listener_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

    assert not knows_topic(address, "broker-a")
