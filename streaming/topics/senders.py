"""Sends single requests to their topics, with a producer for each topic, and returns their message ids."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock

from streaming.errors import UnavailableError
from streaming.ports import RequestSender
from streaming.topics.requests import owner_key
from streaming.topics.routing import RequestTopics
from udfs.records import PendingDelete
from udfs.requests.request_format import encode

MOST_OPEN = 100  # producers; each has a connection and threads of its own


@dataclass(slots=True)
class _Producer:
    """The producer of a topic. Its lock is held while it connects, sends or closes: other topics do not wait for it."""

    lock: Lock = field(default_factory=Lock)
    sender: RequestSender | None = None  # None: not connected yet
    is_closed: bool = False

    def close(self) -> None:
        """Wait for pending requests, then disconnect."""
        with self.lock:
            self.is_closed = True
            if self.sender is not None:
                self.sender.close()


class RequestSenders:
    """Producers on the request topics, each opened for its first request. Thread-safe."""

    def __init__(self, topics: RequestTopics, open_sender: Callable[[str], RequestSender]) -> None:
        """Create it; nothing is opened or created yet.

        Args:
            topics: chooses and creates the topics.
            open_sender: opens a producer on an existing topic.
        """
        self._topics = topics
        self._open = open_sender
        self._lock = Lock()
        self._producers: OrderedDict[str, _Producer] = OrderedDict()
        self._unchecked: set[str] = set()  # topics that were sent to since the last check_sent

    def start_send(self, request: PendingDelete) -> "Future[str]":
        """Send a request; the future returns its message id once the request is durable. Raises like send()."""
        return self.send(request.managed_ledger, owner_key(request), encode(request))

    def send(self, owner: str, key: bytes | None, payload: bytes) -> "Future[str]":
        """Send a request that names an owner; owner "": to the shared topic.

        Raises what RequestTopics.topic_for raises, and UnavailableError.
        """
        topic = self._topics.topic_for(owner) if owner else self._topics.shared()
        while True:
            producer = self._producer(topic)
            with producer.lock:
                if producer.is_closed:  # it was the least recently used one
                    continue
                if producer.sender is None:
                    producer.sender = self._opened(topic)
                return producer.sender.send(key, payload)

    def check_sent(self) -> None:
        """Raise UnavailableError if requests may be lost although their futures returned a message id.

        Call it after the futures have returned. A lane may have been deleted before the requests were sent.
        """
        with self._lock:
            topics, self._unchecked = self._unchecked, set()
        for topic in sorted(topics):
            self._topics.check_sent(topic)

    def close(self) -> None:
        """Wait for pending requests, then disconnect. A second call does nothing."""
        with self._lock:
            producers, self._producers = self._producers, OrderedDict()
        for producer in producers.values():
            producer.close()

    def _producer(self, topic: str) -> _Producer:
        """Return the topic's producer, and close the least recently used ones above MOST_OPEN."""
        closing = []
        with self._lock:
            self._unchecked.add(topic)
            producer = self._producers.setdefault(topic, _Producer())
            self._producers.move_to_end(topic)
            while len(self._producers) > MOST_OPEN:
                closing.append(self._producers.popitem(last=False)[1])
        for each in closing:
            each.close()
        return producer

    def _opened(self, topic: str) -> RequestSender:
        try:
            return self._open(topic)
        except UnavailableError as error:
            raise self._topics.failed(topic, error) from error
