"""Pulsar's own Java client as a producer: one JVM (tests/data/java/OddMessages.java) for all messages of a test.

It does what the Python client can't: transactions, messages without a value, encryption with a key that nobody has.
"""

import base64
import json
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streaming.sandbox.distribution import pulsar_home
from streaming.spark.ivy import java

_SOURCE = Path(__file__).parent.parent / "data" / "java" / "OddMessages.java"
_MEMORY = "-Xmx256m"
_LOG_LINES = 30


class JavaError(Exception):
    """The Java client refused, in its own words."""


class JavaProducer:
    """Commands for OddMessages.java. A context manager, for one thread.

    transactions: whether to open any; the cluster must then have them switched on.
    """

    def __init__(self, service_url: str, *, transactions: bool = False) -> None:
        self._arguments = [service_url, *(["transactions"] if transactions else [])]
        self._log: deque[str] = deque(maxlen=_LOG_LINES)

    def __enter__(self) -> Self:
        command = [java(), _MEMORY, "-XX:TieredStopAtLevel=1", "-cp", f"{pulsar_home()}/lib/*", str(_SOURCE)]
        self._process = subprocess.Popen(
            [*command, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        threading.Thread(target=self._keep_log, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # an orderly end would abort what is meant to stay open
        self._process.wait()

    def send(
        self,
        topic: str,
        *messages: Mapping[str, Any],
        producer: Mapping[str, Any] | None = None,
        transaction: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Send messages together; returns their ids. What may be given stands in OddMessages.java."""
        command = {"do": "send", "topic": topic, "messages": messages, "producer": producer or {}}
        answer = self._ask(command | ({"transaction": transaction} if transaction else {}))
        self.newest_transaction = answer.get("transaction")
        return list(answer["ids"])

    def end(self, transaction: int, how: str) -> None:
        """Commit or abort an open transaction; its number was `newest_transaction` once its messages were sent."""
        self._ask({"do": "end", "transaction": transaction, "how": how})

    newest_transaction: int | None = None

    def _ask(self, command: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line.startswith("@"):
            raise JavaError("the JVM ended:\n" + "".join(self._log))
        answer: Mapping[str, Any] = json.loads(line[1:])
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer

    def _keep_log(self) -> None:
        assert self._process.stderr is not None
        self._log.extend(self._process.stderr)


def message(value: bytes | None, **options: Any) -> dict[str, Any]:
    """A message for send(); bytes among the options are written as the driver reads them."""
    given = {name: _text(each) if isinstance(each, bytes) else each for name, each in options.items()}
    return {"value": None if value is None else _text(value), **given}


def messages(values: Sequence[bytes | None], **options: Any) -> list[dict[str, Any]]:
    """The same options for several values."""
    return [message(value, **options) for value in values]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
