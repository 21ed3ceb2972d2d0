"""Pulsar's Java client as a producer: one JVM (tests/data/java/OddMessages.java) for all messages of a test.

The Java client supports what the Python client can't do: transactions, messages without a value, and encryption with
an unknown key.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from streaming.sandbox.parts.distribution import pulsar_home
from tests.integration.java_commands import JavaCommands, JavaError
from udfs.entry_ranges import MessageAddress

__all__ = ["JavaError", "JavaProducer", "message", "messages"]


class JavaProducer(JavaCommands):
    """Sends commands to OddMessages.java; a context manager for one thread.

    Args:
        service_url: of the cluster.
        transactions: allow transactions; the cluster must have them enabled.
    """

    def __init__(self, service_url: str, *, transactions: bool = False) -> None:
        arguments = [service_url, *(["transactions"] if transactions else [])]
        self.acknowledged: list[MessageAddress] = []
        super().__init__("OddMessages.java", f"{pulsar_home()}/lib/*", arguments)

    def send(
        self,
        topic: str,
        *messages: Mapping[str, Any],
        producer: Mapping[str, Any] | None = None,
        transaction: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Send messages together; return their ids. OddMessages.java documents the options."""
        command = {"do": "send", "topic": topic, "messages": messages, "producer": producer or {}}
        answer = self.ask(command | ({"transaction": transaction} if transaction else {}))
        self.newest_transaction = answer.get("transaction")
        for message_id in answer["ids"]:
            # the id of a message in chunks is `first;last`
            for position in message_id.split(";"):
                ledger, entry, _partition, *index = position.split(":")
                self.acknowledged.append((topic, int(ledger), int(entry), int(index[0]) if index else -1))
        return list(answer["ids"])

    def end(self, transaction: int, how: str) -> None:
        """Commit or abort an open transaction; `newest_transaction` is its number after its messages were sent."""
        self.ask({"do": "end", "transaction": transaction, "how": how})

    newest_transaction: int | None = None


def message(value: bytes | None, **options: Any) -> dict[str, Any]:
    """Return a message for send(); bytes are encoded in base64."""
    encoded = {name: _text(option) if isinstance(option, bytes) else option for name, option in options.items()}
    return {"value": None if value is None else _text(value), **encoded}


def messages(values: Sequence[bytes | None], **options: Any) -> list[dict[str, Any]]:
    """Return messages with the same options."""
    return [message(value, **options) for value in values]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
