"""The port RequestSender on one topic: a producer that stays open, each request an entry of its own."""

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pulsar

from streaming.adapters.pulsar.publish import new_client
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from udfs.formats.message_id import message_id_text

_WINDOW = 1000  # unacknowledged requests; send waits while there are so many


class PulsarRequestSender:
    """RequestSender over pulsar-client. Connects when made. Thread-safe. Raises UnavailableError, as the port says."""

    def __init__(self, settings: PulsarSettings, topic: str) -> None:
        self._topic = topic
        self._client = new_client(settings)
        self._under_way: set[Future[str]] = set()
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
        """Put a request under way; the future is its message id, once the bookies have it."""
        answer: Future[str] = Future()
        answer.set_running_or_notify_cancel()  # nobody can take back what was sent
        options = {"partition_key": key.decode("utf-8", "replace")} if key else {}

        def take(result: Any, stored: Any) -> None:
            if not self._is_ours_to_answer(answer):
                return
            if result == pulsar.Result.Ok:
                answer.set_result(
                    message_id_text(stored.ledger_id(), stored.entry_id(), stored.partition(), stored.batch_index())
                )
            else:
                answer.set_exception(self._unavailable(result))

        with self._lock:
            self._under_way.add(answer)
        try:
            self._producer.send_async(payload, take, **options)
        except pulsar.PulsarException as error:
            self._is_ours_to_answer(answer)
            raise self._unavailable(error) from error
        return answer

    def close(self) -> None:
        """Wait for what is under way, then disconnect. A second call does nothing."""
        with suppress(pulsar.PulsarException):
            self._producer.flush()
        with suppress(pulsar.PulsarException):
            self._client.close()
        with self._lock:
            left, self._under_way = self._under_way, set()
        for answer in left:  # the client calls nobody back once it is closed
            answer.set_exception(self._unavailable("the producer was closed before the broker answered"))

    def _is_ours_to_answer(self, answer: "Future[str]") -> bool:
        """Whether nobody has answered yet; from now on, nobody else will."""
        with self._lock:
            is_open = answer in self._under_way
            self._under_way.discard(answer)
        return is_open

    def _unavailable(self, why: object) -> UnavailableError:
        return UnavailableError(
            f"a request to {self._topic} was not acknowledged, and may be stored or not: {why}; send it again, which "
            "is harmless. `ledger-reaper check` says more"
        )
