"""The watcher publishes each request once, under a number and a name for the broker's deduplication."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from streaming.adapters.memory.pulsar import MemoryPulsar
from streaming.adapters.pulsar.readers.read import numbered
from streaming.config.load import load
from streaming.config.settings import Settings
from streaming.errors import ConfigError, UnavailableError
from streaming.phase_one.watcher.pulsar_publication import WATCH_ID, PulsarPublication, TopicAccess
from streaming.phase_one.watcher.request_outbox import OlderStateError, Send
from streaming.ports import Copy, StoredMessage
from udfs.formats.internal_stats import Position

SENDER = "watch-1"
SENDS = [Send(number, b"key", f"request {number}".encode()) for number in range(5)]


class Topic:
    """topics.watch in memory. names: of the producers. dies_after: the number of copies stored before the crash."""

    def __init__(self) -> None:
        self.settings = load(None)
        self.pulsar = MemoryPulsar()
        self.publication = PulsarPublication(
            self.settings, TopicAccess(lambda _settings: nullcontext(self.pulsar), self._stored, self._publish)
        )
        self.ends = self.publication.ends()
        self.partition = min(self.ends)
        self.names: set[str] = set()
        self.numbers: list[int] = []
        self.dies_after: int | None = None

    def send(self, *sends: Send, knows: bool = True, after: Position | None = None) -> int:
        return self.publication.send(self.partition, SENDER, sends, after, lambda _number, _payload: knows)

    @property
    def payloads(self) -> list[bytes]:
        return [each.payload for each in self.pulsar.partition(self.partition).messages]

    def _stored(
        self, _settings: Settings, partition: str, after: Position, name: str, of: str
    ) -> Iterator[tuple[int, StoredMessage]]:
        last = self.pulsar.last_positions(partition)
        yield from numbered(self.pulsar.read(last, after={partition: after} if after[1] >= 0 else None), name, of)

    def _publish(self, _settings: Any, topic: str, name: str, copies: Iterable[Copy], *, is_exclusive: bool) -> int:
        assert not is_exclusive
        self.names.add(name)
        sent = 0
        for copy in copies:
            if sent == self.dies_after:
                raise UnavailableError("the broker is gone")
            assert copy.sequence_id is not None
            self.numbers.append(copy.sequence_id)
            self.pulsar.publish(topic, copy.payload, copy.properties, key=(copy.key or b"").decode())
            sent += 1
        return sent


@pytest.fixture
def topic() -> Topic:
    return Topic()


def test_requests_are_sent_in_order_with_their_keys_and_a_property_that_names_sender_and_number(topic: Topic) -> None:
    assert topic.send(*SENDS) == 5
    stored = topic.pulsar.partition(topic.partition).messages
    assert [each.payload for each in stored] == [each.payload for each in SENDS]
    assert [each.properties for each in stored] == [{WATCH_ID: f"{SENDER}/{number}"} for number in range(5)]
    assert {each.key for each in stored} == {"key"}


def test_sequence_ids_start_with_one_because_the_client_ignores_zero(topic: Topic) -> None:
    topic.send(*SENDS)
    assert topic.numbers == [1, 2, 3, 4, 5]


def test_a_producer_has_the_same_name_whenever_a_sender_sends_to_a_partition(topic: Topic) -> None:
    topic.send(SENDS[0])
    topic.send(SENDS[1])
    assert topic.names == {f"ledger-reaper-{SENDER}-0"}
    topic.publication.send(max(topic.ends), SENDER, SENDS[2:], None, lambda _number, _payload: True)
    assert len(topic.names) == 2


def test_stored_requests_are_not_sent_again(topic: Topic) -> None:
    topic.dies_after = 3
    with pytest.raises(UnavailableError):
        topic.send(*SENDS)
    topic.dies_after = None
    assert topic.send(*SENDS, after=topic.ends[topic.partition]) == 2
    assert topic.payloads == [each.payload for each in SENDS]


def test_requests_of_another_sender_under_the_same_numbers_do_not_count(topic: Topic) -> None:
    topic.pulsar.publish(topic.partition, b"another's", {WATCH_ID: "watch-2/4"})
    assert topic.send(*SENDS, after=topic.ends[topic.partition]) == 5


def test_all_requests_are_sent_if_the_topic_need_not_be_read(topic: Topic) -> None:
    topic.send(*SENDS)
    assert topic.send(*SENDS, after=None) == 5


def test_a_stored_request_that_the_state_does_not_know_ends_it_before_anything_is_sent(topic: Topic) -> None:
    topic.send(*SENDS[:2])
    with pytest.raises(OlderStateError, match=f"request 0 of {SENDER}"):
        topic.send(*SENDS, knows=False, after=topic.ends[topic.partition])
    assert len(topic.payloads) == 2


def test_a_topic_that_could_lose_requests_is_not_used(topic: Topic) -> None:
    topic.pulsar.publish(topic.partition, b"x")
    topic.pulsar.set_message_ttl(topic.publication.topic, seconds=60)
    topic.publication.ends()  # it was checked before
    anew = PulsarPublication(topic.settings, TopicAccess(lambda _settings: nullcontext(topic.pulsar)))
    with pytest.raises(ConfigError, match="message TTL"):
        anew.ends()


def test_faults_of_other_request_topics_do_not_hold_the_watcher(topic: Topic) -> None:
    other = topic.settings.topics.requests[0]
    topic.pulsar.create_partitioned_topic(other, 2)
    topic.pulsar.set_message_ttl(other, seconds=60)
    anew = PulsarPublication(topic.settings, TopicAccess(lambda _settings: nullcontext(topic.pulsar)))
    assert anew.ends() == topic.ends
