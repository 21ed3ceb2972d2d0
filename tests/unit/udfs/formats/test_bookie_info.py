"""A bookie's znode contains the address of its HTTP server, if it has a server."""

import pytest

from udfs.formats.bookie_info import http_address, metrics_addresses, rpc_address
from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

# as a bookie of Pulsar 4.0.8 wrote it
REAL = (
    b'2!\n\nhttpserver\x10\xe1\x8a\x02\x1a\t127.0.0.1"\x04http'
    b'2#\n\x06bookie\x10\x83\xed\x02\x1a\t127.0.0.1"\nbookie-rpc'
)


def _info(**endpoint: object) -> bytes:
    defaults = {"id": "httpserver", "host": "b1", "port": 8000, "protocol": "http"}
    return BookieServiceInfoFormat(endpoints=[defaults | endpoint]).SerializeToString()


@pytest.mark.parametrize(
    ("data", "address"),
    [
        pytest.param(REAL, "http://127.0.0.1:34145", id="a real one"),
        pytest.param(_info(), "http://b1:8000", id="a host's name"),
        pytest.param(_info(host="fd00::1"), "http://[fd00::1]:8000", id="an IPv6 address"),
        pytest.param(_info(id="bookie"), None, id="no HTTP server"),
        pytest.param(_info(protocol="bookie-rpc"), None, id="another protocol"),
        pytest.param(_info(host=""), None, id="no host"),
        pytest.param(b"", None, id="an old bookie writes nothing"),
        pytest.param(b"\xff\xff", None, id="something else"),
    ],
)
def test_the_http_address_is_read_if_there_is_one(data: bytes, address: str | None) -> None:
    assert http_address(data) == address


@pytest.mark.parametrize(
    ("data", "address"),
    [
        pytest.param(REAL, ("127.0.0.1", 46723), id="a real one"),
        pytest.param(_info(id="bookie", protocol="bookie-rpc", port=3181), ("b1", 3181), id="a host's name"),
        pytest.param(_info(), None, id="only an HTTP server"),
        pytest.param(_info(id="bookie"), None, id="another protocol"),
        pytest.param(_info(id="bookie", protocol="bookie-rpc", port=0), None, id="no port"),
        pytest.param(b"", None, id="an old bookie writes nothing"),
        pytest.param(b"\xff\xff", None, id="something else"),
    ],
)
def test_the_address_for_clients_of_bookkeeper_is_read_if_there_is_one(
    data: bytes, address: tuple[str, int] | None
) -> None:
    assert rpc_address(data) == address


def test_a_bookie_without_an_http_server_serves_its_metrics_at_the_default_port() -> None:
    registered = {
        "b1:3181": "http://b1:9000",
        "b2:3181": "",
        "b3:3181": "",
        "b3:3182": "",
        "custom-id": "",
        "fd00::1:3181": "",
    }

    assert metrics_addresses(registered) == {
        "b1:3181": "http://b1:9000",
        "b2:3181": "http://b2:8000",
        "b3:3181": "",
        "b3:3182": "",
        "custom-id": "",
        "fd00::1:3181": "http://[fd00::1]:8000",
    }
