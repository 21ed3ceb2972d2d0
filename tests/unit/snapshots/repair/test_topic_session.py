"""Whether an index was published is told by a mark, or by the topic as long as that reaches back to it."""

import pytest

from streaming.clock import ManualClock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.snapshots.repair.topic_session import interruption
from streaming.state.filesystem import Folder
from tests.unit.snapshots.repair_world import OLD, TOPIC, World, repairs, there, written


def _without_its_mark(journal: Folder) -> tuple[World, str]:
    """A repair that was killed once it had sent its index; since then the topic of indexes was compacted."""
    world = World()
    name = repairs(world, journal).repair(TOPIC).journal
    for mark in (".sent", ".done"):
        journal.delete(name.replace(".json", mark))
    world.indexes = [written(at=(1, 80))]
    return world, name


def test_a_topic_that_reaches_back_and_has_no_such_index_says_that_it_was_not_sent(journal: Folder) -> None:
    world, _name = _without_its_mark(journal)
    with pytest.raises(ConfigError, match="no repair"):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    with pytest.raises(SafetyError, match="it works"):
        repairs(world, journal, ManualClock(2_000)).repair(TOPIC)


def test_one_that_does_not_reach_back_any_more_says_nothing_and_an_undo_is_refused(journal: Folder) -> None:
    world, name = _without_its_mark(journal)
    world.trimmed, sent = 1, len(world.sent)
    with pytest.raises(SafetyError, match=f"whether the index of {name} .* is not known.*Nothing was sent"):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert len(world.sent) == sent
    assert repairs(world, journal, ManualClock(2_000)).repair(TOPIC).went_on  # which verifies, and sends nothing
    assert len(world.sent) == sent
    journal.delete(name)
    with pytest.raises(ConfigError, match="no repair"):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)


def test_what_is_at_its_old_place_alone_was_not_sent(journal: Folder) -> None:
    """The same index had been there before, as after an undo of an earlier repair."""
    world, clock = World(), ManualClock(1_000)
    repairs(world, journal, clock).repair(TOPIC)
    repairs(world, journal, clock).undo(TOPIC)
    world.is_loaded, world.breaks = False, True
    with pytest.raises(UnavailableError, match="may be published"):
        repairs(world, journal, clock).repair(TOPIC)
    world.breaks = False
    world.indexes.append(there(written().data))
    name, _kept = repairs(world, journal, clock).undo(TOPIC)
    assert "UNDO" not in name
    assert world.indexes[-1].data != OLD  # what the first undo had replaced


@pytest.mark.parametrize(
    ("index", "why"), [(b"torn", "its index can't be read .*, so it is not replaced"), (None, "has no index now")]
)
def test_an_index_that_the_journal_could_not_keep_is_not_replaced(
    index: bytes | None, why: str, journal: Folder
) -> None:
    world = World()
    repairs(world, journal).repair(TOPIC)
    world.indexes.append(there(index))
    with pytest.raises(SafetyError, match=why):
        repairs(world, journal)._session(TOPIC).latest()


HALF = "Half of it is there"


@pytest.mark.parametrize("error", [UnavailableError("away"), RefusedError("no"), KeyboardInterrupt()])
def test_what_is_cut_short_says_what_became_of_it(error: BaseException) -> None:
    with (
        pytest.raises(UnavailableError, match=HALF),
        interruption(TOPIC, "repair", HALF),
    ):
        raise error


def test_a_refusal_of_ours_is_no_cut() -> None:
    with pytest.raises(SafetyError, match=r"^look first$"), interruption(TOPIC, "repair", HALF):
        raise SafetyError("look first")
