"""A repair is refused unless a lost segment keeps the topic from being loaded, and what it replaces can be put back."""

from dataclasses import replace
from typing import Any

import pytest

from streaming.clock import ManualClock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import Unreadable, Znode
from streaming.state.filesystem import Folder, folder_of
from tests.builders import list_znode
from tests.unit.snapshots.repair_world import (
    DOUBLED,
    MARKERS,
    OLD,
    PLACE,
    TAIL,
    TOPIC,
    Interrupted,
    World,
    doubled,
    entries,
    interrupted,
    read_at,
    repairs,
    replayed,
    segment_at,
    written,
)
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, decode_index, encode_index, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import Remedy
from udfs.snapshots.sealed_segments import named_segments


def test_a_topic_that_does_not_load_is_replayed_behind_a_guard_and_the_old_index_is_kept(journal: Folder) -> None:
    world = World()
    done = repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "send"]
    assert world.is_loaded
    assert (done.aborted, done.known, done.expected, done.delivered) == (3, 4, 3, 2)
    assert done.not_verified == ""
    sent = world.indexes[-1].data
    assert (decode_index(sent).entries.rows, decode_index(sent).max_read, len(sent)) == (0, BEFORE_ALL, len(TOPIC) + 9)
    assert entries(journal) == [done.journal]

    assert repairs(world, journal, ManualClock(2_000)).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD
    assert not world.is_loaded


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param(
            {"is_loaded": True, "segments": [segment_at(0, (9, 0)), segment_at(1, (10, 0))]}, "it works", id="it works"
        ),
        pytest.param({"is_loaded": True}, "disconnect its clients, unload it", id="it works, and will not load again"),
        pytest.param({"node": None}, "ZooKeeper does not have the topic$", id="it is gone"),
        pytest.param(
            {"node": Unreadable("no right")}, "its list could not be read: no right$", id="its ledgers are not known"
        ),
        pytest.param(
            {"node": Znode(data=list_znode(6), version=0, ctime_ms=0, mtime_ms=0)},
            "something else",
            id="its marker is gone",
        ),
        pytest.param(
            {"segments": [segment_at(0, (9, 0)), segment_at(1, (10, 0))]},
            "something else",
            id="all segments can be read",
        ),
        pytest.param({"indexes": []}, "no index", id="it has no index"),
        pytest.param(
            {"indexes": [read_at(SnapshotKind.INDEX, TOPIC, b"torn", (1, 1))]},
            "--namespace t/ns",
            id="its index is torn",
        ),
        pytest.param(
            {"meanwhile": read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 2)), "is_loaded": True, "state": "Initializing"},
            "its index has changed during the repair",
            id="somebody writes its index",
        ),
    ],
)
def test_whatever_else_is_refused_and_nothing_is_sent(changes: dict[str, Any], why: str, journal: Folder) -> None:
    world = World(**changes)
    with pytest.raises(SafetyError, match=why):
        repairs(world, journal).repair(TOPIC)
    assert "send" not in world.done


def test_a_replay_that_found_less_than_the_old_segments_tell_is_an_alarm(journal: Folder) -> None:
    """Of segment 0 only the last id lives for certain; of segment 1, and of the tail behind it, all do."""
    with pytest.raises(
        SafetyError, match="has 3 that must be there; a reader gets 2 entries, none of them aborted: keep"
    ) as told:
        repairs(World(replayed=2), journal).repair(TOPIC)
    assert "undo" not in str(told.value)


def test_a_replay_during_which_a_ledger_was_trimmed_is_no_alarm(journal: Folder) -> None:
    class Trimmed(World):
        def load(self, topic: str) -> None:
            super().load(topic)
            self.node = Znode(data=list_znode(6), version=0, ctime_ms=0, mtime_ms=0)

    world = Trimmed(replayed=0)
    done = repairs(world, journal).repair(TOPIC)
    assert (done.aborted, done.expected, done.known) == (0, 0, 1)


def test_a_topic_that_is_deleted_while_it_is_unloaded_is_not_repaired(journal: Folder) -> None:
    world = World(vanishes=True, is_loaded=True, state="Initializing")
    with pytest.raises(SafetyError, match="ZooKeeper does not have"):
        repairs(world, journal).repair(TOPIC)
    assert (world.sent, journal.names()) == ([], [])


def test_a_topic_that_does_not_load_all_the_same_is_told_after_ten_minutes(journal: Folder) -> None:
    world = World(loads=False)
    with pytest.raises(UnavailableError, match=r"not loaded it within 10 minutes.*last error: no answer"):
        repairs(world, journal).repair(TOPIC)
    assert world.tries == 21
    assert len(entries(journal)) == 1


def test_lost_segments_are_published_once_more_and_named_at_their_new_places(journal: Folder) -> None:
    world = World()
    done = repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == [f"multiple-0-{TOPIC}", TOPIC]
    index = decode_index(world.indexes[-1].data)
    assert list(named_segments(index)) == [(0, (11, 1), (5, 1)), (1, (10, 0), (5, 9))]
    assert (index.max_read, index.tail.rows, done.remedy) == ((5, 9), 0, Remedy.REPUBLISH)
    assert world.is_loaded
    assert repairs(world, journal, ManualClock(2_000)).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


class Passing(World):
    """A guard is moved on while segments are published once more, and while an index is: none has named them yet."""

    trims_sent: bool = False

    def send(self, key: str, value: bytes | None) -> Position:
        at = super().send(key, value)
        self.cursor = (11, 90)
        if self.trims_sent and key != TOPIC:
            self.segments = [each for each in self.segments if each.position[0] < 11]
        return at


def test_segments_that_are_published_once_more_are_guarded_though_no_index_names_them_yet(journal: Folder) -> None:
    rows = [(0, (9, 0), (5, 1)), (1, (9, 2), (5, 9))]
    all_lost = encode_index(Index(TOPIC, entries_of(rows), (5, 9), ids_of([TAIL])))
    world = Passing(segments=[], indexes=[read_at(SnapshotKind.INDEX, TOPIC, all_lost, (1, 1))])
    repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == [f"multiple-0-{TOPIC}", f"multiple-1-{TOPIC}", TOPIC]
    assert world.cursors == [(11, -1)]  # when the index was sent
    assert world.cursor == (11, -1)  # and afterwards


def test_no_index_names_segments_that_were_trimmed_before_their_guard_was_there(journal: Folder) -> None:
    world = Passing()
    world.trims_sent = True
    with pytest.raises(SafetyError, match=r"1 segments .* trimmed before their guard .* run the same command again"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == [f"multiple-0-{TOPIC}"]
    assert entries(journal) == []


@pytest.mark.parametrize("remedy", Remedy)
def test_a_topic_that_no_broker_has_is_never_loaded_from_the_index_that_is_replaced(
    remedy: Remedy, journal: Folder
) -> None:
    """A broker that is to unload a topic which it does not have loads it first."""
    world = World()
    repairs(world, journal).repair(TOPIC, remedy)
    assert OLD not in world.loaded_from
    repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert OLD not in world.loaded_from


def test_a_segment_that_the_compacted_topic_lacks_too_can_only_be_replayed(journal: Folder) -> None:
    world = World(compacts={1: segment_at(1, (10, 0))})
    with pytest.raises(SafetyError, match="has no segments 0 either"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_a_segment_of_that_number_whose_marker_is_another_one_is_not_published(journal: Folder) -> None:
    """A broker that replayed a topic counts from 0 again: its segment 0 holds other ids."""
    world = World(compacts={0: segment_at(0, (10, 3), [(1, 7)], (6, 2)), 1: segment_at(1, (10, 0))})
    with pytest.raises(SafetyError, match="has no segments 0 either"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_an_index_that_names_a_number_twice_can_only_be_replayed(journal: Folder) -> None:
    rows = [(0, (9, 0), (5, 1)), (0, (9, 1), (5, 9))]
    twice = encode_index(Index(TOPIC, entries_of(rows), (5, 9), ids_of([])))
    world = World(
        indexes=[read_at(SnapshotKind.INDEX, TOPIC, twice, (1, 1))],
        segments=[segment_at(0, (9, 1), [(1, 3)], (5, 9))],
        compacts={0: segment_at(0, (9, 0))},
    )
    with pytest.raises(SafetyError, match="names a segment's number twice"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_a_topic_that_works_and_has_doubled_ids_is_replayed(journal: Folder) -> None:
    world = doubled(client=True)
    done = repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send", "unload"]
    assert (done.aborted, done.known, done.expected) == (3, 4, 2)


def test_doubled_ids_are_no_reason_to_publish_segments_once_more(journal: Folder) -> None:
    with pytest.raises(SafetyError, match="it works"):
        repairs(doubled(), journal).repair(TOPIC, Remedy.REPUBLISH)


def test_a_topic_that_lost_a_segment_and_has_doubled_ids_can_only_be_replayed(journal: Folder) -> None:
    world = World(
        segments=[segment_at(1, (10, 0), DOUBLED)],
        compacts={0: segment_at(0, (9, 0)), 1: segment_at(1, (10, 0), DOUBLED)},
    )
    with pytest.raises(SafetyError, match="ids are in several of its segments, so only a replay"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_a_broker_that_writes_its_old_index_over_ours_is_told(journal: Folder) -> None:
    world = doubled(client=True, overwritten=read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 99)))
    with pytest.raises(SafetyError, match="disconnect its clients"):
        repairs(world, journal).repair(TOPIC)


@pytest.mark.parametrize("one", [(1, 1), (1, 3), TAIL])
def test_a_message_that_was_taken_back_and_is_read_all_the_same_is_an_alarm(
    one: tuple[int, int], journal: Folder
) -> None:
    with pytest.raises(SafetyError, match=rf"got a message of aborted transaction \({one[0]}, {one[1]}\)"):
        repairs(World(gets=[None, one]), journal).repair(TOPIC)


@pytest.mark.parametrize(
    ("at", "remedy"),
    [
        ("sent", Remedy.REPLAY),  # of a repair with --republish that is a segment, and the old index stands there yet
        *((at, remedy) for at in ("load", "read") for remedy in Remedy),
    ],
)
def test_a_repair_that_was_interrupted_says_so_and_the_next_one_goes_on(
    at: str, remedy: Remedy, journal: Folder
) -> None:
    world, clock = interrupted(at), ManualClock(1_000)
    said = "may be published" if at == "sent" else "index is published"
    with pytest.raises(UnavailableError, match=f"was interrupted.* {said}, and {TOPIC} is not verified: run") as told:
        repairs(world, journal, clock).repair(TOPIC, remedy)
    assert told.value.__suppress_context__
    sent = list(world.sent)
    clock.advance(1_000)
    done = repairs(world, journal, clock).repair(TOPIC, remedy)
    assert world.sent == sent
    assert (done.went_on, done.not_verified, done.remedy, done.known, done.expected) == (True, "", remedy, 4, 3)
    assert entries(journal) == [done.journal]
    clock.advance(1_000)
    with pytest.raises(SafetyError, match="it works"):  # it was verified
        repairs(world, journal, clock).repair(TOPIC, remedy)
    assert repairs(world, journal, clock).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_what_a_broker_wrote_in_the_midst_of_a_repair_that_was_cut_short_is_replaced_by_the_next(
    journal: Folder,
) -> None:
    world, clock = interrupted("load", written(BEFORE_ALL), written(at=(1, 95))), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC)
    assert world.indexes[-1].data == written(BEFORE_ALL).data
    clock.advance(1_000)
    done = repairs(world, journal, clock).repair(TOPIC)
    assert (done.went_on, done.not_verified, done.not_written) == (True, "", "")
    assert world.indexes[-1].data == written().data
    clock.advance(1_000)
    assert repairs(world, journal, clock).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_a_repair_that_goes_on_tells_what_is_still_read_of_what_the_first_one_knew(journal: Folder) -> None:
    world, clock = interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC)
    world.gets = [(1, 1)]
    with pytest.raises(SafetyError, match=r"aborted transaction \(1, 1\)"):
        repairs(world, journal, clock).repair(TOPIC)
    world.gets, world.replayed = [None], 2
    with pytest.raises(SafetyError, match="has 2 aborted ids, and its old snapshot has 3 that must be there"):
        repairs(world, journal, clock).repair(TOPIC)


def test_a_repair_that_was_taken_back_is_not_gone_on_with(journal: Folder) -> None:
    world, clock = interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC)
    first = repairs(world, journal, clock).undo(TOPIC)[0]
    done = repairs(world, journal, clock).repair(TOPIC)
    assert not done.went_on
    assert done.journal > first


def test_a_repair_whose_segments_are_lost_by_now_is_not_gone_on_with(journal: Folder) -> None:
    """A broker that is stuck would be given an index with which the topic does not load."""
    world, clock = interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC, Remedy.REPUBLISH)
    world.segments = [segment_at(1, (10, 0))]
    world.indexes.append(written())
    with pytest.raises(SafetyError, match="it works"):
        repairs(world, journal, clock).repair(TOPIC)


def test_a_repair_that_was_interrupted_before_anything_was_sent_leaves_nothing(journal: Folder) -> None:
    world = interrupted("guard")
    with pytest.raises(KeyboardInterrupt):
        repairs(world, journal).repair(TOPIC)
    assert (world.sent, journal.names()) == ([], [])


def test_an_index_that_a_broker_wrote_in_the_midst_of_a_replay_of_its_own_is_replaced(journal: Folder) -> None:
    """Nobody repaired it: its broker was killed, or comes to no end. The next load would seal every id twice."""
    world = World(indexes=[written(BEFORE_ALL)], is_loaded=True, client=True)
    with pytest.raises(SafetyError, match="it works"):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []
    done = repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send", "unload"]
    assert decode_index(world.indexes[-1].data).entries.rows == 0
    assert "during a replay" in done.not_verified
    with pytest.raises(ConfigError, match="no repair"):  # nobody wants that index back
        repairs(world, journal, ManualClock(2_000)).undo(TOPIC)


def test_a_repair_of_half_a_replay_that_was_cut_short_is_not_verified_by_what_the_broker_wrote_since(
    journal: Folder,
) -> None:
    world, clock = Interrupted(indexes=[written(BEFORE_ALL)], is_loaded=True), ManualClock(1_000)
    world.at = "read"
    with pytest.raises(UnavailableError, match="was interrupted"):
        repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(written(at=(1, 95)))
    done = repairs(world, journal, clock).repair(TOPIC)
    assert done.went_on
    assert "during a replay" in done.not_verified


def test_a_repair_says_what_it_waits_for(journal: Folder) -> None:
    said: list[str] = []
    world = replayed(None, None, written())
    replace(repairs(world, journal), say=said.append).repair(TOPIC)
    assert said[0].startswith(f"{TOPIC} has a new index; the old one is 0000")
    assert any(
        "waiting for its broker's index, 30 seconds so far: its broker has sealed 1 seg" in each for each in said
    )
    assert any(each.endswith("loading the topic again (2 of 8)") for each in said)
    assert said[-1] == f"{TOPIC} is loaded; reading it once, as a client does"
    slow = World(loads=False)
    said.clear()
    with pytest.raises(UnavailableError, match="has not loaded it within 10 minutes"):
        replace(repairs(slow, folder_of(f"{journal.location}-2")), say=said.append).repair(TOPIC)
    assert said[1] == f"{TOPIC} is not ready after 30 seconds; its state: not loaded"


BOTH = encode_index(Index(TOPIC, entries_of([(0, (9, 5), MARKERS[0]), (1, PLACE, MARKERS[1])]), (6, 0), ids_of([])))
NO_TAIL = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1))]), (5, 9), ids_of([])))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param(
            {"indexes": [read_at(SnapshotKind.INDEX, TOPIC, NO_TAIL, (1, 1))], "compacts": {}},
            "no old ids are known",
            id="nobody has the segment any more",
        ),
        pytest.param(
            {"compacts": {1: segment_at(1, (10, 0))}},
            "the ids of segments 0 are not known",
            id="some segments are gone",
        ),
        pytest.param({"ends": False}, "no reader reached the topic's end: silence", id="not read to its end"),
    ],
)
def test_a_repair_that_can_not_be_verified_reports_the_reason(
    changes: dict[str, Any], why: str, journal: Folder
) -> None:
    world = World(**changes)
    done = repairs(world, journal).repair(TOPIC)
    assert world.is_loaded
    assert done.not_verified == why
    assert "none of them aborted" not in done.describe()


def test_a_broker_that_does_not_answer_for_a_while_does_not_end_a_repair(journal: Folder) -> None:
    world = replayed(written())
    world.mute = 3
    assert repairs(world, journal).repair(TOPIC).not_written == ""
    assert world.mute == 0


def test_a_repair_waits_for_the_index_that_the_broker_writes(journal: Folder) -> None:
    world = replayed(written())
    done = repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "send"]
    assert done.not_written == ""


def test_a_topic_of_which_its_broker_writes_nothing_is_loaded_again(journal: Folder) -> None:
    """Pulsar 4.0.8 can stay busy for ever, and then writes neither segments nor an index."""
    world = replayed(None, None, written())
    done = repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "send", "unload", "unload"]  # what we published stands there yet
    assert world.is_loaded
    assert (done.not_written, done.loads) == ("", 3)


def test_a_topic_of_which_its_broker_never_writes_anything_is_told_after_eight_loads(journal: Folder) -> None:
    world = replayed()
    done = repairs(world, journal).repair(TOPIC)
    assert world.done.count("unload") == 7
    assert world.is_loaded
    assert done.not_written == "its broker has sealed 1 segments, and 1 of them are not in its index"
    assert decode_index(world.indexes[-1].data).entries.rows == 0


def test_a_topic_of_many_segments_is_not_loaded_again(journal: Folder) -> None:
    """Each segment is a chance to stop, so that another load would hardly come to its end."""
    for count, unloads in ((50, 7), (51, 0)):
        world = World(sealed=frozenset((5, entry) for entry in range(count)))
        done = repairs(world, journal, ManualClock(count * 1_000_000)).repair(TOPIC)
        assert world.done.count("unload") == unloads
        assert done.not_written == f"its broker has sealed {count} segments, and {count} of them are not in its index"


def test_an_index_without_a_max_read_position_is_replaced_before_the_next_load(journal: Folder) -> None:
    """With it the broker would read the whole topic, and seal every id twice."""
    world = replayed(written(BEFORE_ALL), written(at=(1, 95)))
    world.client = True
    done = repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "send", "unload", "send", "unload"]
    assert done.not_written == ""
    assert world.indexes[-1].data == written().data
    assert len(entries(journal)) == 2  # the broker's own went there as well
    assert repairs(world, journal, ManualClock(900_000)).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_an_index_that_lacks_what_its_broker_has_sealed_is_replaced_before_the_next_load(journal: Folder) -> None:
    world = World(
        sealed=frozenset(MARKERS.values()),
        writes=[written(), read_at(SnapshotKind.INDEX, TOPIC, BOTH, (1, 99))],
        segments=[segment_at(0, (9, 5)), segment_at(1, PLACE)],
        indexes=[read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 1))],
        client=True,
    )
    done = repairs(world, journal).repair(TOPIC)
    assert done.not_written == ""
    assert world.done == ["guard", "send", "unload", "send", "unload"]  # a client had it loaded from the broker's index
    assert done.loads == 2  # that load would come to nothing
    assert [decode_index(each).entries.rows for each in world.loaded_from] == [0, 0]


def test_a_broker_that_only_ever_writes_such_an_index_does_not_keep_it(journal: Folder) -> None:
    world = replayed(*(written(BEFORE_ALL, (1, 90 + each)) for each in range(9)))
    done = repairs(world, journal).repair(TOPIC)
    assert done.not_written == "its index names 1 segments and no maxReadPosition"
    assert world.is_loaded
    assert decode_index(world.indexes[-1].data).entries.rows == 0


def test_a_broker_that_goes_on_writing_is_waited_for(journal: Folder) -> None:
    """It writes segments for longer than it may be silent."""
    world, clock = replayed(), ManualClock(1_000)
    steps = iter([1, 2, 3, 4])

    def writes_more(_seconds: float) -> None:
        clock.advance(15_000)
        step = next(steps)
        world.indexes.append(written() if step == 4 else written(BEFORE_ALL, (1, 80 + step)))

    done = replace(repairs(world, journal, clock), sleep=writes_more).repair(TOPIC)
    assert world.done == ["guard", "send"]
    assert done.not_written == ""


def test_ids_that_a_client_had_sealed_twice_meanwhile_are_told(journal: Folder) -> None:
    """It had the topic loaded between our unload and our index."""
    rows = [(0, (12, 0), MARKERS[0]), (1, (12, 1), MARKERS[1])]
    twice = encode_index(Index(TOPIC, entries_of(rows), (6, 0), ids_of([])))
    world = World(
        sealed=frozenset(MARKERS.values()),
        writes=[read_at(SnapshotKind.INDEX, TOPIC, twice, (1, 99))],
        segments=[segment_at(1, (10, 0)), segment_at(0, (12, 0)), segment_at(1, (12, 1), DOUBLED)],
    )
    with pytest.raises(SafetyError, match="disconnect its clients"):
        repairs(world, journal).repair(TOPIC)


@pytest.mark.parametrize("max_read", [(5, 0), BEFORE_ALL])
def test_a_republished_index_that_would_name_nothing_is_no_replay_in_disguise(
    max_read: Position, journal: Folder
) -> None:
    rows = [(0, (9, 0), (5, 1)), (1, (10, 0), (5, 9))]
    open_at = encode_index(Index(TOPIC, entries_of(rows), max_read, ids_of([TAIL])))
    world = World(indexes=[read_at(SnapshotKind.INDEX, TOPIC, open_at, (1, 1))])
    with pytest.raises(
        SafetyError,
        match="no segment before its maxReadPosition, so nothing of it can be kept: run the command with --replay",
    ):
        repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert (world.sent, journal.names()) == ([], [])


@pytest.mark.parametrize(
    ("remedy", "read"), [(Remedy.REPLAY, "the whole topic"), (Remedy.REPUBLISH, "again what follows the last segment")]
)
def test_what_a_broker_reads_at_each_load_depends_on_the_remedy(remedy: Remedy, read: str, journal: Folder) -> None:
    world = replayed()
    world.sealed = frozenset({(7, 7)})
    assert f"it reads {read}" in repairs(world, journal).repair(TOPIC, remedy).describe()


def test_what_lies_behind_max_read_position_is_left_to_the_replay(journal: Folder) -> None:
    """The broker finds it again; if the index named it, too, the broker would seal it twice."""
    open_at = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1)), (1, (9, 1), (5, 9))]), (5, 4), ids_of([TAIL])))
    world = World(indexes=[read_at(SnapshotKind.INDEX, TOPIC, open_at, (1, 1))], segments=[])
    done = repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == [f"multiple-0-{TOPIC}", TOPIC]
    index = decode_index(world.indexes[-1].data)
    assert list(named_segments(index)) == [(0, (11, 1), (5, 1))]
    assert (index.max_read, index.tail.rows) == ((5, 1), 0)
    assert (done.known, done.expected) == (4, 3)


def test_a_repair_that_may_not_unload_the_topic_sends_nothing(journal: Folder) -> None:
    """Its broker would go on with what it has in memory, and write over what was sent."""
    world = doubled(forbids=True)
    with pytest.raises(RefusedError, match="403"):
        repairs(world, journal).repair(TOPIC)
    assert (world.sent, journal.names()) == ([], [])


def test_a_topic_that_its_broker_is_replaying_is_left_to_it(journal: Folder) -> None:
    world = World(indexes=[written(BEFORE_ALL)], is_loaded=True, state="Initializing")
    with pytest.raises(SafetyError, match="its broker is replaying it: wait"):
        repairs(world, journal).repair(TOPIC)
    assert world.done == []


def test_a_topic_of_which_a_segment_is_lost_never_comes_to_the_end_of_its_replay(journal: Folder) -> None:
    """A client that asks for it again and again has its broker always at the beginning of a load."""
    rows = [(0, (9, 0), MARKERS[0]), (1, (10, 0), MARKERS[1])]
    half = encode_index(Index(TOPIC, entries_of(rows), BEFORE_ALL, ids_of([])))
    world = World(indexes=[read_at(SnapshotKind.INDEX, TOPIC, half, (1, 1))], is_loaded=True, state="Initializing")
    with pytest.raises(UnavailableError, match="has not loaded it within 10 minutes"):  # this broker is never ready
        repairs(world, journal).repair(TOPIC)
    assert world.indexes[-1].data != half


def test_a_repair_that_was_verified_is_over_though_its_broker_has_written_nothing(journal: Folder) -> None:
    """Weeks later it would be gone on with, and say `verified` of a topic of which it knows no newer ids."""
    world, clock = replayed(), ManualClock(1_000)
    done = repairs(world, journal, clock).repair(TOPIC)
    assert (bool(done.not_written), done.not_verified) == (True, "")
    with pytest.raises(SafetyError, match="it works"):
        repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(written(BEFORE_ALL, (1, 99)))
    assert not repairs(world, journal, clock).repair(TOPIC).went_on


def test_segments_are_not_published_where_a_replay_was_begun(journal: Folder) -> None:
    world, clock = interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        repairs(world, journal, clock).repair(TOPIC)
    sent = list(world.sent)
    with pytest.raises(SafetyError, match=r"a repair by replay was started.*without --republish"):
        repairs(world, journal, clock).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == sent
    assert repairs(world, journal, clock).repair(TOPIC).went_on


def test_a_repair_that_is_cut_short_between_segments_says_that_nothing_names_them(journal: Folder) -> None:
    world, clock = interrupted("sent"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match=r"was interrupted.*changes nothing as long as no index names them"):
        repairs(world, journal, clock).repair(TOPIC, Remedy.REPUBLISH)
    assert (world.sent, journal.names()) == ([f"multiple-0-{TOPIC}"], [])
    done = repairs(world, journal, clock).repair(TOPIC, Remedy.REPUBLISH)
    assert (done.went_on, done.not_verified) == (False, "")
