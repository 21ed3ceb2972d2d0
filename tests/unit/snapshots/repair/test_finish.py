"""A repair loads the topic from its own index only, and reports how far a reader could verify the topic."""

from dataclasses import replace
from typing import cast

import pytest

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.clock import ManualClock
from streaming.errors import SafetyError, UnavailableError
from streaming.snapshots.repair.finish import Verification
from streaming.state.filesystem import Folder
from tests.unit.snapshots.repair_world import TOPIC, Interrupted, World, entries, interrupted, repairs, written
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.snapshots.repair_rules import Remedy, empty_index
from udfs.snapshots.topic_findings import BufferFacts

HALF = written(BEFORE_ALL).data


def _killed_in_the_midst_of_its_replay(journal: Folder, clock: ManualClock, world: Interrupted) -> None:
    """A repair is cut short, and then its broker ends: what it wrote stands there, and nobody has the topic loaded."""
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC)
    world.is_loaded = False
    assert world.indexes[-1].data == HALF
    clock.advance(1_000)


def test_a_repair_that_goes_on_loads_no_topic_from_an_index_of_half_a_replay(journal: Folder) -> None:
    world, clock = interrupted("load", written(BEFORE_ALL), written(at=(1, 95))), ManualClock(1_000)
    _killed_in_the_midst_of_its_replay(journal, clock, world)
    done = repairs(world, journal, clock).repair(TOPIC)
    assert HALF not in world.loaded_from
    assert (done.went_on, done.not_verified, done.not_written) == (True, "", "")
    assert len(entries(journal)) == 2  # what the broker wrote is in the journal as well
    assert repairs(world, journal, clock).undo(TOPIC)[0] == done.journal


def test_one_that_a_client_had_loaded_from_it_meanwhile_is_unloaded(journal: Folder) -> None:
    class Quick(Interrupted):
        """A client has the topic loaded right before the index that replaces half a replay's is there."""

        is_quick = False

        def send(self, key: str, value: bytes | None) -> Position:
            if self.is_quick:
                self.loaded_from.append(self.indexes[-1].data)
                self.is_loaded = True
            return super().send(key, value)

    world, clock = Quick(writes=[written(BEFORE_ALL)]), ManualClock(1_000)
    world.at = "load"
    _killed_in_the_midst_of_its_replay(journal, clock, world)
    world.is_quick = True
    repairs(world, journal, clock).repair(TOPIC)
    assert world.loaded_from[-2:] == [HALF, empty_index(TOPIC)]


def test_a_broker_that_is_replaying_the_topic_is_not_disturbed(journal: Folder) -> None:
    world, clock = interrupted("load", written(BEFORE_ALL)), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC)
    world.state, sent = "Initializing", len(world.sent)
    said: list[str] = []

    def comes_to_its_end(_seconds: float) -> None:
        clock.advance(30_000)
        assert (len(world.sent), world.is_loaded) == (sent, True)
        if len(said) > 2:
            world.state = "Ready"
            world.indexes.append(written(at=(1, 97)))

    done = replace(repairs(world, journal, clock), sleep=comes_to_its_end, say=said.append).repair(TOPIC)
    assert f"{TOPIC} is not ready after 30 seconds; its state: Initializing" in said
    assert (done.went_on, done.not_verified) == (True, "")
    assert len(world.sent) == sent


def test_an_index_whose_segments_are_lost_by_now_is_not_published_once_more(journal: Folder) -> None:
    class Trimming(World):
        def load(self, topic: str) -> None:
            super().load(topic)
            self.segments = []

    world = Trimming(sealed=frozenset({(5, 9)}), writes=[written(BEFORE_ALL)])
    with pytest.raises(SafetyError, match="2 segments of the repair's own index can't be read any more"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent.count(TOPIC) == 1


def test_a_broker_that_does_not_say_whether_it_has_the_topic_is_not_asked_to_load_it(journal: Folder) -> None:
    """Nobody could tell whether the load would take an index of half a replay."""
    world, clock = interrupted("load", written(BEFORE_ALL)), ManualClock(1_000)
    _killed_in_the_midst_of_its_replay(journal, clock, world)

    class Mute(World):
        def buffer(self, topic: str, *, with_segments: bool = False) -> None:
            if self.done[-1:] == ["guard"]:
                return
            raise UnavailableError("503")

    mute = Mute(indexes=world.indexes, cursor=None)
    with pytest.raises(UnavailableError, match=r"503|has not loaded it within 10 minutes"):
        repairs(mute, journal, clock).repair(TOPIC)
    assert mute.tries == 0


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
