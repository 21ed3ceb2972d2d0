"""Checks that the configured port for metrics is free, before anything else starts."""

import socket

from streaming.config.sections import MetricsSettings
from streaming.errors import ConfigError


def require_free_port(metrics: MetricsSettings) -> None:
    """Raise ConfigError if metrics can't be served: the port is in use, or the address is not this machine's.

    The probe binds the port like the server, and releases it at once.
    """
    if metrics.port < 0:
        return
    family = socket.AF_INET6 if ":" in metrics.address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((metrics.address, metrics.port))
            probe.listen(1)
    except OSError as error:
        raise not_served(metrics, error) from error


def not_served(metrics: MetricsSettings, error: OSError) -> ConfigError:
    """Return the error for a metrics server that can't listen."""
    return ConfigError(
        f"metrics can't be served on {metrics.address}, port {metrics.port}: {error.strerror}. Set metrics.port to a "
        "free port (-1: no metrics) and metrics.address to an address of this machine; `ledger-reaper status` shows "
        "whether this service runs already"
    )
