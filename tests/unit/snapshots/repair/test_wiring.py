"""A topic is read to the end that its broker names; silence before that is none."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import pytest

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.readers.frames import ReceiveTimeout
from streaming.errors import ConfigError, UnavailableError
from streaming.snapshots.repair.wiring import BrokerLoader, full_name, read_to_the_end
from tests.pulsar_fields import entry
from tests.unit.adapters.pulsar.frame_broker import Partition, serving, settings_for
from udfs.formats.internal_stats import BEFORE_ALL, Position

TOPIC = "persistent://t/ns/orders"
ENTRY = b"no entry that can be read"


@dataclass
class Topic:
    """A topic with entries at these places. pauses: behind which ones its broker is silent, once each or for ever."""

    places: Sequence[Position]
    last: Position | None
    pauses: set[Position] = field(default_factory=set)
    is_stuck: bool = False
    says_last_at: int = 1
    opened: list[Position] = field(default_factory=list)

    def reader_behind(self, after: Position) -> AbstractContextManager["_Reader"]:
        self.opened.append(after)
        return nullcontext(_Reader(self, after, self.last if len(self.opened) >= self.says_last_at else None))

    def read(self) -> int:
        return len(list(read_to_the_end(TOPIC, self.reader_behind)))


@dataclass
class _Reader:
    topic: Topic
    at: Position
    last: Position | None

    def next(self, patience_seconds: float) -> tuple[Position, bytes]:
        assert patience_seconds > 0
        left = [place for place in self.topic.places if place > self.at]
        if not left or self.at in self.topic.pauses:
            if not self.topic.is_stuck:
                self.topic.pauses.discard(self.at)
            raise ReceiveTimeout
        self.at = left[0]
        return self.at, ENTRY


ALL: list[Position] = [(1, 0), (1, 3), (2, 0)]


def test_a_reader_comes_to_the_end_that_the_broker_names() -> None:
    assert Topic([*ALL, (2, 5)], (2, 0)).read() == len(ALL)


def test_a_topic_is_read_from_its_own_ledgers_and_no_reader_makes_one() -> None:
    """Of a topic that is compacted, a compacted reader gets the last message of each key only."""
    sent: dict[Position, bytes | None] = {at: entry(b"v", partition_key="k") for at in ALL}
    with serving(Partition(sent, ALL[-1])) as partition:
        loader = BrokerLoader(settings_for(partition), cast(PulsarAdmin, None))
        loader.load(TOPIC)
        assert list(loader.delivered(TOPIC)) == [None] * len(ALL)
    assert partition.subscribed == [(True, False), (False, False)]


def test_silence_before_the_end_is_none() -> None:
    topic = Topic(ALL, (2, 0), {BEFORE_ALL, (1, 3)})
    assert topic.read() == len(ALL)
    assert topic.opened == [BEFORE_ALL, BEFORE_ALL, (1, 3)]


def test_a_broker_that_stays_silent_is_told() -> None:
    with pytest.raises(UnavailableError, match="nothing after 1:3, and the end is 2:0"):
        Topic(ALL, (2, 0), {(1, 3)}, is_stuck=True).read()


@pytest.mark.parametrize("last", [BEFORE_ALL, (7, -1)])
def test_a_topic_of_which_nothing_can_be_sent_is_at_its_end(last: Position) -> None:
    assert Topic([], last).read() == 0


def test_a_broker_that_says_late_what_its_last_message_is_is_asked_again() -> None:
    assert Topic(ALL, (2, 0), says_last_at=2).read() == len(ALL)


def test_a_broker_that_never_says_it_is_told() -> None:
    with pytest.raises(UnavailableError, match="does not report"):
        Topic(ALL, None).read()


def test_a_segment_has_no_snapshots_to_repair() -> None:
    assert full_name("t/ns/orders") == TOPIC
    with pytest.raises(ConfigError, match="no snapshots of segments"):
        full_name("segment://t/ns/orders/0000-ffff-0")
