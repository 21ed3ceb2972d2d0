"""Exactly-once publishing: a fixed producer name, ascending sequence ids, broker deduplication.

The producer's access is exclusive with fencing, so a forgotten second instance is cut off. The Python client
ignores sequence id 0: ours start at 1.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import pulsar
from pulsar.exceptions import ProducerFenced

from streaming.adapters.pulsar.http import require_safe_token
from streaming.config.sections import PulsarSettings
from streaming.errors import FencedError, UnavailableError
from streaming.ports import Copy

_BULK = 1000
_WINDOW = 1000  # unacknowledged sends; more only costs memory
# Bytes that may be unacknowledged: a dead letter may hold a megabyte, and the client keeps it until it is answered.
_WINDOW_BYTES = 32 * 1024 * 1024
_FENCED = "another instance publishes to {}; this one stops"


@dataclass(frozen=True, slots=True)
class Message:
    """A message that needs no exactly-once: a request, which may come twice without harm."""

    key: bytes | None
    payload: bytes


@contextmanager
def client(settings: PulsarSettings) -> Iterator[Any]:
    """A Pulsar client, closed at the end."""
    opened = new_client(settings)
    try:
        yield opened
    finally:
        with suppress(pulsar.PulsarException):  # what was sent has its answers, or is sent again
            opened.close()


def new_client(settings: PulsarSettings) -> Any:
    """A Pulsar client; the caller closes it. Raises ConfigError, UnavailableError."""
    require_safe_token(settings)
    options: dict[str, Any] = {
        "operation_timeout_seconds": settings.timeout_seconds,
        "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    }
    if settings.token_file:
        token = Path(settings.token_file)
        options["authentication"] = pulsar.AuthenticationToken(lambda: token.read_text().strip())
    if settings.tls_trust_certs_file:
        options["tls_trust_certs_file_path"] = settings.tls_trust_certs_file
    options["tls_validate_hostname"] = settings.tls_check_hostname
    return pulsar.Client(settings.service_url, **options)


def publish(
    settings: PulsarSettings, topic: str, producer_name: str, copies: Iterable[Copy], *, is_exclusive: bool = True
) -> int:
    """Send copies in order and wait for every answer; returns how many were sent (stored before or now).

    Raises UnavailableError when any was not acknowledged (send all again), FencedError when another
    instance took the producer away.
    """
    answers = _Answers()
    sent = under_way = 0
    with _translated(topic, answers), client(settings) as opened:
        producer = _producer(opened, settings, topic, producer_name, is_exclusive=is_exclusive)
        for copy in copies:
            _send(producer, copy, answers)
            under_way += copy.size
            if under_way > _WINDOW_BYTES:
                producer.flush()
                under_way = 0
            sent += 1
        producer.flush()
    answers.check(topic, sent)
    return sent


def last_sequence_ids(settings: PulsarSettings, producers: Mapping[str, str]) -> dict[str, int]:
    """What the broker has of each producer (topic -> name), -1: nothing. Takes them from any other instance.

    Raises UnavailableError, FencedError.
    """
    found = {}
    with client(settings) as opened:
        for topic, name in producers.items():
            with _translated(topic, _Answers()):
                producer = _producer(opened, settings, topic, name, is_exclusive=True)
                found[topic] = producer.last_sequence_id()
                producer.close()
    return found


def send_all(settings: PulsarSettings, topic: str, messages: Iterable[Message]) -> int:
    """Send messages to a (partitioned) topic by key; returns how many were acknowledged. Raises UnavailableError.

    Few are sent one an entry, so that what waits can be counted exactly; a bulk goes in batches.
    """
    rest = iter(messages)
    first = list(islice(rest, _BULK))
    answers = _Answers()
    sent = 0
    with _translated(topic, answers), client(settings) as opened:
        producer = opened.create_producer(
            topic,
            block_if_queue_full=True,
            batching_enabled=len(first) == _BULK,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=5,
            max_pending_messages=_WINDOW,
            send_timeout_millis=settings.timeout_seconds * 1000,
        )
        for message in chain(first, rest):
            key = {"partition_key": message.key.decode("utf-8", "replace")} if message.key else {}
            producer.send_async(message.payload, answers.take, **key)
            sent += 1
        producer.flush()
    answers.check(topic, sent)
    return sent


@contextmanager
def _translated(topic: str, answers: "_Answers") -> Iterator[None]:
    """Raise Pulsar's errors as ours."""
    try:
        yield
    except pulsar.PulsarException as error:
        if isinstance(error, ProducerFenced) or answers.has_been_fenced:
            raise FencedError(_FENCED.format(topic)) from error
        raise UnavailableError(f"publishing to {topic}: {error}; `ledger-reaper check` says more") from error


def _producer(opened: Any, settings: PulsarSettings, topic: str, name: str, *, is_exclusive: bool) -> Any:
    modes = pulsar.ProducerAccessMode
    return opened.create_producer(
        topic,
        producer_name=name,
        access_mode=modes.ExclusiveWithFencing if is_exclusive else modes.Shared,
        batching_enabled=False,
        block_if_queue_full=True,
        max_pending_messages=_WINDOW,
        send_timeout_millis=settings.timeout_seconds * 1000,
    )


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

    @property
    def has_been_fenced(self) -> bool:
        with self._lock:
            return bool(self._failure == pulsar.Result.ProducerFenced)

    def check(self, topic: str, sent: int) -> None:
        if self.has_been_fenced:
            raise FencedError(_FENCED.format(topic))
        with self._lock:
            if self._failure is not None or self._acknowledged != sent:
                failure = self._failure or "no answer"
                missing = sent - self._acknowledged
                raise UnavailableError(f"{missing} of {sent} messages to {topic} not acknowledged: {failure}")
