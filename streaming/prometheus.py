"""Serves a registry of metrics for Prometheus."""

from prometheus_client import CollectorRegistry, start_http_server


def serve(registry: CollectorRegistry, address: str, port: int) -> int:
    """Serve on this address of the machine, in a thread, and return the port; 0 takes a free port."""
    server, _thread = start_http_server(port, addr=address, registry=registry)
    return int(server.server_port)
