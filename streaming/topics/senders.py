"""Sends single requests to their topics, with a producer for each topic, and returns their message ids."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from streaming.errors import UnavailableError
from streaming.ports import RequestSender
from streaming.topics.requests import owner_key
from streaming.topics.routing import RequestTopics
from udfs.records import PendingDelete
from udfs.requests.request_format import encode

MOST_OPEN = 100  # producers; each has a connection and threads of its own


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
        self._senders: OrderedDict[str, RequestSender] = OrderedDict()
        self._unchecked: set[str] = set()  # topics that were sent to since the last check_sent

    def start_send(self, request: PendingDelete) -> "Future[str]":
        """Send a request; the future returns its message id once the request is durable. Raises like send()."""
        return self.send(request.managed_ledger, owner_key(request), encode(request))

    def send(self, owner: str, key: bytes | None, payload: bytes) -> "Future[str]":
        """Send a request that names an owner; owner "": to the shared topic.

        Raises what RequestTopics.topic_for raises, and UnavailableError.
        """
        topic = self._topics.topic_for(owner) if owner else self._topics.shared()
        with self._lock:
            self._unchecked.add(topic)
            sender = self._senders.get(topic)
            if sender is None:
                while len(self._senders) >= MOST_OPEN:
                    _oldest, closing = self._senders.popitem(last=False)
                    closing.close()
                sender = self._senders[topic] = self._opened(topic)
            self._senders.move_to_end(topic)
            return sender.send(key, payload)

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
            senders, self._senders = self._senders, OrderedDict()
        for sender in senders.values():
            sender.close()

    def _opened(self, topic: str) -> RequestSender:
        try:
            return self._open(topic)
        except UnavailableError as error:
            raise self._topics.failed(topic, error) from error
