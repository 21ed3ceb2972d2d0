"""What the doorbell does at which time, with connections that answer as the test says."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streaming.adapters.pulsar.doorbell import doorbell as module
from streaming.adapters.pulsar.doorbell.doorbell import Doorbell
from streaming.adapters.pulsar.readers.frames import CLOSE_CONSUMER, CONSUMER_STATS, LOOKUP, SUBSCRIBE
from streaming.errors import ReaperError, UnavailableError
from tests.pulsar_settings import pulsar_settings
from udfs.proto import pulsar_api_pb2 as api

A = "persistent://a/b/c-partition-0"


class Broker:
    """Stands for every Line: answers requests at once, except those of a held type, and records all commands."""

    def __init__(self) -> None:
        self.backlog = 0
        self.held: set[int] = set()  # types of requests that get no answer
        self.refuses_look_ups = False
        self.requests: list[api.BaseCommand] = []
        self.open: set[int] = set()  # consumers
        self.received: Callable[[api.BaseCommand], None] = lambda _command: None

    def __call__(self, _settings: Any, _url: str, _proxied_to: str, received: Any, _ended: Any) -> "Broker":
        self.received = received
        return self

    def start(self) -> None: ...

    def close(self) -> None: ...

    def join(self, _timeout_s: float) -> None: ...

    def send(self, command: api.BaseCommand) -> None:
        if command.type == CLOSE_CONSUMER:
            self.open.discard(command.close_consumer.consumer_id)

    def request(self, command: Any, answered: Any, **_: Any) -> None:
        sent = command(1)
        if sent is None:
            return
        self.requests.append(sent)
        if sent.type == SUBSCRIBE:
            self.open.add(sent.subscribe.consumer_id)
        if sent.type not in self.held:
            answered(self._answer(sent))

    def _answer(self, sent: api.BaseCommand) -> api.BaseCommand | ReaperError:
        if sent.type == LOOKUP and self.refuses_look_ups:
            return UnavailableError("the topic is being created")
        answer = api.BaseCommand()
        if sent.type == LOOKUP:
            answer.lookup_topic_response.broker_service_url = "pulsar://broker:6650"
            answer.lookup_topic_response.response = 1  # connect
        if sent.type == CONSUMER_STATS:
            answer.consumer_stats_response.msg_backlog = self.backlog
        return answer

    def moves(self) -> None:
        """Close a consumer, as when the topic is moved."""
        close = api.CommandCloseConsumer(consumer_id=min(self.open), request_id=1)
        self.received(api.BaseCommand(type=CLOSE_CONSUMER, close_consumer=close))

    def count(self, kind: int) -> int:
        return Counter(each.type for each in self.requests)[kind]


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.broker = Broker()
        self.bell = Doorbell(pulsar_settings(), "ledger-reaper", monotonic=lambda: self.now_s)

    def at(self, now_s: float) -> None:
        """Do what is due until this time."""
        while True:
            due = min((each[0] for each in self.bell._due), default=float("inf"))
            self.now_s = min(max(due, self.now_s), now_s)
            self.bell._do_due()
            if self.now_s >= now_s:
                return


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(module, "Line", world.broker)
    monkeypatch.setattr(module, "_TICK_S", 3600.0)  # the test does what is due
    yield world
    world.bell.close()


def test_the_backlog_of_a_quiet_partition_is_read_once_a_minute(world: World) -> None:
    world.bell.watch(A)
    world.at(0.0)
    assert world.bell.listening == 1
    assert world.broker.count(CONSUMER_STATS) == 1
    world.at(599.0)
    assert world.broker.count(CONSUMER_STATS) == 10
    assert world.broker.count(LOOKUP) == 1
    world.broker.backlog = 1
    world.at(660.0)
    assert world.bell.rung(0.0) == [A]
    assert world.bell.listening == 0
    world.at(3600.0)
    assert world.bell.rung(0.0) == [], "it was not settled"
    world.broker.backlog = 0
    world.bell.settle(A, None)
    assert world.bell.listening == 1


def test_failures_are_forgotten_after_a_steady_minute_although_the_backlog_is_read(world: World) -> None:
    world.bell.watch(A)
    world.at(0.0)
    for hour in range(1, 9):
        world.at(hour * 3600.0 + 30.0)  # between two reads of the backlog
        world.broker.moves()
        assert world.bell.faults[A].failures == 1
        world.at(world.now_s + 2.0)
        assert world.bell.listening == 1


def test_failures_soon_after_each_other_count(world: World) -> None:
    world.bell.watch(A)
    for failures in range(1, 5):
        world.at(world.now_s + 10.0)
        assert world.bell.listening == 1
        world.broker.moves()
        assert world.bell.faults[A].failures == failures


def test_a_partition_that_is_forgotten_and_watched_again_is_looked_up_once(world: World) -> None:
    world.bell.watch(A)
    world.at(0.0)
    assert world.bell.listening == 1  # its backlog is due at 60 s
    world.at(58.0)
    world.bell.forget(A)
    world.broker.refuses_look_ups = True
    world.bell.watch(A)
    world.at(58.5)  # it fails, and is tried again at 59 s
    world.broker.refuses_look_ups = False
    world.broker.held = {CONSUMER_STATS}  # its broker is slow
    world.at(61.0)
    assert world.broker.count(LOOKUP) == 3
    assert len(world.broker.open) == 2, "a second guard would find its subscription held"
