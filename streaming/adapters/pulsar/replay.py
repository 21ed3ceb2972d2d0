"""Publishing under a name that the broker gives to one producer at a time, and knowing where each message went.

1. Who holds the name knows that no earlier producer of that name is connected; what such a one had handed to the
   broker may still be on its way to the bookies: settle() waits for it, so that a look at the topic sees it.
2. The request topic is everybody's: access stays shared, and nothing relies on the broker's deduplication.
"""

import time
from collections.abc import Callable, Mapping
from threading import Lock
from types import TracebackType
from typing import Any, Self

import pulsar

from streaming.adapters.pulsar.publish import client
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.formats.message_id import message_id_text

_POLL_SECONDS = 0.2
_WINDOW = 1000  # unacknowledged sends


class NamedProducer:
    """A producer to all partitions of a topic. A context manager; from one thread."""

    def __init__(self, settings: PulsarSettings, topic: str, name: str) -> None:
        self._settings = settings
        self._topic = topic
        self._name = name
        self._client: Any = None
        self._producer: Any = None
        self._lock = Lock()
        self._sent = 0
        self._ids: dict[int, str] = {}
        self._failure: Any = None

    def __enter__(self) -> Self:
        """Take the name; waits for an earlier holder's connection to end. Raises UnavailableError."""
        self._client = client(self._settings)
        opened = self._client.__enter__()
        try:
            self._producer = self._take_name(opened)
        except BaseException:
            self._client.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the name back. What was not acknowledged by now may or may not be stored."""
        self._client.__exit__(kind, error, traceback)

    def settle(self, pending_adds: Callable[[], int]) -> None:
        """Return when the broker has nothing under way to the topic. Raises UnavailableError."""
        deadline = time.monotonic() + self._settings.timeout_seconds
        while pending_adds():
            if time.monotonic() > deadline:
                raise UnavailableError(f"{self._topic} is always being written to; try again when it is quieter")
            time.sleep(_POLL_SECONDS)

    def send(self, number: int, key: str, payload: bytes, properties: Mapping[str, str]) -> None:
        """Put a message under way; number: the caller's own, told with the message id in the end."""

        def taken(result: Any, message_id: Any) -> None:
            with self._lock:
                if result == pulsar.Result.Ok:
                    self._ids[number] = message_id_text(
                        message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()
                    )
                elif self._failure is None:
                    self._failure = result

        named = {"partition_key": key} if key else {}
        self._producer.send_async(payload, taken, properties=dict(properties), **named)
        self._sent += 1

    def finish(self) -> dict[int, str]:
        """Wait for every answer; returns number -> message id. Raises UnavailableError when any is missing."""
        failure: Any = None
        try:
            self._producer.flush()
        except pulsar.PulsarException as error:
            failure = error
        with self._lock:
            missing = self._sent - len(self._ids)
            if missing:
                why = self._failure or failure or "no answer"
                raise UnavailableError(f"{missing} of {self._sent} messages to {self._topic} not acknowledged: {why}")
            return dict(self._ids)

    def _take_name(self, opened: Any) -> Any:
        deadline = time.monotonic() + self._settings.timeout_seconds
        while True:
            try:
                return opened.create_producer(
                    self._topic,
                    producer_name=self._name,
                    batching_enabled=False,
                    block_if_queue_full=True,
                    max_pending_messages=_WINDOW,
                    send_timeout_millis=self._settings.timeout_seconds * 1000,
                )
            except pulsar.ProducerBusy as error:
                if time.monotonic() > deadline:
                    raise UnavailableError(f"another replay to {self._topic} is under way: {error}") from error
                time.sleep(_POLL_SECONDS)
            except pulsar.PulsarException as error:
                raise UnavailableError(f"no producer on {self._topic}: {error}; run `ledger-reaper check`") from error
