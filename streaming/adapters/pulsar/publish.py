"""Publishes copies exactly once, by a fixed producer name, ascending sequence ids and the broker's deduplication.

send_to_topics uses none of these, since a duplicate request is harmless.

The Python client ignores sequence id 0, so sequence ids start at 1.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from threading import Condition
from typing import Any

import pulsar
from pulsar.exceptions import ProducerFenced

from streaming.adapters.pulsar.credentials import Credentials
from streaming.adapters.pulsar.http import require_safe_secret
from streaming.adapters.pulsar.readers.frames import Connection
from streaming.adapters.pulsar.tls import Tls, tls_context
from streaming.config.hosts import hosts_of
from streaming.config.sections import PulsarSettings
from streaming.errors import FencedError, ReaperError, UnavailableError
from streaming.ports import Copy

_BULK = 1000
_WINDOW = 1000  # unacknowledged sends; more only costs memory
# unacknowledged bytes: a dead letter may have a megabyte, and the client keeps it until it is acknowledged
_WINDOW_BYTES = 32 * 1024 * 1024
_BATCH_DELAY_MS = 5
_MOST_PRODUCERS = 100  # open at once
_PROBE_SECONDS = 5
_FENCED = "another instance publishes to {}; this one stops"


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A deletion request that is to be published; a duplicate is harmless."""

    key: bytes | None
    payload: bytes


@contextmanager
def client(settings: PulsarSettings) -> Iterator[Any]:
    """Open a Pulsar client that is closed at the end. Raises ConfigError, UnavailableError."""
    opened = new_client(settings, answering_host(settings))
    try:
        yield opened
    finally:
        with suppress(pulsar.PulsarException):  # all messages are acknowledged by now, or will be sent again
            opened.close()


def new_client(settings: PulsarSettings, url: str = "") -> Any:
    """Open a Pulsar client; the caller closes it. Raises ConfigError, UnavailableError.

    url: of a single broker, for a client that is opened again after a failure. "": service_url.
    """
    require_safe_secret(settings)
    credentials = Credentials.of(settings)
    options: dict[str, Any] = {
        "operation_timeout_seconds": settings.timeout_seconds,
        "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    }
    if credentials.basic_file:
        # unlike the others, this client keeps user and password for as long as it is open
        options["authentication"] = pulsar.AuthenticationBasic(*credentials.user_and_password())
    elif credentials.tls_cert_file:
        tls_context(Tls.of(settings))  # names faults of the files better than the client does
        options["authentication"] = pulsar.AuthenticationTLS(credentials.tls_cert_file, credentials.tls_key_file)
    elif credentials.sends_secret:
        credentials.secret()  # names a fault of it; the client could not
        options["authentication"] = pulsar.AuthenticationToken(credentials.secret)
    if settings.tls_trust_certs_file:
        options["tls_trust_certs_file_path"] = settings.tls_trust_certs_file
    options["tls_validate_hostname"] = settings.tls_check_hostname
    return pulsar.Client(url or settings.service_url, **options)


def answering_host(settings: PulsarSettings) -> str:
    """Return the URL of a single host of service_url that answers, or of any if none does.

    pulsar-client sends its requests to the hosts in turn, and fails if one of them hangs. Each new client starts with
    the first host, so it would fail again and again.
    """
    hosts = hosts_of(settings.service_url)
    if len(hosts) > 1:
        briefly = settings.model_copy(update={"timeout_seconds": min(settings.timeout_seconds, _PROBE_SECONDS)})
        with suppress(ReaperError), Connection(briefly, settings.service_url):
            pass
    return hosts.in_order[0]


def publish(
    settings: PulsarSettings, topic: str, producer_name: str, copies: Iterable[Copy], *, is_exclusive: bool = True
) -> int:
    """Send copies in order and wait for all answers; return how many were sent: each is stored now, or was before.

    Raises UnavailableError if a copy was not acknowledged (send all again), FencedError if another instance took the
    producer name.
    """
    return _publish(settings, topic, copies, _single(producer_name, is_exclusive=is_exclusive))


def publish_in_batches(settings: PulsarSettings, topic: str, producer_name: str, copies: Iterable[Copy]) -> int:
    """Do the same as publish, but with many copies in an entry, and while other producers publish to the topic."""
    options = {
        "producer_name": producer_name,
        "batching_enabled": True,
        # batches by key would change the order of the copies
        "batching_type": pulsar.BatchingType.Default,
        "batching_max_publish_delay_ms": _BATCH_DELAY_MS,
    }
    return _publish(settings, topic, copies, options)


def _publish(settings: PulsarSettings, topic: str, copies: Iterable[Copy], options: Mapping[str, Any]) -> int:
    answers = _Answers(settings.timeout_seconds)
    sent = unanswered_bytes = 0
    with _translated(topic, answers), client(settings) as opened:
        # No copy may be stored after a lost copy: once a copy is stored, all copies before it count as stored, and
        # brokers drop a copy with a lower sequence id. A client with a timeout gives up single copies and sends later
        # ones. So the client gets no timeout: it sends all unanswered copies again, in order, each time it connects.
        # _Answers gives up instead.
        producer = _producer(opened, topic, {**options, "send_timeout_millis": 0})
        for copy in copies:
            is_full = unanswered_bytes > _WINDOW_BYTES
            if not answers.wait(sent, 0 if is_full else _WINDOW - 1):
                break
            unanswered_bytes = copy.size if is_full else unanswered_bytes + copy.size
            _send(producer, copy, answers)
            sent += 1
        answers.wait(sent, 0)
    answers.check(topic, sent)
    return sent


def last_sequence_ids(settings: PulsarSettings, producers: Mapping[str, str]) -> dict[str, int]:
    """Return topic -> the last sequence id that the broker stored from its producer; -1: none.

    This disconnects any other instance that publishes under one of these producer names. Raises UnavailableError,
    FencedError.

    Args:
        producers: topic -> producer name.
    """
    last_ids = {}
    with client(settings) as opened:
        for topic, name in producers.items():
            with _translated(topic, _Answers(settings.timeout_seconds)):
                producer = _producer(opened, topic, _single(name, is_exclusive=True))
                last_ids[topic] = producer.last_sequence_id()
                producer.close()
    return last_ids


def send_all(settings: PulsarSettings, topic: str, requests: Iterable[OutgoingRequest]) -> int:
    """Send requests to a topic by key; return how many were acknowledged. Raises UnavailableError."""
    sent = send_to_topics(settings, ((topic, request) for request in requests)).get(topic, SentTo())
    if sent.why:
        raise UnavailableError(sent.why)
    return sent.requests


@dataclass(slots=True)
class SentTo:
    """The requests to one topic."""

    requests: int = 0  # without those that were given up after a failure
    given_up: int = 0  # not sent, because the topic had failed
    why: str = ""  # the first failure, after which any of the requests may be missing


def send_to_topics(settings: PulsarSettings, requests: Iterable[tuple[str, OutgoingRequest]]) -> dict[str, SentTo]:
    """Send requests to topics, those of a key in their order, and wait for all answers; return what each topic got.

    A topic that fails is given up; the others are not. Raises what `requests` raises, and ConfigError,
    UnavailableError if no client can be opened.

    Args:
        settings: how to connect.
        requests: topic and request; the topics exist.
    """
    rest = iter(requests)
    first = list(islice(rest, _BULK))
    options = {
        # few requests become an entry each, so that waiting requests can be counted exactly
        "batching_enabled": len(first) == _BULK,
        "batching_type": pulsar.BatchingType.KeyBased,
        "batching_max_publish_delay_ms": _BATCH_DELAY_MS,
        "send_timeout_millis": settings.timeout_seconds * 1000,
    }
    results: dict[str, SentTo] = {}
    if not first:
        return results
    with client(settings) as opened:
        producers: OrderedDict[str, _RequestProducer] = OrderedDict()
        for topic, request in chain(first, rest):
            result = results.setdefault(topic, SentTo())
            if topic not in producers and not result.why:
                while len(producers) >= _MOST_PRODUCERS:
                    _oldest, producer = producers.popitem(last=False)
                    producer.finish()
                producers[topic] = _RequestProducer(opened, topic, result, options, settings.timeout_seconds)
            if result.why:
                result.given_up += 1
            else:
                producers.move_to_end(topic)
                producers[topic].send(request)
        for producer in producers.values():
            producer.finish()
    return results


class _RequestProducer:
    """A producer on one topic, whose failures are in its result."""

    def __init__(
        self, opened: Any, topic: str, result: SentTo, options: Mapping[str, Any], patience_seconds: float
    ) -> None:
        self._topic = topic
        self._result = result
        self._answers = _Answers(patience_seconds)
        self._sent = 0  # by this producer: an earlier one of the topic may have been closed
        self._producer: Any = None
        try:
            with _translated(topic, self._answers):
                self._producer = _producer(opened, topic, options)
        except (UnavailableError, FencedError) as error:  # any producer may fence others off a lane
            result.why = str(error)

    def send(self, request: OutgoingRequest) -> None:
        key = {"partition_key": request.key.decode("utf-8", "replace")} if request.key else {}
        try:
            with _translated(self._topic, self._answers):
                self._producer.send_async(request.payload, self._answers.take, **key)
                self._sent += 1
                self._result.requests += 1
        except (UnavailableError, FencedError) as error:
            self._result.why = self._result.why or str(error)
            self._result.given_up += 1
        if self._answers.has_failed:
            self.finish()

    def finish(self) -> None:
        """Wait for all answers, and disconnect. A second call does nothing."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            with _translated(self._topic, self._answers):
                producer.flush()
                self._answers.check(self._topic, self._sent)
                producer.close()
        except (UnavailableError, FencedError) as error:
            self._result.why = self._result.why or str(error)


@contextmanager
def _translated(topic: str, answers: "_Answers") -> Iterator[None]:
    """Translate Pulsar's errors into FencedError and UnavailableError."""
    try:
        yield
    except pulsar.PulsarException as error:
        if isinstance(error, ProducerFenced) or answers.has_been_fenced:
            raise FencedError(_FENCED.format(topic)) from error
        raise UnavailableError(f"publishing to {topic}: {error}; `ledger-reaper check` shows more") from error


def _single(name: str, *, is_exclusive: bool) -> dict[str, Any]:
    """Return the options of a producer that sends each copy as an entry."""
    modes = pulsar.ProducerAccessMode
    # with fencing, a forgotten second instance is disconnected
    access = modes.ExclusiveWithFencing if is_exclusive else modes.Shared
    return {"producer_name": name, "access_mode": access, "batching_enabled": False}


def _producer(opened: Any, topic: str, options: Mapping[str, Any]) -> Any:
    # publish waits for answers before the queue is full; send_all blocks while it is full
    return opened.create_producer(topic, block_if_queue_full=True, max_pending_messages=2 * _WINDOW, **options)


def _send(producer: Any, copy: Copy, answers: "_Answers") -> None:
    options: dict[str, Any] = {}
    if copy.key:
        options["partition_key"] = copy.key.decode("utf-8", "replace")
    if copy.delay_ms > 0:
        # Java's reconsumeLater does the same. Shared consumers obey this delay; our own query goes by DELAY_TIME.
        options["deliver_after"] = timedelta(milliseconds=copy.delay_ms)
    if copy.sequence_id is not None:
        options["sequence_id"] = copy.sequence_id
    producer.send_async(copy.payload, answers.take, properties=dict(copy.properties), **options)


class _Answers:
    """Counts the broker's answers. The client's own threads call take."""

    def __init__(self, patience_seconds: float) -> None:
        self._changed = Condition()
        self._patience_seconds = patience_seconds
        self._acknowledged = 0
        self._failure: Any = None

    def take(self, result: Any, _message_id: Any) -> None:
        with self._changed:
            if result == pulsar.Result.Ok:
                self._acknowledged += 1
            elif self._failure is None:
                self._failure = result
            self._changed.notify()

    def wait(self, sent: int, unanswered: int) -> bool:
        """Wait until at most `unanswered` of the `sent` messages are unanswered; return False if one failed.

        If no message is answered for as long as the patience lasts, that counts as a failure.
        """
        with self._changed:
            while self._failure is None and sent - self._acknowledged > unanswered:
                if not self._changed.wait(self._patience_seconds):
                    self._failure = pulsar.Result.Timeout
            return self._failure is None

    @property
    def has_failed(self) -> bool:
        with self._changed:
            return self._failure is not None

    @property
    def has_been_fenced(self) -> bool:
        with self._changed:
            return bool(self._failure == pulsar.Result.ProducerFenced)

    def check(self, topic: str, sent: int) -> None:
        if self.has_been_fenced:
            raise FencedError(_FENCED.format(topic))
        with self._changed:
            if self._failure is not None or self._acknowledged != sent:
                failure = self._failure or "no answer"
                missing = sent - self._acknowledged
                raise UnavailableError(f"{missing} of {sent} messages to {topic} were not acknowledged: {failure}")
