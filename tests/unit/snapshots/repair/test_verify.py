"""What an open transaction hides from a reader was not verified, and the repair says up to where it was."""

from typing import cast

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.clock import ManualClock
from streaming.errors import SafetyError
from streaming.snapshots.repair.verify import Verification
from streaming.state.filesystem import Folder
from tests.unit.snapshots.repair_world import TOPIC, World, repairs
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.snapshots.topic_findings import BufferFacts


def _read(world: World) -> tuple[int, str]:
    return Verification(cast(SnapshotTopics, world), world).read(TOPIC, {(7, 7)})


@pytest.mark.parametrize(
    ("max_read", "hidden"),
    [
        pytest.param((6, 0), "", id="up to the last entry"),
        pytest.param((7, -1), "", id="in a ledger that is new and empty"),
        pytest.param((5, 9), "read up to 5:9, and is not verified beyond", id="up to the one before"),
        pytest.param((4, -1), "hides the later entries, up to 6:0", id="before everything"),
        pytest.param(BEFORE_ALL, "not verified beyond", id="nobody knows"),
    ],
)
def test_a_reader_has_come_to_the_end_only_where_nothing_is_hidden_from_it(max_read: Position, hidden: str) -> None:
    count, why = _read(World(is_loaded=True, max_read=max_read))
    assert count == 2
    assert hidden in why
    assert bool(hidden) is bool(why)


def test_what_comes_while_it_is_read_hides_nothing() -> None:
    """A transaction that began behind the last entry that was looked for is no matter of the repair's."""

    class Growing(World):
        asked = 0

        def internal_stats(self, topic: str) -> InternalStats:
            assert not self.asked
            return super().internal_stats(topic)

        def buffer(self, topic: str, *, with_segments: bool = False) -> BufferFacts | None:
            self.asked += 1
            return super().buffer(topic, with_segments=with_segments)

    assert _read(Growing(is_loaded=True, max_read=(6, 0))) == (2, "")


def test_a_topic_that_is_not_loaded_any_more_was_not_read_to_its_end() -> None:
    assert "does not have it loaded" in _read(World(is_loaded=False))[1]


def test_an_aborted_message_is_an_alarm_also_where_the_end_is_hidden() -> None:
    with pytest.raises(SafetyError, match=r"aborted transaction \(7, 7\)"):
        _read(World(is_loaded=True, max_read=(4, 0), gets=[(7, 7)]))


def test_a_repair_whose_end_was_hidden_is_verified_by_the_next_one(journal: Folder) -> None:
    world, clock = World(max_read=(5, 3)), ManualClock(1_000)
    done = repairs(world, journal, clock).repair(TOPIC)
    assert done.not_verified.startswith("the topic was read up to 5:3, and is not verified beyond")
    world.max_read = (6, 0)
    done = repairs(world, journal, clock).repair(TOPIC)
    assert (done.went_on, done.not_verified) == (True, "")
