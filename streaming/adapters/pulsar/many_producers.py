"""Publishes to many topics, each by a client and producer of its own that stay open for a while.

Topics belong to tenants, who can make a call about them hang or fail. So every call has a time limit, a client is
closed after its first failure, and closing happens in a thread of its own.
Topics share no client: a broker that limits a topic's publish rate stops reading from the whole connection.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any

import pulsar

from streaming.adapters.pulsar.publish import answering_host, new_client
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError

_WINDOW = 1000  # unacknowledged messages of a topic
_BATCH_DELAY_MS = 5


class ManyProducers:
    """Opens a client at the first use of a topic. Thread-safe, but for each topic only one call at a time."""

    def __init__(  # noqa: PLR0913  its limits
        self,
        settings: PulsarSettings,
        prepare: Callable[[str], None],
        *,
        limit_s: float,
        most: int,
        idle_s: float = 60.0,
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """Create it.

        Args:
            settings: of the cluster.
            prepare: called with a topic before its producer is opened; raises what publish raises.
            limit_s: time limit of opening a producer, and of each window of messages.
            most: producers that are open at the same time; those used longest ago are closed.
            idle_s: a producer that was not used for so long is closed.
            now_s: a monotonic clock.
        """
        # the client's own limit, a whole number, is that of opening a producer
        self._settings = settings.model_copy(update={"timeout_seconds": max(1, int(limit_s))})
        self._prepare = prepare
        self._limit_s = limit_s
        self._most = most
        self._idle_s = idle_s
        self._now_s = now_s
        self._lock = Lock()
        self._is_closed = False
        self._open: OrderedDict[str, tuple[_Producer, float]] = OrderedDict()  # topic -> producer, last use

    def publish(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """Store messages (key, payload) in order. Raises UnavailableError, RefusedError; some may then be stored."""
        with self._lock:  # while it is used, no other thread can close it
            producer, _used_s = self._open.pop(topic, (None, 0.0))
        if producer is None:
            self._prepare(topic)
            producer = self._new()
        try:
            for start in range(0, len(messages), _WINDOW):
                producer.send(topic, messages[start : start + _WINDOW], self._limit_s)
        except (pulsar.PulsarException, UnavailableError) as error:
            _close_later(producer)
            raise UnavailableError(f"publishing to {topic}: {error}") from error
        with self._lock:
            if not self._is_closed:
                self._open[topic] = (producer, self._now_s())
        self.close_idle()

    def close_idle(self) -> None:
        """Close producers that were not used for a while, and those above the limit."""
        with self._lock:
            while self._open:
                topic, (producer, used_s) = next(iter(self._open.items()))
                if len(self._open) <= self._most and self._now_s() - used_s <= self._idle_s:
                    break
                del self._open[topic]
                _close_later(producer)

    def close(self) -> None:
        """Disconnect. Messages that are being sent may not be stored."""
        with self._lock:
            opened, self._is_closed = [producer for producer, _used_s in self._open.values()], True
            self._open.clear()
        for producer in opened:
            _close_later(producer)

    def _new(self) -> "_Producer":
        with self._lock:
            if self._is_closed:
                raise UnavailableError("the connections are closed")
        return _Producer(new_client(self._settings, answering_host(self._settings)))


class _Producer:
    """A client with a producer on one topic."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._producer: Any = None

    def send(self, topic: str, messages: Sequence[tuple[str, bytes]], limit_s: float) -> None:
        """Send at most _WINDOW messages, and wait until all are stored. Raises PulsarException, UnavailableError."""
        if self._producer is None:
            self._producer = self._client.create_producer(
                topic,
                max_pending_messages=_WINDOW,
                send_timeout_millis=int(limit_s * 1000),
                batching_enabled=True,
                batching_max_publish_delay_ms=_BATCH_DELAY_MS,
                # a topic that its tenant made partitioned since `prepare` must not open a thousand producers
                lazy_start_partitioned_producers=True,
            )
        _send(self._producer, messages, limit_s)

    def close(self) -> None:
        """Disconnect; a broker can make that take as long as opening a producer may."""
        # Not shutdown(): it keeps Python's interpreter lock while it waits for threads that may need the lock to report
        # a failed message. For ten seconds no other thread ran, and the service's session with ZooKeeper ended.
        with suppress(pulsar.PulsarException):
            self._client.close()


def _close_later(producer: _Producer) -> None:
    Thread(target=producer.close, name="close-producer", daemon=True).start()


def _send(producer: Any, messages: Sequence[tuple[str, bytes]], limit_s: float) -> None:
    """Send at most _WINDOW messages, and wait until all are stored. Raises PulsarException, UnavailableError."""
    changed = Condition()
    results: list[Any] = []

    def take(result: Any, _message_id: Any) -> None:
        with changed:
            results.append(result)
            changed.notify()

    for key, payload in messages:
        producer.send_async(payload, take, partition_key=key)
    with changed:
        # the client fails each message after the same time; twice that, for a client that does not
        changed.wait_for(lambda: len(results) == len(messages), 2 * limit_s)
        failure = next((result for result in results if result != pulsar.Result.Ok), None)
        if failure is not None or len(results) < len(messages):
            raise UnavailableError(f"{len(messages)} messages were not all acknowledged: {failure or 'no answer'}")
