"""A repair is refused unless a lost segment keeps the topic from being loaded, and what it replaces can be put back."""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from streaming.adapters.pulsar.snapshot_store import GUARD
from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import ManualClock
from streaming.errors import ConfigError, RefusedError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore, Unreadable, Znode
from streaming.snapshots.parts import Sender
from streaming.snapshots.repair import Repairs
from streaming.snapshots.repair_journal import RepairJournal
from streaming.state.filesystem import Folder, folder_of
from tests.builders import list_znode
from udfs.formats.entry import Content
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.records import BrokerView, Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.audit import BufferFacts
from udfs.snapshots.codec import Index, Segment, decode_index, encode_index, encode_segment, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repairing import Remedy
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import Read, read_message
from udfs.undelivered import Found

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"
INDEXES = system_topic(SPACE, SnapshotKind.INDEX)
SEGMENTS = system_topic(SPACE, SnapshotKind.SEGMENT)
TAIL = (1, 4)
OLD = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1)), (1, (10, 0), (5, 9))]), (5, 9), ids_of([TAIL])))
IDS = {0: [(1, 1), (1, 2)], 1: [(1, 3)]}
MARKERS = {0: (5, 1), 1: (5, 9)}
DOUBLED = [(1, 2), (1, 3)]


def _read(kind: SnapshotKind, key: str, value: bytes | None, at: Position) -> Read:
    found = Found(-1, Content(key.encode(), value or b"", {}, is_null=value is None))
    return read_message(kind, SPACE, at, found, lambda _version: True)


def _segment(number: int, at: Position, ids: Sequence[tuple[int, int]] = (), marker: Position | None = None) -> Read:
    value = encode_segment(Segment(TOPIC, number, marker or MARKERS[number], ids_of(ids or IDS[number])))
    return _read(SnapshotKind.SEGMENT, f"multiple-{number}-{TOPIC}", value, at)


@dataclass
class World:
    """A broker with one topic whose first segment was trimmed: it loads once its index is empty."""

    node: Znode | Unreadable | None = field(default_factory=lambda: Znode(list_znode(5), 0, 0, 0))
    indexes: list[Read] = field(default_factory=lambda: [_read(SnapshotKind.INDEX, TOPIC, OLD, (1, 1))])
    segments: Sequence[Read] = field(default_factory=lambda: [_segment(1, (10, 0))])
    cursor: Position | None = None
    is_loaded: bool = False
    replayed: int = 3
    done: list[str] = field(default_factory=list)
    meanwhile: Read | None = None
    compacts: dict[int, Read] = field(default_factory=lambda: {0: _segment(0, (9, 0)), 1: _segment(1, (10, 0))})
    gets: list[tuple[int, int] | None] = field(default_factory=lambda: [None, (1, 9)])
    ends: bool = True
    overwritten: Read | None = None
    loads: bool = True
    breaks: bool = False
    trims: bool = False
    vanishes: bool = False
    mute: int = 0
    tries: int = 0
    sent: list[str] = field(default_factory=list)
    sealed: frozenset[Position] = frozenset()
    writes: list[Read | None] = field(default_factory=list)  # what the broker writes at each load

    @property
    def admin(self) -> "World":
        return self

    more = admin

    def present(self, namespace: str) -> set[str]:
        return {INDEXES, SEGMENTS}

    def compacted(self, namespace: str, kind: SnapshotKind) -> Iterator[Read]:
        if kind is SnapshotKind.INDEX:
            return iter(list(self.indexes))
        return iter(list(self.compacts.values()))  # the compacted ledger still has the trimmed one

    def stored(self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL) -> Iterator[Read]:
        if kind is SnapshotKind.INDEX:
            return iter(list(self.indexes))
        return (read for read in self.segments if read.position > after)

    def buffer(self, topic: str, *, with_segments: bool = False) -> BufferFacts | None:
        if self.tries and self.mute:
            self.mute -= 1
            raise UnavailableError("503")
        sealed = self.sealed if with_segments else frozenset()
        return BufferFacts("Ready", "Segment", self.replayed, sealed) if self.is_loaded else None

    def snapshot_seconds(self) -> float:
        return 5.0

    def internal_stats(self, topic: str) -> InternalStats:
        return InternalStats(((10, 5),), {} if self.cursor is None else {GUARD: self.cursor}, 0)

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        self.done.append("guard")
        self.cursor = (10, -1)

    def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        self.cursor = (position[0], position[1] - 1)

    def read_many(self, paths: Sequence[str]) -> list[Any]:
        return [self.node for _path in paths]

    def views(self, managed_ledgers: Sequence[str]) -> list[BrokerView]:
        return [BrokerView(Presence.GONE) for _each in managed_ledgers]

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        yield from self.gets
        if not self.ends:
            raise UnavailableError("silence")

    def unload(self, topic: str) -> None:
        self.done.append("unload")
        if self.vanishes:
            self.node = None
        if self.trims:
            self.segments = self.segments[1:]
        if self.overwritten is not None and "send" in self.done:
            self.indexes.append(self.overwritten)
        if self.meanwhile is not None:
            self.indexes.append(self.meanwhile)
        if not self.is_loaded:
            raise RefusedError("404")
        self.is_loaded = False

    def load(self, topic: str) -> None:
        self.tries += 1
        if not self.loads:
            raise UnavailableError("no answer for half a minute")
        index = self.indexes[-1].value
        places = {read.position for read in self.segments}
        named = [(row[1], row[2]) for row in zip(*index.entries, strict=True)] if isinstance(index, Index) else []
        if not isinstance(index, Index) or not places.issuperset(named):
            raise UnavailableError("Failed to read snapshot segment")
        if not self.is_loaded and self.writes and (written := self.writes.pop(0)) is not None:
            self.indexes.append(written)
        self.is_loaded = True

    def send(self, key: str, value: bytes | None) -> Position:
        if self.breaks:
            raise UnavailableError("it broke off")
        self.done.append("send")
        self.sent.append(key)
        if key.startswith("multiple"):
            at = (11, len(self.sent))
            self.segments = [*self.segments, _read(SnapshotKind.SEGMENT, key, value, at)]
            return at
        self.indexes.append(_read(SnapshotKind.INDEX, key, value, (1, 50 + len(self.indexes))))
        return self.indexes[-1].position

    def sender(self, topic: str) -> AbstractContextManager[Sender]:
        assert topic in (INDEXES, SEGMENTS)
        return nullcontext(self)


@pytest.fixture
def journal(tmp_path: Path) -> Folder:
    return folder_of(str(tmp_path / "journal"))


def _entries(journal: Folder) -> list[str]:
    return [name for name in journal.names() if name.endswith(".json")]


def _repairs(world: World, journal: Folder, clock: ManualClock | None = None) -> Repairs:
    clock = clock or ManualClock(1_000)
    return Repairs(
        cast(SnapshotTopics, world),
        cast(MetadataStore, world),
        cast(Broker, world),
        world,
        world.sender,
        RepairJournal(journal, clock),
        clock,
        lambda _seconds: clock.advance(30_000),
    )


def test_a_topic_that_does_not_load_is_replayed_behind_a_guard_and_the_old_index_is_kept(journal: Folder) -> None:
    world = World()
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send"]
    assert world.is_loaded
    assert (done.aborted, done.known, done.expected, done.delivered) == (3, 4, 3, 2)
    assert done.not_verified == ""
    sent = world.indexes[-1].data
    assert (decode_index(sent).entries.rows, decode_index(sent).max_read, len(sent)) == (0, BEFORE_ALL, len(TOPIC) + 9)
    assert _entries(journal) == [done.journal]

    assert _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD
    assert not world.is_loaded


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"is_loaded": True}, "it works", id="it works"),
        pytest.param({"node": None}, "ZooKeeper does not have", id="it is gone"),
        pytest.param({"node": Unreadable("no right")}, "could not be read", id="its ledgers are not known"),
        pytest.param({"node": Znode(list_znode(6), 0, 0, 0)}, "something else", id="its marker is gone"),
        pytest.param(
            {"segments": [_segment(0, (9, 0)), _segment(1, (10, 0))]}, "something else", id="all segments can be read"
        ),
        pytest.param({"indexes": []}, "no index", id="it has no index"),
        pytest.param(
            {"indexes": [_read(SnapshotKind.INDEX, TOPIC, b"torn", (1, 1))]}, "no index", id="its index is torn"
        ),
        pytest.param(
            {"meanwhile": _read(SnapshotKind.INDEX, TOPIC, OLD, (1, 2))}, "meanwhile", id="somebody writes its index"
        ),
    ],
)
def test_whatever_else_is_refused_and_nothing_is_sent(changes: dict[str, Any], why: str, journal: Folder) -> None:
    world = World(**changes)
    with pytest.raises(SafetyError, match=why):
        _repairs(world, journal).repair(TOPIC)
    assert "send" not in world.done


def test_a_replay_that_found_less_than_the_old_segments_tell_is_an_alarm(journal: Folder) -> None:
    """Of segment 0 only the last id lives for certain; of segment 1, and of the tail behind it, all do."""
    with pytest.raises(SafetyError, match="tells of 3; a reader gets 2 entries, none of them aborted: keep") as told:
        _repairs(World(replayed=2), journal).repair(TOPIC)
    assert "undo" not in str(told.value)


def test_a_replay_during_which_a_ledger_was_trimmed_is_no_alarm(journal: Folder) -> None:
    class Trimmed(World):
        def load(self, topic: str) -> None:
            super().load(topic)
            self.node = Znode(list_znode(6), 0, 0, 0)

    world = Trimmed(replayed=0)
    done = _repairs(world, journal).repair(TOPIC)
    assert (done.aborted, done.expected, done.known) == (0, 0, 1)


def test_a_topic_that_is_deleted_while_it_is_unloaded_is_not_repaired(journal: Folder) -> None:
    world = World(vanishes=True)
    with pytest.raises(SafetyError, match="ZooKeeper does not have"):
        _repairs(world, journal).repair(TOPIC)
    assert (world.sent, journal.names()) == ([], [])


def test_a_topic_that_does_not_load_all_the_same_is_told_after_ten_minutes(journal: Folder) -> None:
    world = World(loads=False)
    with pytest.raises(UnavailableError, match="not loaded after 10 minutes"):
        _repairs(world, journal).repair(TOPIC)
    assert world.tries == 21
    assert len(_entries(journal)) == 1


def test_an_undo_without_a_repair_is_refused(journal: Folder) -> None:
    world = World()
    with pytest.raises(ConfigError, match="no repair"):
        _repairs(world, journal).undo(TOPIC)
    assert world.done == []


NEWER = encode_index(Index(TOPIC, entries_of([(0, (12, 0), (5, 9))]), (6, 0), ids_of([(1, 9)])))


def _there(index: bytes | None) -> Read:
    return _read(SnapshotKind.INDEX, TOPIC, index, (1, 80))


def test_an_undo_keeps_what_the_broker_wrote_since_and_another_one_puts_that_back(journal: Folder) -> None:
    """A broker that replays a topic writes its own index behind ours within a second."""
    world, clock = World(), ManualClock(1_000)
    first = _repairs(world, journal, clock).repair(TOPIC).journal
    world.indexes.append(_there(NEWER))
    clock.advance(1)
    name, second = _repairs(world, journal, clock).undo(TOPIC)
    assert (name, world.indexes[-1].data) == (first, OLD)
    clock.advance(1)
    name, _third = _repairs(world, journal, clock).undo(TOPIC)
    assert (name, world.indexes[-1].data) == (second, NEWER)


class Connected(World):
    """A client of the topic is connected all the time, and has it loaded again as soon as it was unloaded."""

    memory: bytes = b""
    writes_over: Read | None = None

    def unload(self, topic: str) -> None:
        self.done.append("unload")
        self.memory = self.indexes[-1].data

    def send(self, key: str, value: bytes | None) -> Position:
        super().send(key, value)
        at = self.indexes[-1].position
        if self.writes_over is not None:
            self.indexes.append(self.writes_over)
        return at


def test_an_undo_unloads_a_topic_that_a_client_had_loaded_meanwhile_from_what_is_replaced(journal: Folder) -> None:
    """Seen on Pulsar 4.0.8: a producer that was connected was quicker, and the broker went on from the other index."""
    world, clock = Connected(), ManualClock(1_000)
    _repairs(world, journal, clock).repair(TOPIC)
    clock.advance(1_000)
    _repairs(world, journal, clock).undo(TOPIC)
    assert world.memory == OLD


def test_an_undo_over_which_a_broker_wrote_its_own_index_says_so(journal: Folder) -> None:
    world, clock = Connected(), ManualClock(1_000)
    _repairs(world, journal, clock).repair(TOPIC)
    world.writes_over = _read(SnapshotKind.INDEX, TOPIC, NEWER, (1, 99))
    clock.advance(1_000)
    with pytest.raises(SafetyError, match=r"wrote an index of its own over it: take its clients away"):
        _repairs(world, journal, clock).undo(TOPIC)


def test_an_undo_moves_a_guard_back_that_has_moved_on_since(journal: Folder) -> None:
    world = World()
    _repairs(world, journal).repair(TOPIC)
    world.cursor = (10, 3)
    _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.cursor == (10, -1)


def test_an_undo_that_broke_off_behind_the_journal_is_done_by_the_next_one(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    first = _repairs(world, journal, clock).repair(TOPIC).journal
    world.indexes.append(_there(NEWER))
    clock.advance(1)
    world.breaks = True
    with pytest.raises(UnavailableError, match="broke off"):
        _repairs(world, journal, clock).undo(TOPIC)
    world.breaks = False
    clock.advance(1)
    name, _kept = _repairs(world, journal, clock).undo(TOPIC)
    assert (name, world.indexes[-1].data) == (first, OLD)


def test_an_undo_sends_nothing_before_the_journal_has_what_is_there(journal: Folder) -> None:
    world = World()
    _repairs(world, journal).repair(TOPIC)
    world.indexes.append(_there(NEWER))
    sent = list(world.sent)

    class Full(RepairJournal):
        def write(self, *_what: object) -> str:
            raise UnavailableError("no space left")

    runs = _repairs(world, journal)
    with pytest.raises(UnavailableError, match="no space left"):
        replace(runs, journal=Full(journal, runs.clock)).undo(TOPIC)
    assert world.sent == sent


def test_the_last_repair_is_undone_also_where_the_clock_was_set_back(journal: Folder) -> None:
    world, clock = World(), ManualClock(9_000)
    _repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(_there(NEWER))
    clock.advance(-8_000)
    _name, kept = _repairs(world, journal, clock).undo(TOPIC)
    world.segments = [_segment(1, (10, 0))]
    assert _repairs(world, journal, clock).undo(TOPIC)[0] == kept
    assert world.indexes[-1].data == NEWER


@pytest.mark.parametrize(
    ("index", "why"),
    [
        pytest.param(b"torn", "can't be read", id="somebody wrote one that is torn"),
        pytest.param(None, "has no index now", id="it has a tombstone"),
        pytest.param(OLD, "is there already", id="it was put back"),
    ],
)
def test_an_undo_that_has_nothing_to_put_back_or_to_keep_is_refused(
    index: bytes | None, why: str, journal: Folder
) -> None:
    world = World()
    _repairs(world, journal).repair(TOPIC)
    world.indexes.append(_there(index))
    done = list(world.done)
    with pytest.raises(SafetyError, match=why):
        _repairs(world, journal).undo(TOPIC)
    assert world.done == done


def test_an_index_that_is_written_while_the_topic_is_unloaded_is_not_replaced(journal: Folder) -> None:
    world = World()
    _repairs(world, journal).repair(TOPIC)
    world.meanwhile = _there(NEWER)
    sent = list(world.sent)
    with pytest.raises(SafetyError, match="somebody wrote its index meanwhile"):
        _repairs(world, journal).undo(TOPIC)
    assert world.sent == sent
    assert len(_entries(journal)) == 1


def test_lost_segments_are_published_once_more_and_named_at_their_new_places(journal: Folder) -> None:
    world = World()
    done = _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == [f"multiple-0-{TOPIC}", TOPIC]
    index = decode_index(world.indexes[-1].data)
    assert list(places_of(index)) == [(0, (11, 1), (5, 1)), (1, (10, 0), (5, 9))]
    assert (index.max_read, index.tail.rows, done.remedy) == ((5, 9), 0, Remedy.REPUBLISH)
    assert world.is_loaded
    assert _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_a_segment_that_the_compacted_topic_lacks_too_can_only_be_replayed(journal: Folder) -> None:
    world = World(compacts={1: _segment(1, (10, 0))})
    with pytest.raises(SafetyError, match="lacks segments 0 too"):
        _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_a_segment_of_that_number_whose_marker_is_another_one_is_not_published(journal: Folder) -> None:
    """A broker that replayed a topic counts from 0 again: its segment 0 holds other ids."""
    world = World(compacts={0: _segment(0, (10, 3), [(1, 7)], (6, 2)), 1: _segment(1, (10, 0))})
    with pytest.raises(SafetyError, match="lacks segments 0 too"):
        _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_an_index_that_names_a_number_twice_can_only_be_replayed(journal: Folder) -> None:
    rows = [(0, (9, 0), (5, 1)), (0, (9, 1), (5, 9))]
    twice = encode_index(Index(TOPIC, entries_of(rows), (5, 9), ids_of([])))
    world = World(
        indexes=[_read(SnapshotKind.INDEX, TOPIC, twice, (1, 1))],
        segments=[_segment(0, (9, 1), [(1, 3)], (5, 9))],
        compacts={0: _segment(0, (9, 0))},
    )
    with pytest.raises(SafetyError, match="names a segment's number twice"):
        _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def _doubled(**changes: Any) -> World:
    """A topic that works, two segments of which share an id."""
    segments = [_segment(0, (9, 0)), _segment(1, (10, 0), DOUBLED)]
    return World(is_loaded=True, segments=segments, compacts=dict(enumerate(segments)), **changes)


def test_a_topic_that_works_and_has_doubled_ids_is_replayed(journal: Folder) -> None:
    world = _doubled()
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send", "unload"]
    assert (done.aborted, done.known, done.expected) == (3, 4, 2)


def test_doubled_ids_are_no_reason_to_publish_segments_once_more(journal: Folder) -> None:
    with pytest.raises(SafetyError, match="it works"):
        _repairs(_doubled(), journal).repair(TOPIC, Remedy.REPUBLISH)


def test_a_topic_that_lost_a_segment_and_has_doubled_ids_can_only_be_replayed(journal: Folder) -> None:
    world = World(
        segments=[_segment(1, (10, 0), DOUBLED)], compacts={0: _segment(0, (9, 0)), 1: _segment(1, (10, 0), DOUBLED)}
    )
    with pytest.raises(SafetyError, match="ids stand in several of its segments, so only a replay"):
        _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []


def test_a_broker_that_writes_its_old_index_over_ours_is_told(journal: Folder) -> None:
    world = _doubled(overwritten=_read(SnapshotKind.INDEX, TOPIC, OLD, (1, 99)))
    with pytest.raises(SafetyError, match="take its clients away"):
        _repairs(world, journal).repair(TOPIC)


@pytest.mark.parametrize("one", [(1, 1), (1, 3), TAIL])
def test_a_message_that_was_taken_back_and_is_read_all_the_same_is_an_alarm(
    one: tuple[int, int], journal: Folder
) -> None:
    with pytest.raises(SafetyError, match=rf"got a message of aborted transaction \({one[0]}, {one[1]}\)"):
        _repairs(World(gets=[None, one]), journal).repair(TOPIC)


def test_an_undo_does_not_put_back_an_index_of_which_segments_were_trimmed_since(journal: Folder) -> None:
    """The topic worked with it when its doubled ids were mended, and would not load with it now."""
    world = _doubled()
    _repairs(world, journal).repair(TOPIC)
    world.segments = world.segments[1:]
    sent, done = list(world.sent), list(world.done)
    with pytest.raises(SafetyError, match="1 segments that the topic needs can't be read by now, and 0 when"):
        _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert (world.sent, world.done) == (sent, done)
    world.node = Unreadable("no right")
    with pytest.raises(UnavailableError, match="could not be read"):
        _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    world.node = Znode(list_znode(6), 0, 0, 0)  # the topic needs it no more
    _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.indexes[-1].data == OLD


def test_an_undo_sees_a_segment_that_is_trimmed_while_the_topic_is_unloaded(journal: Folder) -> None:
    world = _doubled()
    _repairs(world, journal).repair(TOPIC)
    world.trims = True
    sent = list(world.sent)
    with pytest.raises(SafetyError, match="Nothing was sent"):
        _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)
    assert world.sent == sent


class Interrupted(World):
    """Somebody presses Ctrl-C at that step of the repair, once."""

    at: str = ""

    def _perhaps(self, step: str) -> None:
        if self.at == step:
            self.at = ""
            raise KeyboardInterrupt

    def ensure_subscription(self, topic: str, subscription: str) -> None:
        self._perhaps("guard")
        super().ensure_subscription(topic, subscription)

    def send(self, key: str, value: bytes | None) -> Position:
        self._perhaps("send")
        at = super().send(key, value)
        self._perhaps("sent")
        return at

    def load(self, topic: str) -> None:
        super().load(topic)
        self._perhaps("load")

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        self._perhaps("read")
        yield from super().delivered(topic)


def _interrupted(at: str, *writes: Read | None) -> Interrupted:
    world = Interrupted(sealed=frozenset({MARKER}) if writes else frozenset(), writes=list(writes))
    world.at = at
    return world


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
    world, clock = _interrupted(at), ManualClock(1_000)
    said = "may be published" if at == "sent" else "index is published"
    with pytest.raises(UnavailableError, match=f"was interrupted.* {said}, and {TOPIC} is not verified: run") as told:
        _repairs(world, journal, clock).repair(TOPIC, remedy)
    assert told.value.__suppress_context__
    sent = list(world.sent)
    clock.advance(1_000)
    done = _repairs(world, journal, clock).repair(TOPIC, remedy)
    assert world.sent == sent
    assert (done.went_on, done.not_verified, done.remedy, done.known, done.expected) == (True, "", remedy, 4, 3)
    assert _entries(journal) == [done.journal]
    clock.advance(1_000)
    with pytest.raises(SafetyError, match="it works"):  # it was verified
        _repairs(world, journal, clock).repair(TOPIC, remedy)
    assert _repairs(world, journal, clock).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_what_a_broker_wrote_in_the_midst_of_a_repair_that_was_cut_short_is_replaced_by_the_next(
    journal: Folder,
) -> None:
    world, clock = _interrupted("load", _written(BEFORE_ALL), _written(at=(1, 95))), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        _repairs(world, journal, clock).repair(TOPIC)
    assert world.indexes[-1].data == _written(BEFORE_ALL).data
    clock.advance(1_000)
    done = _repairs(world, journal, clock).repair(TOPIC)
    assert (done.went_on, done.not_verified, done.not_written) == (True, "", "")
    assert world.indexes[-1].data == _written().data
    clock.advance(1_000)
    assert _repairs(world, journal, clock).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_a_repair_that_goes_on_tells_what_is_still_read_of_what_the_first_one_knew(journal: Folder) -> None:
    world, clock = _interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        _repairs(world, journal, clock).repair(TOPIC)
    world.gets = [(1, 1)]
    with pytest.raises(SafetyError, match=r"aborted transaction \(1, 1\)"):
        _repairs(world, journal, clock).repair(TOPIC)
    world.gets, world.replayed = [None], 2
    with pytest.raises(SafetyError, match="has 2 aborted ids, and its old snapshot tells of 3"):
        _repairs(world, journal, clock).repair(TOPIC)


def test_a_repair_that_was_taken_back_is_not_gone_on_with(journal: Folder) -> None:
    world, clock = _interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        _repairs(world, journal, clock).repair(TOPIC)
    first = _repairs(world, journal, clock).undo(TOPIC)[0]
    done = _repairs(world, journal, clock).repair(TOPIC)
    assert not done.went_on
    assert done.journal > first


def test_a_repair_whose_segments_are_lost_by_now_is_not_gone_on_with(journal: Folder) -> None:
    """A broker that is stuck would be given an index with which the topic does not load."""
    world, clock = _interrupted("read"), ManualClock(1_000)
    with pytest.raises(UnavailableError, match="not verified"):
        _repairs(world, journal, clock).repair(TOPIC, Remedy.REPUBLISH)
    world.segments = [_segment(1, (10, 0))]
    world.indexes.append(_written())
    with pytest.raises(SafetyError, match="it works"):
        _repairs(world, journal, clock).repair(TOPIC)


def test_a_repair_that_was_interrupted_before_anything_was_sent_leaves_nothing(journal: Folder) -> None:
    world = _interrupted("guard")
    with pytest.raises(KeyboardInterrupt):
        _repairs(world, journal).repair(TOPIC)
    assert (world.sent, journal.names()) == ([], [])


def test_an_index_that_a_broker_wrote_in_the_midst_of_a_replay_of_its_own_is_replaced(journal: Folder) -> None:
    """Nobody repaired it: its broker was killed, or comes to no end. The next load would seal every id twice."""
    world = World(indexes=[_written(BEFORE_ALL)], is_loaded=True)
    with pytest.raises(SafetyError, match="it works"):
        _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == []
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send", "unload"]
    assert decode_index(world.indexes[-1].data).entries.rows == 0
    assert "in the midst of a replay" in done.not_verified
    with pytest.raises(ConfigError, match="no repair"):  # nobody wants that index back
        _repairs(world, journal, ManualClock(2_000)).undo(TOPIC)


def test_an_undo_goes_back_over_no_repair_of_half_a_replay_to_an_older_one(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    _repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(_written(BEFORE_ALL))
    world.is_loaded = True
    clock.advance(1_000)
    _repairs(world, journal, clock).repair(TOPIC)
    sent = len(world.sent)
    with pytest.raises(ConfigError, match="that can be taken back"):
        _repairs(world, journal, clock).undo(TOPIC)
    assert len(world.sent) == sent


def test_an_undo_puts_back_no_index_of_half_a_replay_that_an_undo_replaced(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    _repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(_written(BEFORE_ALL))
    clock.advance(1_000)
    _repairs(world, journal, clock).undo(TOPIC)
    sent = len(world.sent)
    clock.advance(1_000)
    with pytest.raises(SafetyError, match="in the midst of a replay"):
        _repairs(world, journal, clock).undo(TOPIC)
    assert len(world.sent) == sent


def test_an_undo_puts_back_no_index_of_another_topic(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    name = _repairs(world, journal, clock).repair(TOPIC).journal
    entry = json.loads(journal.read(name) or b"")
    other = encode_index(Index(f"{TOPIC}-other", entries_of([]), (6, 0), ids_of([])))
    journal.write(name, json.dumps({**entry, "replaced": base64.b64encode(other).decode()}).encode())
    with pytest.raises(SafetyError, match="is that of"):
        _repairs(world, journal, clock).undo(TOPIC)


def test_a_repair_of_half_a_replay_that_was_cut_short_is_not_verified_by_what_the_broker_wrote_since(
    journal: Folder,
) -> None:
    world, clock = Interrupted(indexes=[_written(BEFORE_ALL)], is_loaded=True), ManualClock(1_000)
    world.at = "read"
    with pytest.raises(UnavailableError, match="was interrupted"):
        _repairs(world, journal, clock).repair(TOPIC)
    world.indexes.append(_written(at=(1, 95)))
    done = _repairs(world, journal, clock).repair(TOPIC)
    assert done.went_on
    assert "in the midst of a replay" in done.not_verified


def test_a_repair_that_broke_off_before_it_sent_anything_is_not_what_an_undo_takes_back(journal: Folder) -> None:
    world, clock = World(), ManualClock(1_000)
    first = _repairs(world, journal, clock).repair(TOPIC).journal
    broken = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 9))]), (6, 0), ids_of([])))
    world.indexes.append(_there(broken))
    world.is_loaded, world.breaks = False, True
    with pytest.raises(UnavailableError, match="may be published"):
        _repairs(world, journal, clock).repair(TOPIC)
    world.breaks = False
    assert len(_entries(journal)) == 2
    world.indexes.append(_there(NEWER))  # and the topic goes on
    assert _repairs(world, journal, clock).undo(TOPIC)[0] == first


def test_a_first_repair_that_broke_off_before_it_sent_anything_leaves_nothing_to_undo(journal: Folder) -> None:
    world = World(breaks=True)
    with pytest.raises(UnavailableError, match="may be published"):
        _repairs(world, journal).repair(TOPIC)
    world.breaks = False
    with pytest.raises(ConfigError, match="no repair"):
        _repairs(world, journal).undo(TOPIC)
    assert not _repairs(world, journal).repair(TOPIC).went_on


def test_a_repair_that_was_killed_before_it_wrote_down_that_it_had_sent_counts(journal: Folder) -> None:
    """Its index can be seen in the topic, also behind what the broker wrote since."""
    for later in (None, NEWER):
        world = World()
        name = _repairs(world, journal).repair(TOPIC).journal
        journal.delete(name.replace(".json", ".sent"))
        if later is not None:
            world.indexes.append(_there(later))
        assert _repairs(world, journal).undo(TOPIC)[0] == name
        assert world.indexes[-1].data == OLD


def test_a_journal_with_a_file_that_is_none_can_be_used(journal: Folder) -> None:
    world = World()
    name = _repairs(world, journal).repair(TOPIC).journal
    journal.write("000000000009999.json", b"torn {")
    assert _repairs(world, journal).undo(TOPIC)[0] == name


def test_a_repair_says_what_it_waits_for(journal: Folder) -> None:
    said: list[str] = []
    world = _replayed(None, None, _written())
    replace(_repairs(world, journal), say=said.append).repair(TOPIC)
    assert said[0].startswith(f"{TOPIC} has a new index; the old one is 0000")
    assert any(
        "waits for the index of its broker since 30 seconds: its broker has sealed 1 seg" in each for each in said
    )
    assert any(each.endswith("it is loaded once more (2 of 8)") for each in said)
    assert said[-1] == f"{TOPIC} is loaded, and is read once as a client does"
    slow = World(loads=False)
    said.clear()
    with pytest.raises(UnavailableError, match="not loaded after 10 minutes"):
        replace(_repairs(slow, folder_of(f"{journal.location}-2")), say=said.append).repair(TOPIC)
    assert said[1] == f"{TOPIC} is not ready after 30 seconds: not loaded"


NO_TAIL = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1))]), (5, 9), ids_of([])))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param(
            {"indexes": [_read(SnapshotKind.INDEX, TOPIC, NO_TAIL, (1, 1))], "compacts": {}},
            "no old ids are known",
            id="nobody has the segment any more",
        ),
        pytest.param(
            {"compacts": {1: _segment(1, (10, 0))}}, "the ids of segments 0 are not known", id="some segments are gone"
        ),
        pytest.param({"ends": False}, "no reader came to the topic's end: silence", id="not read to its end"),
    ],
)
def test_a_repair_that_can_not_be_verified_says_so(changes: dict[str, Any], why: str, journal: Folder) -> None:
    world = World(**changes)
    done = _repairs(world, journal).repair(TOPIC)
    assert world.is_loaded
    assert done.not_verified == why
    assert "none of them aborted" not in done.in_words()


PLACE, MARKER = (10, 0), (5, 9)


def _written(max_read: Position = (6, 0), at: Position = (1, 90)) -> Read:
    """What a broker writes that has replayed the topic and sealed one segment."""
    value = encode_index(Index(TOPIC, entries_of([(1, PLACE, MARKER)]), max_read, ids_of([])))
    return _read(SnapshotKind.INDEX, TOPIC, value, at)


def _replayed(*writes: Read | None) -> World:
    return World(sealed=frozenset({MARKER}), writes=list(writes))


def test_a_broker_that_does_not_answer_for_a_while_does_not_end_a_repair(journal: Folder) -> None:
    world = _replayed(_written())
    world.mute = 3
    assert _repairs(world, journal).repair(TOPIC).not_written == ""
    assert world.mute == 0


def test_a_repair_waits_for_the_index_that_the_broker_writes(journal: Folder) -> None:
    world = _replayed(_written())
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send"]
    assert done.not_written == ""


def test_a_topic_of_which_its_broker_writes_nothing_is_loaded_again(journal: Folder) -> None:
    """Pulsar 4.0.8 can stay busy for ever, and then writes neither segments nor an index."""
    world = _replayed(None, None, _written())
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send", *["unload"] * 4]  # what we published stands there yet
    assert world.is_loaded
    assert (done.not_written, done.loads) == ("", 3)


def test_a_topic_of_which_its_broker_never_writes_anything_is_told_after_eight_loads(journal: Folder) -> None:
    world = _replayed()
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done.count("unload") == 1 + 2 * 7
    assert world.is_loaded
    assert done.not_written == "its broker has sealed 1 segments, and its index lacks 1 of them"
    assert decode_index(world.indexes[-1].data).entries.rows == 0


def test_a_topic_of_many_segments_is_not_loaded_again(journal: Folder) -> None:
    """Each segment is a chance to stop, so that another load would hardly come to its end."""
    for count, unloads in ((50, 15), (51, 1)):
        world = World(sealed=frozenset((5, entry) for entry in range(count)))
        done = _repairs(world, journal, ManualClock(count * 1_000_000)).repair(TOPIC)
        assert world.done.count("unload") == unloads
        assert done.not_written == f"its broker has sealed {count} segments, and its index lacks {count} of them"


def test_an_index_without_a_max_read_position_is_replaced_before_the_next_load(journal: Folder) -> None:
    """With it the broker would read the whole topic, and seal every id twice."""
    world = _replayed(_written(BEFORE_ALL), _written(at=(1, 95)))
    done = _repairs(world, journal).repair(TOPIC)
    assert world.done == ["guard", "unload", "send", "unload", "send", "unload"]
    assert done.not_written == ""
    assert world.indexes[-1].data == _written().data
    assert len(_entries(journal)) == 2  # the broker's own went there as well
    assert _repairs(world, journal, ManualClock(900_000)).undo(TOPIC)[0] == done.journal
    assert world.indexes[-1].data == OLD


def test_a_broker_that_only_ever_writes_such_an_index_does_not_keep_it(journal: Folder) -> None:
    world = _replayed(*(_written(BEFORE_ALL, (1, 90 + each)) for each in range(9)))
    done = _repairs(world, journal).repair(TOPIC)
    assert done.not_written == "its index names 1 segments and no maxReadPosition"
    assert world.is_loaded
    assert decode_index(world.indexes[-1].data).entries.rows == 0


def test_a_broker_that_goes_on_writing_is_waited_for(journal: Folder) -> None:
    """It writes segments for longer than it may be silent."""
    world, clock = _replayed(), ManualClock(1_000)
    steps = iter([1, 2, 3, 4])

    def writes_more(_seconds: float) -> None:
        clock.advance(15_000)
        step = next(steps)
        world.indexes.append(_written() if step == 4 else _written(BEFORE_ALL, (1, 80 + step)))

    done = replace(_repairs(world, journal, clock), sleep=writes_more).repair(TOPIC)
    assert world.done == ["guard", "unload", "send"]
    assert done.not_written == ""


def test_ids_that_a_client_had_sealed_twice_meanwhile_are_told(journal: Folder) -> None:
    """It had the topic loaded between our unload and our index."""
    rows = [(0, (12, 0), MARKERS[0]), (1, (12, 1), MARKERS[1])]
    twice = encode_index(Index(TOPIC, entries_of(rows), (6, 0), ids_of([])))
    world = World(
        sealed=frozenset(MARKERS.values()),
        writes=[_read(SnapshotKind.INDEX, TOPIC, twice, (1, 99))],
        segments=[_segment(1, (10, 0)), _segment(0, (12, 0)), _segment(1, (12, 1), DOUBLED)],
    )
    with pytest.raises(SafetyError, match="take its clients away"):
        _repairs(world, journal).repair(TOPIC)


@pytest.mark.parametrize("max_read", [(5, 0), BEFORE_ALL])
def test_a_republished_index_that_would_name_nothing_is_no_replay_in_disguise(
    max_read: Position, journal: Folder
) -> None:
    rows = [(0, (9, 0), (5, 1)), (1, (10, 0), (5, 9))]
    open_at = encode_index(Index(TOPIC, entries_of(rows), max_read, ids_of([TAIL])))
    world = World(indexes=[_read(SnapshotKind.INDEX, TOPIC, open_at, (1, 1))])
    with pytest.raises(SafetyError, match="nothing before maxReadPosition can be kept: use --replay"):
        _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert (world.sent, journal.names()) == ([], [])


@pytest.mark.parametrize(
    ("remedy", "read"), [(Remedy.REPLAY, "the whole topic"), (Remedy.REPUBLISH, "the topic behind the last segment")]
)
def test_what_a_broker_reads_at_each_load_depends_on_the_remedy(remedy: Remedy, read: str, journal: Folder) -> None:
    world = _replayed()
    world.sealed = frozenset({(7, 7)})
    assert f"it reads {read}" in _repairs(world, journal).repair(TOPIC, remedy).in_words()


def test_what_lies_behind_max_read_position_is_left_to_the_replay(journal: Folder) -> None:
    """The broker finds it again; if the index named it, too, the broker would seal it twice."""
    open_at = encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1)), (1, (9, 1), (5, 9))]), (5, 4), ids_of([TAIL])))
    world = World(indexes=[_read(SnapshotKind.INDEX, TOPIC, open_at, (1, 1))], segments=[])
    done = _repairs(world, journal).repair(TOPIC, Remedy.REPUBLISH)
    assert world.sent == [f"multiple-0-{TOPIC}", TOPIC]
    index = decode_index(world.indexes[-1].data)
    assert list(places_of(index)) == [(0, (11, 1), (5, 1))]
    assert (index.max_read, index.tail.rows) == ((5, 1), 0)
    assert (done.known, done.expected) == (4, 3)
