"""Implements RequestSender on a topic: a producer that stays open and sends each request as an entry of its own."""

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pulsar

from streaming.adapters.pulsar.publish import new_client
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.formats.message_id import message_id_text

_WINDOW = 1000  # unacknowledged requests; send blocks at this number


class PulsarRequestSender:
    """RequestSender over pulsar-client. Connects at once. Thread-safe. Every method raises UnavailableError."""

    def __init__(self, settings: PulsarSettings, topic: str) -> None:
        self._topic = topic
        self._client = new_client(settings)
        self._in_flight: set[Future[str]] = set()
        self._lock = threading.Lock()
        try:
            self._producer = self._client.create_producer(
                topic,
                batching_enabled=False,
                block_if_queue_full=True,
                max_pending_messages=_WINDOW,
                send_timeout_millis=settings.timeout_seconds * 1000,
            )
        except pulsar.PulsarException as error:
            with suppress(pulsar.PulsarException):
                self._client.close()
            raise self._unavailable(error) from error

    def send(self, key: bytes | None, payload: bytes) -> "Future[str]":
        """Send a request; the future returns its message id once the bookies have stored it."""
        answer: Future[str] = Future()
        answer.set_running_or_notify_cancel()  # a request that was sent can't be cancelled
        options = {"partition_key": key.decode("utf-8", "replace")} if key else {}

        def on_result(result: Any, stored: Any) -> None:
            if not self._claim(answer):
                return
            if result == pulsar.Result.Ok:
                answer.set_result(
                    message_id_text(stored.ledger_id(), stored.entry_id(), stored.partition(), stored.batch_index())
                )
            else:
                answer.set_exception(self._unavailable(result))

        with self._lock:
            self._in_flight.add(answer)
        try:
            self._producer.send_async(payload, on_result, **options)
        except pulsar.PulsarException as error:
            self._claim(answer)
            raise self._unavailable(error) from error
        return answer

    def close(self) -> None:
        """Wait for the requests in flight, then disconnect. A second call does nothing."""
        with suppress(pulsar.PulsarException):
            self._producer.flush()
        with suppress(pulsar.PulsarException):
            self._client.close()
        with self._lock:
            left, self._in_flight = self._in_flight, set()
        for answer in left:  # the client calls no callbacks after it is closed
            answer.set_exception(self._unavailable("the producer was closed before the broker answered"))

    def _claim(self, answer: "Future[str]") -> bool:
        """Return True to the first caller only; that caller sets the answer."""
        with self._lock:
            is_open = answer in self._in_flight
            self._in_flight.discard(answer)
        return is_open

    def _unavailable(self, why: object) -> UnavailableError:
        return UnavailableError(
            f"a request to {self._topic} was not acknowledged ({why}), so it may or may not be stored; send it "
            "again, which is harmless. `ledger-reaper check` shows more"
        )
