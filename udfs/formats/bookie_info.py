"""A bookie's addresses: BookieServiceInfo, in its znode below `available`."""

from collections import Counter
from collections.abc import Iterator, Mapping

from google.protobuf.message import DecodeError

from udfs.proto.bookie_info_pb2 import BookieServiceInfoFormat

_HTTP_SERVER = "httpserver"
_RPC, _RPC_PROTOCOL = "bookie", "bookie-rpc"
_METRICS_PORT = 8000  # prometheusStatsHttpPort


def http_address(data: bytes) -> str | None:
    """Return "http://host:port"; None if the bookie has no HTTP server, or wrote an unknown format."""
    for endpoint in _endpoints(data, _HTTP_SERVER):
        if endpoint.protocol in ("http", "https"):
            return f"{endpoint.protocol}://{_in_url(endpoint.host)}:{endpoint.port}"
    return None


def rpc_address(data: bytes) -> tuple[str, int] | None:
    """Return host and port for clients of BookKeeper; None if the bookie wrote none, or an unknown format."""
    for endpoint in _endpoints(data, _RPC):
        if endpoint.protocol == _RPC_PROTOCOL:
            return endpoint.host, endpoint.port
    return None


def _endpoints(data: bytes, name: str) -> Iterator[BookieServiceInfoFormat.Endpoint]:
    """Yield the endpoints with this id that have host and port; none of an unknown format."""
    try:
        info = BookieServiceInfoFormat.FromString(data)
    except DecodeError:
        return
    for endpoint in info.endpoints:
        if endpoint.id == name and endpoint.host and endpoint.port:
            yield endpoint


def http_addresses(registered: Mapping[str, str]) -> tuple[str, ...]:
    """Return each HTTP address once. registered: bookie id -> address, "" for none."""
    return tuple(dict.fromkeys(address for address in registered.values() if address))


def metrics_addresses(registered: Mapping[str, str]) -> dict[str, str]:
    """Return bookie id -> the address of its metrics, "" if it can't be guessed.

    With httpServerEnabled=false, which is the default, a bookie registers no address, but serves its metrics at port
    8000. A second bookie on the same machine can't use that port, so it is unknown which of the two serves there.

    Args:
        registered: bookie id -> registered HTTP address, "" for none.
    """
    hosts = {bookie: bookie.rpartition(":")[0] for bookie in registered}
    bookies_on = Counter(hosts.values())
    return {
        bookie: address
        or (
            f"http://{_in_url(hosts[bookie])}:{_METRICS_PORT}"
            if hosts[bookie] and bookies_on[hosts[bookie]] == 1
            else ""
        )
        for bookie, address in registered.items()
    }


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
