"""Pulsar's own Java client as a producer: one JVM (tests/data/java/OddMessages.java) for all messages of a test.

It does what the Python client can't: transactions, messages without a value, encryption with a key that nobody has.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from streaming.sandbox.distribution import pulsar_home
from tests.integration.java_commands import JavaCommands, JavaError
from udfs.entry_ranges import MessageAddress

__all__ = ["JavaError", "JavaProducer", "message", "messages"]


class JavaProducer(JavaCommands):
    """Commands for OddMessages.java. A context manager, for one thread.

    transactions: whether to open any; the cluster must then have them switched on.
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
        """Send messages together; returns their ids. What may be given stands in OddMessages.java."""
        command = {"do": "send", "topic": topic, "messages": messages, "producer": producer or {}}
        answer = self.ask(command | ({"transaction": transaction} if transaction else {}))
        self.newest_transaction = answer.get("transaction")
        for each in answer["ids"]:
            # `first;last` of a message in chunks
            for position in each.split(";"):
                ledger, entry, _partition, *index = position.split(":")
                self.acknowledged.append((topic, int(ledger), int(entry), int(index[0]) if index else -1))
        return list(answer["ids"])

    def end(self, transaction: int, how: str) -> None:
        """Commit or abort an open transaction; its number was `newest_transaction` once its messages were sent."""
        self.ask({"do": "end", "transaction": transaction, "how": how})

    newest_transaction: int | None = None


def message(value: bytes | None, **options: Any) -> dict[str, Any]:
    """A message for send(); bytes among the options are written as the driver reads them."""
    given = {name: _text(each) if isinstance(each, bytes) else each for name, each in options.items()}
    return {"value": None if value is None else _text(value), **given}


def messages(values: Sequence[bytes | None], **options: Any) -> list[dict[str, Any]]:
    """The same options for several values."""
    return [message(value, **options) for value in values]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
