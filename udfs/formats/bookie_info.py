"""A bookie's HTTP address: BookieServiceInfo, in its znode below `available`."""

from collections.abc import Mapping

from google.protobuf.message import DecodeError

from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

_HTTP_SERVER = "httpserver"


def http_address(data: bytes) -> str | None:
    """Return "http://host:port"; None if the bookie has no HTTP server, or wrote an unknown format."""
    try:
        info = BookieServiceInfoFormat.FromString(data)
    except DecodeError:
        return None
    for endpoint in info.endpoints:
        if endpoint.id == _HTTP_SERVER and endpoint.protocol in ("http", "https") and endpoint.host and endpoint.port:
            host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            return f"{endpoint.protocol}://{host}:{endpoint.port}"
    return None


def http_addresses(registered: Mapping[str, str]) -> tuple[str, ...]:
    """Return each HTTP address once. registered: bookie id -> address, "" for none."""
    return tuple(dict.fromkeys(address for address in registered.values() if address))
