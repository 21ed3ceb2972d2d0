"""Publishes under a producer name that the broker gives to one producer at a time, and returns the message ids.

While this producer has the name, no earlier producer of that name is connected. Messages of an earlier producer may
still be on their way from the broker to the bookies: settle() waits for them, so that a later read includes them.
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
    """A producer to all partitions of a topic. A context manager, for one thread."""

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
        """Take the name; wait until an earlier holder's connection has ended. Raises UnavailableError."""
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
        """Release the name. Messages that are not acknowledged by now may be stored or not."""
        self._client.__exit__(kind, error, traceback)

    def settle(self, pending_adds: Callable[[], int]) -> None:
        """Wait until the broker has no pending writes to the topic. Raises UnavailableError."""
        deadline = time.monotonic() + self._settings.timeout_seconds
        while pending_adds():
            if time.monotonic() > deadline:
                raise UnavailableError(f"{self._topic} is written to without a pause; try again at a quieter time")
            time.sleep(_POLL_SECONDS)

    def send(self, number: int, key: str, payload: bytes, properties: Mapping[str, str]) -> None:
        """Send a message.

        Args:
            number: the caller's number of the message; finish() returns the message id under it.
        """

        def on_result(result: Any, message_id: Any) -> None:
            with self._lock:
                if result == pulsar.Result.Ok:
                    self._ids[number] = message_id_text(
                        message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()
                    )
                elif self._failure is None:
                    self._failure = result

        options = {"partition_key": key} if key else {}
        self._producer.send_async(payload, on_result, properties=dict(properties), **options)
        self._sent += 1

    def finish(self) -> dict[int, str]:
        """Wait for all answers; return number -> message id. Raises UnavailableError if an answer is missing."""
        failure: Any = None
        try:
            self._producer.flush()
        except pulsar.PulsarException as error:
            failure = error
        with self._lock:
            missing = self._sent - len(self._ids)
            if missing:
                why = self._failure or failure or "no answer"
                raise UnavailableError(
                    f"{missing} of {self._sent} messages to {self._topic} were not acknowledged: {why}"
                )
            return dict(self._ids)

    def _take_name(self, opened: Any) -> Any:
        deadline = time.monotonic() + self._settings.timeout_seconds
        while True:
            try:
                # access mode Shared, because any tenant may publish to the request topic; nothing relies on the
                # broker's deduplication
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
                    raise UnavailableError(f"another replay to {self._topic} is running: {error}") from error
                time.sleep(_POLL_SECONDS)
            except pulsar.PulsarException as error:
                raise UnavailableError(f"no producer on {self._topic}: {error}; run `ledger-reaper check`") from error
