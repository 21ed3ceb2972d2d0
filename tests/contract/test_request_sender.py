"""A request counts as durable only if the broker acknowledged it."""

from collections.abc import Callable, Iterator

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.memory.sender import MemoryRequestSender
from streaming.adapters.pulsar.producer import PulsarRequestSender
from streaming.config.load import load
from streaming.config.sections import PulsarSettings
from streaming.errors import UnavailableError
from streaming.ports import RequestSender
from tests.contract.publish_broker import PublishBroker
from udfs.formats.entry import parse_entry

TOPIC = "persistent://pulsar/system/d"


class Memory:
    def __init__(self) -> None:
        self.pulsar = MemoryPulsar()
        self.pulsar.create_topic(TOPIC)
        self.sender: RequestSender = MemoryRequestSender(self.pulsar, TOPIC)

    def stored(self) -> list[tuple[str, bytes]]:
        return [(message.key, message.payload) for message in self.pulsar.partition(TOPIC).messages]

    def silence(self) -> None:
        self.pulsar.faults.away = True


class Stub:
    """The real client, and a fake broker to which it can publish."""

    def __init__(self) -> None:
        self.is_silent = False
        self.broker = PublishBroker(on_send=lambda _number: not self.is_silent)
        self.sender: RequestSender = PulsarRequestSender(_settings(self.broker.url), TOPIC)

    def stored(self) -> list[tuple[str, bytes]]:
        entries = [parse_entry(data) for _number, data in self.broker.sent]
        return [((entry.key or b"").decode(), entry.payload) for entry in entries]

    def silence(self) -> None:
        self.is_silent = True


def _settings(url: str, seconds: int = 2) -> PulsarSettings:
    return load(None).pulsar.model_copy(update={"service_url": url, "timeout_seconds": seconds})


Side = Memory | Stub


@pytest.fixture(params=[Memory, Stub])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    opened = request.param()
    yield opened
    opened.sender.close()
    if isinstance(opened, Stub):
        opened.broker.close()


def test_an_acknowledged_request_is_stored_and_has_an_id(side: Side) -> None:
    ids = [side.sender.send(b"data:t", payload).result(5) for payload in (b"{1}", b"{2}")]
    assert side.stored() == [("data:t", b"{1}"), ("data:t", b"{2}")]
    assert len(set(ids)) == 2
    assert all(len(message_id.split(":")) == 3 for message_id in ids), ids


def test_a_request_without_an_answer_is_not_durable(side: Side) -> None:
    side.silence()
    with pytest.raises(UnavailableError, match=r"unreachable|may or may not be stored.*send it again"):
        side.sender.send(b"data:t", b"{}").result(10)


def test_a_future_cannot_be_cancelled(side: Side) -> None:
    in_flight = side.sender.send(b"data:t", b"{}")
    assert not in_flight.cancel()
    in_flight.result(5)


def test_a_closed_sender_sends_nothing(side: Side) -> None:
    side.sender.close()
    side.sender.close()
    with pytest.raises(UnavailableError):
        side.sender.send(b"data:t", b"{}").result(5)
    assert side.stored() == []


def test_an_unreachable_broker_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="not acknowledged"):
        PulsarRequestSender(_settings("pulsar://127.0.0.1:1", 1), TOPIC)


def test_close_answers_requests_in_flight() -> None:
    stubs: list[Callable[[], Stub]] = [Stub]
    side = stubs[0]()
    side.silence()
    in_flight = side.sender.send(b"data:t", b"{}")
    side.sender.close()
    with pytest.raises(UnavailableError):
        in_flight.result(10)
    side.broker.close()
