"""Checks results with the bookie's own admin API: independent code like BookKeeper's shell, without a JVM start."""

import json

from streaming.errors import UnavailableError
from streaming.sandbox import part_clients
from streaming.sandbox.cluster import Cluster


def list_ledgers(cluster: Cluster) -> set[int]:
    """Return the ids that BookKeeper's ledger manager lists now. Raises UnavailableError."""
    reply = part_clients.http_any("GET", cluster.serving.bookie_http, "api/v1/ledger/list")
    if not reply.ok:
        raise UnavailableError(f"the bookie does not list the ledgers: {reply.status} {reply.text[:200]}")
    return {int(ledger_id) for ledger_id in json.loads(reply.text)}
