"""Which control entries are requested, and what a check concludes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from streaming.adapters.pulsar.http import Body
from streaming.adapters.pulsar.readers.control_entries import Control, ControlEntries
from streaming.errors import UnavailableError
from udfs.formats.internal_stats import Ensembles, InternalStats, Position

TOPIC = "persistent://t/ns/topic"
HERE, SIBLING = f"{TOPIC}-partition-1", f"{TOPIC}-partition-0"
Entry = tuple[str, Position]


@dataclass
class Admin:
    """Returns the entries in `shows` after `takes_s`, from partitions with these ledgers."""

    ledgers: Mapping[str, tuple[tuple[int, int], ...]]
    shows: set[Entry] = field(default_factory=set)
    takes_s: float = 0.0
    requested: list[Entry] = field(default_factory=list)

    def ensembles(self, partition: str) -> Mapping[int, Ensembles]:
        return {}

    def entry(self, partition: str, position: Position, most_bytes: int, patience_seconds: float) -> Body | None:
        self.requested.append((partition, position))
        if self.takes_s > patience_seconds:
            return None
        return Body(200 if (partition, position) in self.shows else 500, {}, b"x"[:most_bytes], False)

    def internal_stats(self, partition: str) -> InternalStats:
        if partition not in self.ledgers:
            raise UnavailableError(partition)
        return InternalStats(ledgers=self.ledgers[partition], cursors={}, pending_adds=0)


def test_an_entry_of_the_same_ledger_that_was_returned_before_is_requested_first() -> None:
    admin = Admin({HERE: ((4, 10),)}, {(HERE, (4, 2))})
    controls = ControlEntries(admin, HERE)
    controls.was_shown((4, 2))
    assert controls.check((4, 3), 1.0) is Control.SHOWN
    assert admin.requested == [(HERE, (4, 2))]
    admin.shows.clear()
    assert controls.check((4, 3), 1.0) is Control.NOT_SHOWN
    assert len(admin.requested) == 2, "it was returned before, and is not returned now"


def test_controls_come_from_the_ledger_then_other_ledgers_then_other_partitions() -> None:
    admin = Admin({HERE: ((3, 5), (4, 10), (5, 2)), SIBLING: ((9, 1),)})
    controls = ControlEntries(admin, HERE)
    controls.was_sent((4, 7))
    assert controls.check((4, 9), 1.0) is Control.NOT_SHOWN
    here = [(4, 7), (4, 0), (4, 5), (5, 1), (3, 4)]
    assert admin.requested == [*((HERE, position) for position in here), (SIBLING, (9, 0))]


def test_a_control_that_was_returned_is_requested_first_the_next_time() -> None:
    admin = Admin({HERE: ((4, 10),)}, {(HERE, (4, 0))})
    controls = ControlEntries(admin, HERE)
    assert controls.check((4, 9), 1.0) is Control.SHOWN
    admin.requested.clear()
    assert controls.check((4, 8), 1.0) is Control.SHOWN
    assert admin.requested == [(HERE, (4, 0))]


def test_a_control_that_was_not_returned_is_requested_again_only_with_a_longer_timeout() -> None:
    other = "persistent://t/ns/dead-letters-partition-0"
    admin = Admin({HERE: ((4, 10),), SIBLING: ((9, 1),), other: ((3, 1),)}, {(other, (3, 0))}, takes_s=0.5)
    controls = ControlEntries(admin, HERE, [other])
    assert controls.check((4, 3), 0.25) is Control.NOT_SHOWN
    requested = len(admin.requested)
    assert controls.check((4, 4), 0.25) is Control.NOT_SHOWN
    assert len(admin.requested) == requested
    assert controls.check((4, 4), 1.0) is Control.SHOWN
    admin.requested.clear()
    assert controls.check((4, 6), 1.0) is Control.SHOWN
    assert admin.requested == [(other, (3, 0))], "the neighbours gave no answer, and this control did"


def test_an_entry_of_another_partition_is_a_control() -> None:
    admin = Admin({HERE: ((4, 1),), SIBLING: ((9, 3),)}, {(SIBLING, (9, 2))})
    assert ControlEntries(admin, HERE).check((4, 0), 1.0) is Control.SHOWN


def test_an_entry_of_another_topic_is_a_control_and_unavailable_partitions_are_skipped() -> None:
    other = "persistent://t/ns/dead-letters-partition-0"
    admin = Admin({HERE: ((4, 2),), other: ((9, 3),)}, {(other, (9, 2))})
    assert (
        ControlEntries(admin, HERE, ["persistent://t/ns/none-partition-0", other]).check((4, 0), 1.0) is Control.SHOWN
    )
    assert admin.requested == [(HERE, (4, 1)), (other, (9, 2))]


@pytest.mark.parametrize("partition", [HERE, TOPIC])
def test_a_topic_of_one_entry_has_no_control(partition: str) -> None:
    admin = Admin({partition: ((4, 1),)})
    assert ControlEntries(admin, partition).check((4, 0), 1.0) is Control.NONE_STORED
    assert admin.requested == []


def test_withheld_entries_are_no_controls_for_each_other() -> None:
    admin = Admin({HERE: ((4, 2),)})
    controls = ControlEntries(admin, HERE)
    assert controls.check((4, 0), 1.0) is Control.NOT_SHOWN
    assert controls.check((4, 1), 1.0) is Control.NONE_STORED, "both are withheld, and there is no other entry"


def test_controls_are_requested_with_the_timeout_of_the_entry() -> None:
    admin = Admin({HERE: ((4, 2),)}, {(HERE, (4, 1))}, takes_s=0.5)
    assert ControlEntries(admin, HERE).check((4, 0), 0.25) is Control.NOT_SHOWN
    assert ControlEntries(admin, HERE).check((4, 0), 3.0) is Control.SHOWN


def test_the_number_of_requests_is_limited() -> None:
    ledgers = tuple((number, 5) for number in range(50))
    elsewhere = [f"persistent://t/ns/other-partition-{number}" for number in range(20)]
    partitions = {HERE: ledgers, **{f"{TOPIC}-partition-{number}": ledgers for number in (0, 2, 3, 4)}}
    admin = Admin(partitions | dict.fromkeys(elsewhere, ledgers))
    assert ControlEntries(admin, HERE, elsewhere).check((7, 3), 1.0) is Control.NOT_SHOWN
    assert len(admin.requested) <= 16


def test_a_broker_without_stats_is_an_outage() -> None:
    with pytest.raises(UnavailableError):
        ControlEntries(Admin({}), HERE).check((4, 0), 1.0)
