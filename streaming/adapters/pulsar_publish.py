"""Exactly-once publishing: a fixed producer name, ascending sequence ids, broker deduplication.

The producer's access is exclusive with fencing, so a forgotten second instance is cut off. The Python client
ignores sequence id 0: ours start at 1.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import pulsar

from streaming.config import PulsarSettings
from streaming.errors import FencedError, UnavailableError

_BULK = 1000
_WINDOW = 1000  # unacknowledged sends; more only costs memory


@dataclass(frozen=True, slots=True)
class Copy:
    """One message to publish. sequence_id ascends within a producer and is the same on every try."""

    sequence_id: int
    key: bytes | None
    payload: bytes
    properties: Mapping[str, str]
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """A message that needs no exactly-once: a request, which may come twice without harm."""

    key: bytes | None
    payload: bytes


@contextmanager
def client(settings: PulsarSettings) -> Iterator[Any]:
    """A Pulsar client, closed at the end."""
    options: dict[str, Any] = {
        "operation_timeout_seconds": settings.timeout_seconds,
        "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    }
    if settings.token_file:
        token = Path(settings.token_file)
        options["authentication"] = pulsar.AuthenticationToken(lambda: token.read_text().strip())
    if settings.tls_trust_certs_file:
        options["tls_trust_certs_file_path"] = settings.tls_trust_certs_file
    opened = pulsar.Client(settings.service_url, **options)
    try:
        yield opened
    finally:
        opened.close()


def publish(
    settings: PulsarSettings, topic: str, producer_name: str, copies: Iterable[Copy], *, is_exclusive: bool = True
) -> int:
    """Send copies in order and wait for every answer; returns how many were sent (stored before or now).

    Raises UnavailableError when any was not acknowledged (send all again), FencedError when another
    instance took the producer away.
    """
    with client(settings) as opened:
        try:
            producer = opened.create_producer(
                topic,
                producer_name=producer_name,
                access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing
                if is_exclusive
                else pulsar.ProducerAccessMode.Shared,
                batching_enabled=False,
                block_if_queue_full=True,
                max_pending_messages=_WINDOW,
                send_timeout_millis=settings.timeout_seconds * 1000,
            )
        except pulsar.PulsarException as error:
            raise UnavailableError(f"no producer on {topic}: {error}; is the broker up?") from error
        answers = _Answers()
        sent = 0
        for copy in copies:
            _send(producer, copy, answers)
            sent += 1
        producer.flush()
        answers.check(topic, sent)
        producer.close()
        return sent


def send_all(settings: PulsarSettings, topic: str, messages: Iterable[Message]) -> int:
    """Send messages to a (partitioned) topic by key; returns how many were acknowledged. Raises UnavailableError.

    Few are sent one an entry, so that what waits can be counted exactly; a bulk goes in batches.
    """
    rest = iter(messages)
    first = list(islice(rest, _BULK))
    with client(settings) as opened:
        try:
            producer = opened.create_producer(
                topic,
                block_if_queue_full=True,
                batching_enabled=len(first) == _BULK,
                batching_type=pulsar.BatchingType.KeyBased,
                batching_max_publish_delay_ms=5,
                max_pending_messages=_WINDOW,
                send_timeout_millis=settings.timeout_seconds * 1000,
            )
        except pulsar.PulsarException as error:
            raise UnavailableError(f"no producer on {topic}: {error}; run `ledger-reaper check`") from error
        answers = _Answers()
        sent = 0
        for message in chain(first, rest):
            key = {"partition_key": message.key.decode("utf-8", "replace")} if message.key else {}
            producer.send_async(message.payload, answers.take, **key)
            sent += 1
        producer.flush()
        answers.check(topic, sent)
        return sent


def _send(producer: Any, copy: Copy, answers: "_Answers") -> None:
    options: dict[str, Any] = {}
    if copy.key:
        options["partition_key"] = copy.key.decode("utf-8", "replace")
    if copy.delay_ms > 0:
        # Java's reconsumeLater sends deliverAfter too; Shared consumers honour it, our own query reads DELAY_TIME
        options["deliver_after"] = timedelta(milliseconds=copy.delay_ms)
    producer.send_async(
        copy.payload,
        answers.take,
        properties=dict(copy.properties),
        sequence_id=copy.sequence_id,
        **options,
    )


class _Answers:
    """Counts what the broker said; callbacks come from the client's own threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._acknowledged = 0
        self._failure: Any = None

    def take(self, result: Any, _message_id: Any) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                self._acknowledged += 1
            elif self._failure is None:
                self._failure = result

    def check(self, topic: str, sent: int) -> None:
        with self._lock:
            if self._failure == pulsar.Result.ProducerFenced:
                raise FencedError(f"another instance publishes to {topic}; this one stops")
            if self._failure is not None or self._acknowledged != sent:
                failure = self._failure or "no answer"
                missing = sent - self._acknowledged
                raise UnavailableError(f"{missing} of {sent} messages to {topic} not acknowledged: {failure}")
