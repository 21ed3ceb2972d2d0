"""A request topic's producer: opened when it is needed, and again when the topic is another one."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from ledger_reaper_client import (
    AsyncLedgerDeletionService,
    ForbiddenError,
    LedgerComponent,
    RefusedError,
    Settings,
    UnavailableError,
)
from ledger_reaper_client import sending as sending_module
from ledger_reaper_client.admin import Answer, InternalStats
from ledger_reaper_client.requests import Request, request_for
from ledger_reaper_client.sending import Sending, Topic

LANE = "persistent://acme/ledger-deletion/__ledger_deletion"
REQUEST = request_for("persistent://acme/app/orders", 7, LedgerComponent.MANAGED_LEDGER)


class FakeAdmin:
    """The admin API for a role that may only produce, on a lane with messages."""

    count: int | None = 1

    def partitions(self, topic: str) -> int | None:
        return self.count

    def internal_stats(self, topic: str) -> InternalStats:
        return InternalStats(((3, 1, False),), {"ledger-reaper": (3, -1)}, (3, 0))

    def call(self, *_arguments: Any, **_keywords: Any) -> Answer:
        return Answer(403, None, "Forbidden")


class FakeProducer:
    """The library's producer, which gets no answer unless the test answers, and calls nothing once it is closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self.waiting: list[Callable[[Any, Any], None]] = []

    def send_async(self, _data: bytes, callback: Callable[[Any, Any], None], *, partition_key: str) -> None:
        self.waiting.append(callback)

    def flush(self) -> None:
        assert not self.is_closed

    def close(self) -> None:
        self.is_closed = True


class FakeClient:
    """The library's client."""

    fault: Exception | None = None

    def __init__(self) -> None:
        self.producers: list[FakeProducer] = []
        self.is_closed = self.fails_to_close = False

    def close(self) -> None:
        assert all(producer.is_closed for producer in self.producers)
        self.is_closed = True
        if self.fails_to_close:
            raise pulsar.Timeout("Pulsar error: TimeOut")

    def create_producer(self, topic: str, **_options: Any) -> FakeProducer:
        if self.fault is not None:
            raise self.fault
        self.producers.append(FakeProducer())
        return self.producers[-1]


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def topic(admin: FakeAdmin, client: FakeClient) -> Iterator[Topic]:
    settings = Settings("pulsar://127.0.0.1:1", "http://127.0.0.1:1", lanes="tenant")
    opened = Topic(settings, admin, client, LANE)  # type: ignore[arg-type]
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (pulsar.AuthorizationError, ForbiddenError),
        (pulsar.AuthenticationError, ForbiddenError),
        (pulsar.Timeout, UnavailableError),
    ],
)
def test_a_role_without_the_right_to_produce_is_told_so(
    topic: Topic, client: FakeClient, fault: type[Exception], expected: type[Exception]
) -> None:
    client.fault = fault()
    with pytest.raises(expected, match="no producer on") as raised:
        topic.send(REQUEST)
    assert type(raised.value) is expected
    client.fault = None
    topic.send(REQUEST)
    assert len(client.producers) == 1


def test_a_lane_that_was_created_again_with_other_partitions_gets_a_new_producer(
    topic: Topic, admin: FakeAdmin, client: FakeClient
) -> None:
    """The library keeps a producer for each partition of the earlier topic, and waits for those that are missing."""
    pending = topic.send(REQUEST)
    topic.send(REQUEST)
    assert len(client.producers) == 1
    admin.count = 2
    (first,) = client.producers
    first.waiting[1](pulsar.Result.Timeout, None)
    answer = topic.send(REQUEST)
    _first, second = client.producers
    assert (first.is_closed, len(first.waiting), len(second.waiting)) == (True, 2, 1)
    with pytest.raises(UnavailableError, match="send it again"):
        pending.result(0)
    first.waiting[0](pulsar.Result.Ok, None)  # too late
    second.waiting[0](pulsar.Result.Timeout, None)
    with pytest.raises(UnavailableError, match="Timeout"):
        answer.result(0)


def test_a_terminated_topic_is_no_reason_to_send_again(topic: Topic, client: FakeClient) -> None:
    answer = topic.send(REQUEST)
    client.producers[0].waiting[0](pulsar.Result.TopicTerminated, None)
    with pytest.raises(RefusedError, match="was terminated"):
        answer.result(0)


def test_a_producer_of_a_lane_that_was_deleted_is_closed_until_the_lane_is_whole_again(
    topic: Topic, admin: FakeAdmin, client: FakeClient
) -> None:
    """Otherwise it connects again, and brokers create a topic with the name of a partition."""
    topic.send(REQUEST)
    admin.count = None
    with pytest.raises(UnavailableError, match="it was deleted"):
        topic.check_stored()
    assert client.producers[0].is_closed
    admin.count = 1
    topic.send(REQUEST)
    client.producers[1].waiting[0](pulsar.Result.Timeout, None)
    admin.count = 0
    with pytest.raises(RefusedError, match="is not partitioned"):
        topic.send(REQUEST)
    assert client.producers[1].is_closed
    admin.count = 1
    topic.send(REQUEST)
    assert [producer.is_closed for producer in client.producers] == [True, True, False]


@pytest.mark.parametrize("fails", [False, True])
def test_after_its_producers_the_library_is_closed(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """close() of pulsar-client 3.13 leaves a thread: of 60 processes that ended at once, 21 were aborted."""
    client.fails_to_close = fails
    waited: list[float] = []
    monkeypatch.setattr(sending_module, "time", SimpleNamespace(sleep=waited.append, monotonic=time.monotonic))
    monkeypatch.setattr(Settings, "open_client", lambda _settings: client)
    sending = Sending(Settings("pulsar://127.0.0.1:1", "http://127.0.0.1:1", lanes="tenant"))
    sending.admin = FakeAdmin()  # type: ignore[assignment]
    sending.start()
    _topic, answer = sending.start_send(REQUEST)
    sending.close()
    sending.close()
    assert client.is_closed
    assert len(waited) == 1
    with pytest.raises(UnavailableError):
        answer.result(0)


class SlowSending:
    """What the asyncio client uses of Sending; its start_delete() waits for the test."""

    def __init__(self) -> None:
        self.started, self.goes_on = threading.Event(), threading.Event()
        self.dropped = asyncio.Event()

    def start_delete(self, _request: Request) -> tuple[Any, Any, "SlowSending"]:
        self.started.set()
        assert self.goes_on.wait(30)
        return None, None, self

    def drop(self) -> None:
        self.dropped.set()


def test_a_wait_whose_caller_was_cancelled_before_the_request_was_sent_is_dropped() -> None:
    async def scene() -> None:
        sending = SlowSending()
        client = AsyncLedgerDeletionService(Settings("pulsar://127.0.0.1:1", "http://127.0.0.1:1", lanes="tenant"))
        client._sending = sending  # type: ignore[assignment]
        call = asyncio.ensure_future(client.delete_ledger("persistent://a/b/c", 7, LedgerComponent.MANAGED_LEDGER))
        await asyncio.to_thread(sending.started.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not sending.dropped.is_set()
        sending.goes_on.set()
        await asyncio.wait_for(sending.dropped.wait(), 30)

    asyncio.run(scene())
