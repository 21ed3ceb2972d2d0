"""The work that the synchronous and the asyncio client share: one producer for each request topic, and its receipts.

Nothing is created before the first request, because most tenants never delete anything (PIP-186's first review).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ledger_reaper_client.admin import Admin
from ledger_reaper_client.errors import ClientError, RefusedError, UnavailableError, no_access
from ledger_reaper_client.lanes import LostError, check_stored, ensure_request_topic, partitions_of
from ledger_reaper_client.names import encode_name, is_lane, namespace_lane, parse_topic, tenant_lane
from ledger_reaper_client.receipts import (
    Receipt,
    ReceiptReader,
    Wait,
    read_all,
    receipt_topic,
    require_receipt_topic,
    stored,
)
from ledger_reaper_client.requests import LedgerType, Request
from ledger_reaper_client.settings import Settings

_WINDOW = 1000  # unacknowledged requests of a topic; a send blocks at this number
_CLOSING_SECONDS = 0.1
_CHECK_SECONDS = 60.0  # an idle topic is checked again before the next request
# a receipt is published seconds after its request was processed: until then, only the sender knows of the request
_RECENT_SECONDS = 600.0
_MOST_RECENT = 100_000


class Topic:
    """A request topic with its producer. Thread-safe."""

    def __init__(self, settings: Settings, admin: Admin, client: Any, name: str) -> None:
        self.name = name
        self._settings = settings
        self._admin = admin
        self._client = client
        self._lock = threading.Lock()
        self._opening = threading.RLock()  # held during calls of the admin API, which a callback must not wait for
        self._checked_s = float("-inf")  # when the last successful check started, of time.monotonic()
        self._producer: Any = None
        self._partitions = 0  # of the topic, when the producer was opened
        self._receipts: ReceiptReader | None = None
        self._in_flight: set[Future[str]] = set()
        self._recent: deque[tuple[float, str]] = deque(maxlen=_MOST_RECENT)

    def send(self, request: Request) -> Future[str]:
        """Send a request; the future returns its message id when the bookies have stored it. Raises ClientError."""
        import pulsar

        producer = self._opened()
        answer: Future[str] = Future()
        answer.set_running_or_notify_cancel()  # a request that was sent can't be cancelled

        def on_result(result: Any, message_id: Any) -> None:
            if not self._claim(answer):
                return
            if result == pulsar.Result.Ok:
                text = message_id_text(message_id)
                self._recent.append((time.monotonic(), text))
                answer.set_result(text)
            else:
                self._checked_s = float("-inf")  # the topic may be gone: the next send checks it
                is_over = result == pulsar.Result.TopicTerminated
                answer.set_exception(self._terminated() if is_over else self._unacknowledged(result))

        with self._lock:
            self._in_flight.add(answer)
        try:
            producer.send_async(request.payload, on_result, partition_key=request.key)
        except pulsar.PulsarException as error:
            self._claim(answer)
            raise self._unacknowledged(error) from error
        return answer

    def check_stored(self) -> None:
        """Raise UnavailableError if a request that was stored before this call may be lost."""
        if not is_lane(self.name):
            return
        stored_s = time.monotonic()
        with self._opening:  # callers that wait here share the next check
            if self._checked_s > stored_s:
                return
            started_s = time.monotonic()
            self._checked_s = float("-inf")
            try:
                check_stored(self._admin, self._settings, self.name)
            except LostError:
                self._close_producer()
                raise
            self._checked_s = started_s

    def expect_receipt(self) -> Wait:
        """Announce a send whose receipt will be awaited. Raises ReceiptsOffError, RefusedError, UnavailableError."""
        with self._opening:
            if self._receipts is None:
                self._receipts = ReceiptReader(self._client, self._admin, self._receipt_topic())
            return self._receipts.expect()

    def unfinished(self) -> set[str]:
        """Return the ids of the requests without a final receipt, as far as receipts and the lane show them.

        Raises ReceiptsOffError, RefusedError, UnavailableError.
        """
        seconds = self._settings.timeout_seconds
        with_receipts = self._receipt_topic()
        found: set[str] = set()
        for number, partition in enumerate(partitions_of(self.name, self._admin.partitions(self.name) or 0)):
            cursors = self._admin.internal_stats(partition).cursors
            after = cursors.get(encode_name(self._settings.subscription), (-1, -1))
            for message in stored(self._client, self._admin, partition, after, seconds):
                found.add(message_id_text(message.message_id(), number))
        since_s = time.monotonic() - _RECENT_SECONDS
        found.update(message_id for at_s, message_id in list(self._recent) if at_s > since_s)
        # after the lane: a request that the service finishes between the two reads then has its receipt
        final: set[str] = set()
        for receipt in read_all(self._client, self._admin, with_receipts, seconds):
            (final if receipt.is_final else found).add(receipt.message_id)
        return found - final

    def newest_receipt(self, message_id: str) -> Receipt | None:
        """Return the newest receipt of a request, of any sender. Raises as unfinished()."""
        newest: Receipt | None = None
        for receipt in read_all(self._client, self._admin, self._receipt_topic(), self._settings.timeout_seconds):
            if receipt.message_id == message_id and (newest is None or receipt.is_final or not newest.is_final):
                newest = receipt
        return newest

    def close(self) -> None:
        """Wait for requests in flight, and stop reading receipts."""
        import pulsar

        with self._opening:
            producer, receipts = self._producer, self._receipts
        if producer is not None:
            with suppress(pulsar.PulsarException):
                producer.flush()
        with self._opening:
            self._close_producer()
        if receipts is not None:
            receipts.close()

    def _opened(self) -> Any:
        """Return the producer; create or check the topic if the last check is old."""
        import pulsar

        with self._opening:
            if time.monotonic() - self._checked_s > _CHECK_SECONDS:
                started_s = time.monotonic()
                try:
                    partitions = ensure_request_topic(self._admin, self._settings, self.name)
                except RefusedError:
                    self._close_producer()
                    raise
                if partitions != self._partitions:  # it was created again: the library sends to missing partitions
                    self._close_producer()
                self._partitions = partitions
                self._checked_s = started_s
            if self._producer is None:
                try:
                    self._producer = self._client.create_producer(
                        self.name,
                        batching_enabled=False,
                        block_if_queue_full=True,
                        max_pending_messages=_WINDOW,
                        send_timeout_millis=round(self._settings.timeout_seconds * 1000),
                    )
                except pulsar.PulsarException as error:
                    raise no_access(error, f"no producer on {self.name}", "produce there") from error
            return self._producer

    def _close_producer(self) -> None:
        """Close the producer, if there is one; its pending requests fail.

        A producer of a lane that was deleted connects again and again, and most brokers then create a topic that is in
        the way of the lane.
        """
        import pulsar

        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(pulsar.PulsarException):
                producer.close()
        with self._lock:
            left, self._in_flight = self._in_flight, set()
        for answer in left:  # the library calls no callbacks after it was closed
            answer.set_exception(self._unacknowledged("its producer was closed before the broker answered"))

    def _receipt_topic(self) -> str:
        topic = receipt_topic(self.name)
        if self._settings.receipts:
            self._opened()  # the lane's namespace may be missing
        require_receipt_topic(self._admin, topic, self._settings.retention_minutes if self._settings.receipts else None)
        return topic

    def _claim(self, answer: Future[str]) -> bool:
        """Return True to the first caller only; that caller sets the answer."""
        with self._lock:
            is_open = answer in self._in_flight
            self._in_flight.discard(answer)
        return is_open

    def _terminated(self) -> RefusedError:
        return RefusedError(
            f"{self.name} was terminated, so it takes no more requests: delete it when the service has read the others"
        )

    def _unacknowledged(self, why: object) -> UnavailableError:
        return UnavailableError(
            f"a request to {self.name} was not acknowledged ({why}), so it may or may not be stored; send it again, "
            "which is harmless"
        )


class Sending:
    """The request topics of one client. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.admin = Admin(settings)
        self.sent: dict[LedgerType, int] = dict.fromkeys(LedgerType, 0)
        self._lock = threading.Lock()
        self._client: Any = None
        self._topics: dict[str, Topic] = {}

    def start(self) -> None:
        """Open the library's client, which connects at the first request. A second call does nothing."""
        with self._lock:
            if self._client is None:
                self._client = self.settings.open_client()

    def close(self) -> None:
        """Wait for requests in flight, and disconnect. A second call does nothing."""
        with self._lock:
            client, self._client = self._client, None
            topics, self._topics = list(self._topics.values()), {}
        for topic in topics:
            topic.close()
        if client is not None:
            with suppress(Exception):  # the library raises what it likes here, and nothing is left to lose
                # Not shutdown(): it keeps Python's interpreter lock while it waits for threads that may need the lock,
                # to log or to get a token, and then never ends.
                client.close()
            # close() leaves a thread for the rest, and a process that ends before it may be aborted.
            time.sleep(_CLOSING_SECONDS)

    def topic_of(self, owner: str) -> Topic:
        """Return the request topic for an owner. Raises UnavailableError before start(), InvalidRequestError."""
        settings = self.settings
        if settings.topic:
            name = parse_topic(settings.topic).full
        else:
            name = tenant_lane(owner) if settings.lanes == "tenant" else namespace_lane(owner)
        with self._lock:
            if self._client is None:
                raise UnavailableError("this client is not started, or closed already: call start() first")
            if name not in self._topics:
                self._topics[name] = Topic(settings, self.admin, self._client, name)
            return self._topics[name]

    def start_send(self, request: Request) -> tuple[Topic, Future[str]]:
        """Send a request; the future returns its message id. Call check_stored() of the topic after that."""
        topic = self.topic_of(request.topic)
        answer = topic.send(request)
        answer.add_done_callback(lambda sent: self._count(request, sent))
        return topic, answer

    def start_delete(self, request: Request) -> tuple[Topic, Future[str], Wait]:
        """Send a request whose receipt is awaited: give the message id to Wait.sent(), or else call Wait.drop()."""
        topic = self.topic_of(request.topic)
        wait = topic.expect_receipt()
        try:
            topic, answer = self.start_send(request)
        except ClientError:
            wait.drop()
            raise
        return topic, answer, wait

    def _count(self, request: Request, sent: Future[str]) -> None:
        if sent.exception() is None:
            with self._lock:
                self.sent[request.ledger_type] += 1


def message_id_text(message_id: Any, partition: int | None = None) -> str:
    """Return `ledger:entry:partition`, and `:batchIndex` for a message of a batch, as in receipts."""
    number = message_id.partition() if partition is None else partition
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{number}"
    return text if message_id.batch_index() < 0 else f"{text}:{message_id.batch_index()}"
