"""An undo puts back what a repair found, and nothing with which the topic would be worse off."""

import base64
import json
from dataclasses import replace

import pytest

from streaming.clock import ManualClock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import Unreadable, Znode
from streaming.snapshots.repair.repair_journal import RepairJournal
from streaming.state.filesystem import Folder
from tests.builders import list_znode
from tests.unit.snapshots.repair_world import (
    NEWER,
    OLD,
    TOPIC,
    World,
    doubled,
    entries,
    read_at,
    repairs,
    segment_at,
    there,
    written,
)
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, encode_index, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue


def test_an_undo_without_a_repair_is_refused(journal: Folder) -> None:
    world = World()
    with pytest.raises(ConfigError, match="no repair"):
        repairs(world, journal).undo(TOPIC)
    assert world.done == []


def test_an_undo_keeps_what_the_broker_wrote_since_and_another_one_puts_that_back(journal: Folder) -> None:
    """A broker that replays a topic writes its own index behind ours within a second."""
    world, clock = World(), ManualClock(1_000)
    first = repairs(world, journal, clock).repair(TOPIC).journal
    world.indexes.append(there(NEWER))
    clock.advance(1)
    name, second = repairs(world, journal, clock).undo(TOPIC)
    assert (name, world.indexes[-1].data) == (first, OLD)
    clock.advance(1)
    name, _third = repairs(world, journal, clock).undo(TOPIC)
    assert (name, world.indexes[-1].data) == (second, NEWER)


class Connected(World):
    """A client of the topic is connected all the time, and has it loaded again as soon as it was unloaded."""

    memory: bytes = b""
    writes_over: ReadValue | None = None

    def unload(self, topic: str) -> bool:
        self.done.append("unload")
        self.memory = self.indexes[-1].data
        return True

    def send(self, key: str, value: bytes | None) -> Position:
        super().send(key, value)
        at = self.indexes[-1].position
        if self.writes_over is not None:
            self.indexes.append(self.writes_over)
        return at


def test_an_undo_unloads_a_topic_that_a_client_had_loaded_meanwhile_from_what_is_replaced(journal: Folder) -> None:
    """Seen on Pulsar 4.0.8: a producer that was connected was quicker, and the broker went on from the other index."""
    world, clock = Connected(), ManualClock(1_000)
    repairs(world, journal, clock).repair(TOPIC)
    clock.advance(1_000)
    repairs(world, journal, clock).undo(TOPIC)
    assert world.memory == OLD


def test_an_undo_over_which_a_broker_wrote_its_own_index_says_so(journal: Folder) -> None:
    world, clock = Connected(), ManualClock(1_000)
    repairs(world, journal, clock).repair(TOPIC)
    world.writes_over = read_at(SnapshotKind.INDEX, TOPIC, NEWER, (1, 99))
    clock.advance(1_000)
    with pytest.raises(SafetyError, match=r"wrote its own index over it: disconnect its clients"):
        repairs(world, journal, clock).undo(TOPIC)


def test_an_undo_moves_a_guard_back_that_has_moved_on_since(journal: Folder) -> None:
    world = World()
    repairs(world, journal).repair(TOPIC)
    world.cursor = (10, 3)
    repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.cursor == (10, -1)


def test_an_undo_that_broke_off_behind_the_journal_is_done_by_the_next_one(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    first = repairs(world, journal, clock).repair(TOPIC).journal
    world.indexes.append(there(NEWER))
    clock.advance(1)
    world.breaks = True
    with pytest.raises(UnavailableError, match="broke off"):
        repairs(world, journal, clock).undo(TOPIC)
    world.breaks = False
    clock.advance(1)
    name, _kept = repairs(world, journal, clock).undo(TOPIC)
    assert (name, world.indexes[-1].data) == (first, OLD)


def test_an_undo_sends_nothing_before_the_journal_has_what_is_there(journal: Folder) -> None:
    world = World()
    repairs(world, journal).repair(TOPIC)
    world.indexes.append(there(NEWER))
    sent = list(world.sent)

    class Full(RepairJournal):
        def write(self, *_what: object) -> str:
            raise UnavailableError("no space left")

    runs = repairs(world, journal)
    with pytest.raises(UnavailableError, match="no space left"):
        replace(runs, journal=Full(journal, runs.clock)).undo(TOPIC)
    assert world.sent == sent


def test_the_last_repair_is_undone_also_where_the_clock_was_set_back(journal: Folder) -> None:
    world, clock = World(), ManualClock(9_000)
    repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(there(NEWER))
    clock.advance(-8_000)
    _name, kept = repairs(world, journal, clock).undo(TOPIC)
    world.segments = [segment_at(1, (10, 0))]
    assert repairs(world, journal, clock).undo(TOPIC)[0] == kept
    assert world.indexes[-1].data == NEWER


@pytest.mark.parametrize(
    ("index", "why"),
    [
        pytest.param(b"torn", "they can't decode", id="somebody wrote one that is torn"),
        pytest.param(None, "has no index now", id="it has a tombstone"),
        pytest.param(OLD, "is in place already", id="it was put back"),
    ],
)
def test_an_undo_that_has_nothing_to_put_back_or_to_keep_is_refused(
    index: bytes | None, why: str, journal: Folder
) -> None:
    world = World()
    repairs(world, journal).repair(TOPIC)
    world.indexes.append(there(index))
    done = list(world.done)
    with pytest.raises(SafetyError, match=why):
        repairs(world, journal).undo(TOPIC)
    assert world.done == done


def test_an_index_that_is_written_while_the_topic_is_unloaded_is_not_replaced(journal: Folder) -> None:
    world = World()
    repairs(world, journal).repair(TOPIC)
    assert world.is_loaded
    world.meanwhile = there(NEWER)
    sent = list(world.sent)
    with pytest.raises(SafetyError, match="its index was written during the undo"):
        repairs(world, journal).undo(TOPIC)
    assert world.sent == sent
    assert len(entries(journal)) == 1


def test_an_undo_does_not_put_back_an_index_of_which_segments_were_trimmed_since(journal: Folder) -> None:
    """The topic worked with it when its doubled ids were mended, and would not load with it now."""
    world = doubled()
    repairs(world, journal).repair(TOPIC)
    world.segments = world.segments[1:]
    sent, done = list(world.sent), list(world.done)
    with pytest.raises(
        SafetyError, match="1 segments that the topic needs and the old index names can't be read by now, and 0 when"
    ):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert (world.sent, world.done) == (sent, done)
    world.node = Unreadable("no right")
    with pytest.raises(UnavailableError, match="could not be read"):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    world.node = Znode(data=list_znode(6), version=0, ctime_ms=0, mtime_ms=0)  # the topic needs it no more
    repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.indexes[-1].data == OLD


def test_an_undo_sees_a_segment_that_is_trimmed_while_the_topic_is_unloaded(journal: Folder) -> None:
    world = doubled()
    repairs(world, journal).repair(TOPIC)
    world.trims = True
    sent = list(world.sent)
    with pytest.raises(SafetyError, match="Nothing was sent"):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.sent == sent


def test_an_undo_goes_back_over_no_repair_of_half_a_replay_to_an_older_one(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(written(BEFORE_ALL))
    world.is_loaded = True
    clock.advance(1_000)
    repairs(world, journal, clock).repair(TOPIC)
    sent = len(world.sent)
    with pytest.raises(ConfigError, match="that can be undone"):
        repairs(world, journal, clock).undo(TOPIC)
    assert len(world.sent) == sent


def test_an_undo_puts_back_no_index_of_half_a_replay_that_an_undo_replaced(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(written(BEFORE_ALL))
    clock.advance(1_000)
    repairs(world, journal, clock).undo(TOPIC)
    sent = len(world.sent)
    clock.advance(1_000)
    with pytest.raises(SafetyError, match="during a replay"):
        repairs(world, journal, clock).undo(TOPIC)
    assert len(world.sent) == sent


def test_an_undo_puts_back_no_index_of_another_topic(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    name = repairs(world, journal, clock).repair(TOPIC).journal
    entry = json.loads(journal.read(name) or b"")
    other = encode_index(Index(f"{TOPIC}-other", entries_of([]), (6, 0), ids_of([])))
    journal.write(name, json.dumps({**entry, "replaced": base64.b64encode(other).decode()}).encode())
    with pytest.raises(SafetyError, match="belongs to"):
        repairs(world, journal, clock).undo(TOPIC)


def test_a_repair_that_broke_off_before_it_sent_anything_is_not_what_an_undo_takes_back(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    first = repairs(world, journal, clock).repair(TOPIC).journal
    broken = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 9))]), (6, 0), ids_of([])))
    world.indexes.append(there(broken))
    world.is_loaded, world.breaks = False, True
    with pytest.raises(UnavailableError, match="may be published"):
        repairs(world, journal, clock).repair(TOPIC)
    world.breaks = False
    assert len(entries(journal)) == 2
    world.indexes.append(there(NEWER))  # and the topic goes on
    assert repairs(world, journal, clock).undo(TOPIC)[0] == first


def test_a_first_repair_that_broke_off_before_it_sent_anything_leaves_nothing_to_undo(journal: Folder) -> None:
    world = World(breaks=True)
    with pytest.raises(UnavailableError, match="may be published"):
        repairs(world, journal).repair(TOPIC)
    world.breaks = False
    with pytest.raises(ConfigError, match="no repair"):
        repairs(world, journal).undo(TOPIC)
    assert not repairs(world, journal).repair(TOPIC).went_on


def test_a_repair_that_was_killed_before_it_wrote_down_that_it_had_sent_counts(journal: Folder) -> None:
    """Its index can be seen in the topic, also behind what the broker wrote since."""
    for later in (None, NEWER):
        world = World()
        name = repairs(world, journal).repair(TOPIC).journal
        journal.delete(name.replace(".json", ".sent"))
        if later is not None:
            world.indexes.append(there(later))
        assert repairs(world, journal).undo(TOPIC)[0] == name
        assert world.indexes[-1].data == OLD


def test_a_journal_with_a_file_that_is_none_can_be_used(journal: Folder) -> None:
    world = World()
    name = repairs(world, journal).repair(TOPIC).journal
    journal.write("000000000009999.json", b"torn {")
    assert repairs(world, journal).undo(TOPIC)[0] == name


def test_the_guard_stands_before_what_the_old_index_names_when_that_is_sent(journal: Folder) -> None:
    """While no index named these segments, it may have moved over them, and a trim would take them."""
    world = World()
    repairs(world, journal).repair(TOPIC)
    world.cursor = (10, 3)
    repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.cursors[-1] == (10, -1)


class Moved(World):
    """The service moves the guard on right after the index was sent."""

    breaks_off: BaseException | None = None
    is_sent: bool = False

    def send(self, key: str, value: bytes | None) -> Position:
        at = super().send(key, value)
        if self.breaks_off is not None:
            self.cursor = (10, 3)
            raise self.breaks_off
        return at


@pytest.mark.parametrize("error", [UnavailableError("no answer"), KeyboardInterrupt()])
def test_an_undo_that_is_cut_short_says_what_is_there_and_leaves_a_guard(error: BaseException, journal: Folder) -> None:
    world, clock = Moved(), ManualClock(1_000)
    first = repairs(world, journal, clock).repair(TOPIC).journal
    world.breaks_off = error
    with pytest.raises(UnavailableError, match=rf"index in {first} is or may be published .* journal, which"):
        repairs(world, journal, clock).undo(TOPIC)
    assert world.cursor == (10, -1)


def test_an_undo_that_is_cut_short_behind_its_index_says_that_it_is_there(journal: Folder) -> None:
    class Forbidding(World):
        def unload(self, topic: str) -> bool:
            if self.sent.count(TOPIC) > 1:
                raise RefusedError("403")
            return super().unload(topic)

    world, clock = Forbidding(client=True), ManualClock(1_000)
    first = repairs(world, journal, clock).repair(TOPIC).journal
    with pytest.raises(UnavailableError, match=rf"403\. The index in {first} is published"):
        repairs(world, journal, clock).undo(TOPIC)


def test_an_undo_that_may_not_unload_the_topic_sends_nothing(journal: Folder) -> None:
    world = World()
    repairs(world, journal).repair(TOPIC)
    world.forbids, sent = True, len(world.sent)
    with pytest.raises(RefusedError, match="403"):
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert len(world.sent) == sent
