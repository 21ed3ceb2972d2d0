"""Whether a broker shows other entries: which ones are asked for, and what is concluded."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from streaming.adapters.pulsar.controls import Controls
from streaming.adapters.pulsar.http import Body
from streaming.errors import UnavailableError
from udfs.formats.internal_stats import InternalStats, Position

TOPIC = "persistent://t/ns/topic"
HERE, SIBLING = f"{TOPIC}-partition-1", f"{TOPIC}-partition-0"
Entry = tuple[str, Position]


@dataclass
class Admin:
    """Shows those entries, within `takes_s`, of partitions with those ledgers."""

    ledgers: Mapping[str, tuple[tuple[int, int], ...]]
    shows: set[Entry] = field(default_factory=set)
    takes_s: float = 0.0
    asked: list[Entry] = field(default_factory=list)

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        self.asked.append((partition, position))
        if self.takes_s > patience_seconds:
            return None
        return Body(200 if (partition, position) in self.shows else 500, {}, b"x"[:most_bytes], False)

    def internal_stats(self, partition: str) -> InternalStats:
        if partition not in self.ledgers:
            raise UnavailableError(partition)
        return InternalStats(ledgers=self.ledgers[partition], cursors={}, pending_adds=0)


def test_one_of_the_same_ledger_that_was_shown_before_is_enough() -> None:
    admin = Admin({HERE: ((4, 10),)}, {(HERE, (4, 2))})
    controls = Controls(admin, HERE)
    controls.was_shown((4, 2))
    assert controls.are_shown((4, 3), 1.0) is True
    assert admin.asked == [(HERE, (4, 2))]
    admin.shows.clear()
    assert controls.are_shown((4, 3), 1.0) is False
    assert len(admin.asked) == 2, "it could be read, and can't now"


def test_then_others_of_the_ledger_then_of_other_ledgers_then_of_other_partitions() -> None:
    admin = Admin({HERE: ((3, 5), (4, 10), (5, 2)), SIBLING: ((9, 1),)})
    controls = Controls(admin, HERE)
    controls.was_sent((4, 7))
    assert controls.are_shown((4, 9), 1.0) is False
    here = [(4, 7), (4, 0), (4, 5), (5, 1), (3, 4)]
    assert admin.asked == [*((HERE, each) for each in here), (SIBLING, (9, 0))]


def test_what_is_found_to_be_shown_is_asked_for_first_the_next_time() -> None:
    admin = Admin({HERE: ((4, 10),)}, {(HERE, (4, 0))})
    controls = Controls(admin, HERE)
    assert controls.are_shown((4, 9), 1.0) is True
    admin.asked.clear()
    assert controls.are_shown((4, 8), 1.0) is True
    assert admin.asked == [(HERE, (4, 0))]


def test_what_was_not_shown_is_asked_for_again_with_more_patience_only() -> None:
    other = "persistent://t/ns/dead-letters-partition-0"
    admin = Admin({HERE: ((4, 10),), SIBLING: ((9, 1),), other: ((3, 1),)}, {(other, (3, 0))}, takes_s=0.5)
    controls = Controls(admin, HERE, [other])
    assert controls.are_shown((4, 3), 0.25) is False
    asked = len(admin.asked)
    assert controls.are_shown((4, 4), 0.25) is False
    assert len(admin.asked) == asked
    assert controls.are_shown((4, 4), 1.0) is True
    admin.asked.clear()
    assert controls.are_shown((4, 6), 1.0) is True
    assert admin.asked == [(other, (3, 0))], "the neighbours were silent, and that one was not"


def test_an_entry_of_another_partition_will_do() -> None:
    admin = Admin({HERE: ((4, 1),), SIBLING: ((9, 3),)}, {(SIBLING, (9, 2))})
    assert Controls(admin, HERE).are_shown((4, 0), 1.0) is True


def test_an_entry_of_another_topic_will_do_and_what_cant_be_asked_for_is_passed_over() -> None:
    other = "persistent://t/ns/dead-letters-partition-0"
    admin = Admin({HERE: ((4, 2),), other: ((9, 3),)}, {(other, (9, 2))})
    assert Controls(admin, HERE, ["persistent://t/ns/none-partition-0", other]).are_shown((4, 0), 1.0) is True
    assert admin.asked == [(HERE, (4, 1)), (other, (9, 2))]


@pytest.mark.parametrize("partition", [HERE, TOPIC])
def test_of_a_topic_of_one_entry_nothing_can_be_said(partition: str) -> None:
    admin = Admin({partition: ((4, 1),)})
    assert Controls(admin, partition).are_shown((4, 0), 1.0) is None
    assert admin.asked == []


def test_entries_that_are_not_shown_do_not_speak_for_one_another() -> None:
    admin = Admin({HERE: ((4, 2),)})
    controls = Controls(admin, HERE)
    assert controls.are_shown((4, 0), 1.0) is False
    assert controls.are_shown((4, 1), 1.0) is None, "both were asked for in vain, and nothing else is there"


def test_they_are_asked_for_with_the_patience_that_the_entry_had() -> None:
    admin = Admin({HERE: ((4, 2),)}, {(HERE, (4, 1))}, takes_s=0.5)
    assert Controls(admin, HERE).are_shown((4, 0), 0.25) is False
    assert Controls(admin, HERE).are_shown((4, 0), 3.0) is True


def test_no_more_than_a_few_are_asked_for() -> None:
    ledgers = tuple((number, 5) for number in range(50))
    elsewhere = [f"persistent://t/ns/other-partition-{number}" for number in range(20)]
    partitions = {HERE: ledgers, **{f"{TOPIC}-partition-{number}": ledgers for number in (0, 2, 3, 4)}}
    admin = Admin(partitions | dict.fromkeys(elsewhere, ledgers))
    assert Controls(admin, HERE, elsewhere).are_shown((7, 3), 1.0) is False
    assert len(admin.asked) <= 16


def test_a_broker_that_answers_nothing_is_an_outage() -> None:
    with pytest.raises(UnavailableError):
        Controls(Admin({}), HERE).are_shown((4, 0), 1.0)
