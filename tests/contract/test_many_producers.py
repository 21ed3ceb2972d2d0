"""Producers on many topics: reused, bounded in number, and each with its time limit."""

from collections.abc import Iterator

import pytest

from streaming.adapters.pulsar.many_producers import ManyProducers
from streaming.config.load import load
from streaming.config.sections import PulsarSettings
from streaming.errors import RefusedError, UnavailableError
from tests.contract.publish_broker import PublishBroker
from udfs.formats.entry import contents_of, parse_entry

TOPIC = "persistent://public/default/receipts"
TWO = [("1:0:0", b"{1}"), ("1:1:0", b"{2}")]


class Side:
    """The producers, and a fake broker."""

    def __init__(self, limit_s: float = 60.0) -> None:
        self.is_silent = False
        self.now_s = 0.0
        self.prepared: list[str] = []
        self.broker = PublishBroker(on_send=lambda _number: not self.is_silent)
        self.producers = ManyProducers(
            _settings(self.broker.url), self.prepared.append, limit_s=limit_s, most=2, now_s=lambda: self.now_s
        )

    def stored(self) -> list[tuple[str, bytes]]:
        contents = [content for _number, data in self.broker.sent for _at, content in contents_of(parse_entry(data))]
        return [((content.key or b"").decode(), content.payload) for content in contents]


def _settings(url: str) -> PulsarSettings:
    return load(None).pulsar.model_copy(update={"service_url": url, "timeout_seconds": 30})


@pytest.fixture
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    created = Side(*getattr(request, "param", ()))
    yield created
    created.producers.close()
    created.broker.close()


def test_messages_are_stored_in_order_by_a_producer_that_stays_open(side: Side) -> None:
    side.producers.publish(TOPIC, TWO)
    side.producers.publish(TOPIC, TWO[:1])
    assert side.stored() == [*TWO, TWO[0]]
    assert (len(side.broker.producers), side.prepared) == (1, [TOPIC])


def test_more_messages_than_a_producers_queue_are_stored(side: Side) -> None:
    many = [(f"1:{number}:0", b"%d" % number) for number in range(2_500)]
    side.producers.publish(TOPIC, many)
    assert side.stored() == many


@pytest.mark.parametrize("side", [(8.0,)], indirect=True)
def test_a_message_without_an_answer_is_an_error_in_time_and_the_next_call_opens_a_new_producer(side: Side) -> None:
    side.is_silent = True
    with pytest.raises(UnavailableError, match=f"publishing to {TOPIC}"):
        side.producers.publish(TOPIC, TWO)
    side.is_silent = False
    side.producers.publish(TOPIC, TWO)
    assert len(side.broker.producers) == 2


def test_producers_above_the_limit_and_idle_producers_are_opened_again(side: Side) -> None:
    for number in (1, 2, 3, 1):
        side.producers.publish(f"{TOPIC}{number}", TWO)
    assert side.prepared == [f"{TOPIC}{number}" for number in (1, 2, 3, 1)]
    side.now_s = 61.0
    side.producers.close_idle()
    side.producers.publish(f"{TOPIC}1", TWO)
    assert side.prepared[4:] == [f"{TOPIC}1"]


def test_nothing_is_sent_to_a_topic_that_can_not_be_prepared(side: Side) -> None:
    def refuse(topic: str) -> None:
        raise RefusedError(f"{topic} is partitioned")

    producers = ManyProducers(_settings(side.broker.url), refuse, limit_s=60.0, most=2)
    with pytest.raises(RefusedError, match="is partitioned"):
        producers.publish(TOPIC, TWO)
    producers.close()
    assert side.broker.producers == []


def test_no_broker_is_an_error_in_time_and_a_closed_client_stays_closed() -> None:
    producers = ManyProducers(_settings("pulsar://127.0.0.1:1"), lambda _topic: None, limit_s=1.0, most=2)
    with pytest.raises(UnavailableError):
        producers.publish(TOPIC, TWO)
    producers.close()
    with pytest.raises(UnavailableError, match="closed"):
        producers.publish(TOPIC, TWO)


def test_topics_share_no_connection(side: Side) -> None:
    """A broker that limits a topic's publish rate stops reading from the whole connection."""
    for topic in (TOPIC, f"{TOPIC}2"):
        side.producers.publish(topic, TWO)
    assert side.broker.connections == 2
