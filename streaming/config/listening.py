"""Listens on the port for metrics before anything else starts, so that no other process can take the port."""

import os
import socket

from streaming.config.packages import has_package
from streaming.config.sections import MetricsSettings
from streaming.errors import ConfigError


def listen(metrics: MetricsSettings) -> socket.socket | None:
    """Listen for Prometheus; None if metrics.port is -1. The caller closes the socket.

    Raises ConfigError if the port is in use, if the address is not this machine's, or if metrics.otlp_endpoint is set
    and OpenTelemetry is not installed.
    """
    if metrics.otlp_endpoint and not has_package("opentelemetry.exporter.otlp.proto.http"):
        raise ConfigError(
            "metrics.otlp_endpoint needs OpenTelemetry's exporter: install ledger-reaper[otlp], or remove the key"
        )
    if metrics.port < 0:
        return None
    advice = (
        "Set metrics.port to a free port (-1: no metrics) and metrics.address to an address of this machine; "
        "`ledger-reaper status` shows whether this service runs already"
    )
    return listen_on(metrics.address, metrics.port, advice)


def listen_on(address: str, port: int, advice: str) -> socket.socket:
    """Listen on a port of an address of this machine; port 0 takes a free one. Raises ConfigError, with the advice."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(f"metrics can't be served on {address}, port {port}: {why}. {advice}") from error
