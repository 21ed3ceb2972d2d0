"""Runs transactions with Pulsar's Java client (tests/data/java/Transactions.java), whose record of them is correct."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming.sandbox.cluster import Cluster
from streaming.sandbox.parts import part_clients
from streaming.sandbox.parts.distribution import pulsar_home
from tests.integration.java_commands import JavaCommands

TxnId = tuple[int, int]


class Transactions(JavaCommands):
    """A JVM that runs transactions; a context manager for one thread.

    Args:
        service_url: of the cluster.
        pulsar: the folder of the version whose client is used, by default the sandbox's own.
    """

    def __init__(self, service_url: str, *, pulsar: Path | None = None) -> None:
        super().__init__("Transactions.java", f"{pulsar or pulsar_home()}/lib/*", [service_url])

    def run(self, topic: str, ends: str, start: int = 0) -> list[TxnId]:
        """Run a transaction with one message for each letter (a: abort, c: commit, o: leave open); return their ids."""
        answer = self.ask({"do": "run", "topic": topic, "ends": ends, "from": start})
        return [(most, least) for most, least in answer["ids"]]

    def read(self, topic: str, subscription: str, patience_seconds: float = 3) -> list[str]:
        """Return the values that a consumer gets, without acknowledging them."""
        command = {
            "do": "read",
            "topic": topic,
            "subscription": subscription,
            "patienceMs": int(patience_seconds * 1000),
        }
        return list(self.ask(command)["values"])

    def plain(self, topic: str, values: Sequence[str]) -> None:
        """Send messages without a transaction."""
        self.ask({"do": "plain", "topic": topic, "values": list(values)})


def admin(cluster: Cluster, method: str, path: str, body: Any = None) -> Any:
    """Send an admin request that must succeed; return the answer's JSON, or its text."""
    reply = part_clients.http_any(method, cluster.serving.admin, f"admin/{path}", body=body)
    assert reply.ok, f"{method} {path}: {reply.status} {reply.text[:400]}"
    try:
        return json.loads(reply.text)
    except ValueError:
        return reply.text
