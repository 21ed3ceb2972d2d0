"""A snapshot goes from one form to another whole, of a topic that no broker has, and what it was can be put back."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import ManualClock
from streaming.errors import SafetyError, UnavailableError
from streaming.ports import MetadataStore, Znode
from streaming.snapshots import migrate as module
from streaming.snapshots.guard import Guards
from streaming.snapshots.migrate import Migrations
from streaming.snapshots.parts import Sender
from streaming.snapshots.put_back import PutBacks
from streaming.snapshots.repair_journal import RepairJournal
from streaming.state.filesystem import Folder
from tests.builders import list_znode
from tests.unit.snapshots.repair_world import IDS, OLD, SPACE, TAIL, TOPIC, entries, read_at, segment_at
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.references import COMPACTION_CURSOR
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.audit import BufferFacts
from udfs.snapshots.codec import (
    Index,
    Segment,
    Snapshot,
    decode_index,
    decode_snapshot,
    encode_index,
    encode_segment,
    encode_snapshot,
    entries_of,
)
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import ReadValue

ALL = {*IDS[0], *IDS[1], TAIL}
SINGLE = encode_snapshot(Snapshot(TOPIC, (5, 20), aborts_of([(*each, 5, n) for n, each in enumerate(sorted(ALL))])))


NEW = {
    "parts": {SnapshotKind.PARTS},
    "segments": {SnapshotKind.INDEX, SnapshotKind.SEGMENT},
    "single": {SnapshotKind.SINGLE},
}


@dataclass
class Broker:
    """A broker whose snapshot topics are lists; it does not have the topic loaded, but for a moment: loads_at.

    loads_at: before so many messages were sent. fails_at: the same, of a broker that does not answer.
    """

    topics: dict[SnapshotKind, list[ReadValue]]
    most_bytes: int = 100_000
    segment_bytes_: int = 8 + len(TOPIC) + 6  # two ids
    is_segmented: bool | None = True
    loads_at: int = -1
    fails_at: int = -1
    sent: list[tuple[SnapshotKind, str, bool]] = field(default_factory=list)
    held: list[list[Position]] = field(default_factory=list)
    compacted_spaces: list[str] = field(default_factory=list)
    lies: bool = False

    @property
    def admin(self) -> "Broker":
        return self

    more = admin

    def present(self, namespace: str) -> set[str]:
        return {system_topic(namespace, kind) for kind in self.topics}

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        for read in list(self.topics[kind]):
            is_single = isinstance(read.value, Snapshot) and read.key in with_bytes_of
            yield replace(read, data=_encoded(read)) if is_single else read

    def stored(self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL) -> Iterator[ReadValue]:
        return iter(list(self.topics[kind]))

    def buffer(self, topic: str) -> BufferFacts | None:
        return BufferFacts("Ready", "Segment", 3) if self.loads_at == len(self.sent) else None

    def broker_settings(self) -> tuple[bool | None, int]:
        return self.is_segmented, self.most_bytes

    def segment_bytes(self) -> int:
        return self.segment_bytes_

    def create_topic(self, topic: str) -> bool:
        self.topics.setdefault(SnapshotKind(topic.rpartition("/")[2]), [])
        return True

    def set_compaction_threshold(self, topic: str, *, size_bytes: int) -> None:
        pass

    def internal_stats(self, topic: str) -> InternalStats:
        return InternalStats(((1, 1),), {COMPACTION_CURSOR: BEFORE_ALL}, 0)

    def read_many(self, paths: list[str]) -> list[Znode]:
        return [Znode(list_znode(5), 0, 0, 0) for _path in paths]

    def require(self, namespace: str) -> Position:
        self.held.append([])
        return BEFORE_ALL

    def hold(self, namespace: str, places: list[Position]) -> None:
        self.held.append(list(places))

    def sender(self, topic: str) -> AbstractContextManager[Sender]:
        kind = SnapshotKind(topic.rpartition("/")[2])
        broker = self

        class Opened:
            def send(self, key: str, value: bytes | None) -> Position:
                if broker.fails_at == len(broker.sent):
                    raise UnavailableError("no answer")
                at = (30, len(broker.sent))
                broker.sent.append((kind, key, value is None))
                if not (broker.lies and kind is SnapshotKind.SINGLE):
                    broker.topics[kind].append(read_at(kind, key, value, at))
                return at

        return nullcontext(Opened())

    def kinds(self) -> set[SnapshotKind]:
        """Which forms hold a value of the topic."""
        return {kind for kind in self.topics if self.values(kind)}

    def values(self, kind: SnapshotKind) -> dict[str, bytes]:
        """Return the latest value of each key."""
        latest = {read.key: read for read in self.topics[kind]}
        return {
            key: _encoded(read) if isinstance(read.value, Snapshot) else read.data
            for key, read in latest.items()
            if not read.is_null
        }


def segmented(**changes: object) -> Broker:
    index = [read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 1))]
    return Broker(
        {SnapshotKind.INDEX: index, SnapshotKind.SEGMENT: [segment_at(0, (9, 0)), segment_at(1, (10, 0))]},
        **changes,  # type: ignore[arg-type]
    )


def single(**changes: object) -> Broker:
    reads = [read_at(SnapshotKind.SINGLE, TOPIC, SINGLE, (2, 0))]
    return Broker({SnapshotKind.SINGLE: reads}, **changes)  # type: ignore[arg-type]


def migrations(broker: Broker, journal: Folder) -> Migrations:
    return Migrations(
        cast(SnapshotTopics, broker),
        cast(MetadataStore, broker),
        cast(Guards, broker),
        broker.sender,
        RepairJournal(journal, ManualClock(1_000)),
        broker.compacted_spaces.append,
    )


@pytest.mark.parametrize(
    ("made", "to", "left"),
    [
        pytest.param(segmented, "parts", {SnapshotKind.PARTS}, id="segments to parts"),
        pytest.param(segmented, "single", {SnapshotKind.SINGLE}, id="segments to a single one"),
        pytest.param(single, "parts", {SnapshotKind.PARTS}, id="a single one to parts"),
        pytest.param(
            single,
            "segments",
            {SnapshotKind.SINGLE, SnapshotKind.INDEX, SnapshotKind.SEGMENT},
            id="a single one to segments",
        ),
    ],
)
def test_each_form_becomes_each_other_with_the_same_ids(
    made: Callable[[], Broker], to: str, left: set[SnapshotKind], journal: Folder
) -> None:
    broker = made()
    done = migrations(broker, journal).migrate(TOPIC, to)
    assert (done.ids, done.kept, done.is_dry) == (4, 4, False)
    assert broker.kinds() == left
    if to == "single":
        found = decode_snapshot(_encoded(broker.topics[SnapshotKind.SINGLE][-1]))
        assert set(found.aborts.ids.pairs()) == ALL
    assert entries(journal)


@pytest.mark.parametrize(
    ("made", "forms", "old"),
    [
        pytest.param(segmented, ["parts"], SnapshotKind.INDEX, id="segments to parts"),
        pytest.param(segmented, ["single"], SnapshotKind.INDEX, id="segments to a single one"),
        pytest.param(single, ["parts"], SnapshotKind.SINGLE, id="a single one to parts"),
        pytest.param(single, ["segments"], SnapshotKind.SINGLE, id="a single one to segments"),
        pytest.param(single, ["parts", "segments"], SnapshotKind.PARTS, id="parts to segments"),
        pytest.param(segmented, ["parts", "single"], SnapshotKind.PARTS, id="parts to a single one"),
    ],
)
def test_an_undo_restores_the_form_that_a_migration_removed(
    made: Callable[[], Broker], forms: list[str], old: SnapshotKind, journal: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_IDS", 2)
    broker = made()
    runs = migrations(broker, journal)
    for to in forms[:-1]:
        runs.migrate(TOPIC, to)
    before = broker.values(old)
    runs.migrate(TOPIC, forms[-1])
    broker.sent.clear()
    undo = PutBacks(broker, broker.sender, broker.require, lambda _topic: False)
    assert list(undo.put_back(TOPIC, runs.journaled(TOPIC)))
    after = broker.values(old)
    if old is SnapshotKind.INDEX:  # the broker finds the tail again
        named = [(number, marker) for number, _place, marker in places_of(decode_index(after[TOPIC]))]
        assert named == [(0, (5, 1)), (1, (5, 9))]
        assert list(broker.values(SnapshotKind.SEGMENT)) == [f"multiple-{number}-{TOPIC}" for number in (0, 1)]
    else:
        assert after == before
    assert broker.kinds() - {old, SnapshotKind.SEGMENT} == NEW[forms[-1]] - {SnapshotKind.SEGMENT}
    if old is SnapshotKind.PARTS:  # a part without its end does not count
        assert len(after) == 2
        assert ["-end-" in key for kind, key, _is_null in broker.sent if kind is old] == [False, True]


def _encoded(read: ReadValue) -> bytes:
    assert isinstance(read.value, Snapshot)
    return encode_snapshot(read.value)


def test_a_dry_run_sends_nothing_and_creates_nothing(journal: Folder) -> None:
    broker = single()
    done = migrations(broker, journal).migrate(TOPIC, "segments", is_dry=True)
    assert (done.values, done.tombstones, broker.sent, set(broker.topics)) == (3, 0, [], {SnapshotKind.SINGLE})
    assert "would go from single to segments" in done.in_words()
    assert entries(journal) == []


def test_a_loaded_topic_is_refused_before_anything_is_sent(journal: Folder) -> None:
    broker = segmented(loads_at=0)
    with pytest.raises(SafetyError, match="is loaded"):
        migrations(broker, journal).migrate(TOPIC, "parts")
    assert (broker.sent, entries(journal)) == ([], [])


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_topic_that_is_loaded_meanwhile_is_left_at_once_and_the_next_run_ends_it(at: int, journal: Folder) -> None:
    broker = segmented(loads_at=at)
    with pytest.raises(SafetyError, match="is loaded"):
        migrations(broker, journal).migrate(TOPIC, "parts")
    assert len(broker.sent) == at
    broker.loads_at = -1
    assert migrations(broker, journal).migrate(TOPIC, "parts").kept == 4
    assert broker.kinds() == {SnapshotKind.PARTS}


@pytest.mark.parametrize("at", range(4))
def test_one_that_broke_off_is_run_again(at: int, journal: Folder) -> None:
    broker = segmented(fails_at=at)
    with pytest.raises(UnavailableError):
        migrations(broker, journal).migrate(TOPIC, "single")
    broker.fails_at = -1
    assert migrations(broker, journal).migrate(TOPIC, "single").kept == 4
    assert broker.kinds() == {SnapshotKind.SINGLE}


def test_segments_are_guarded_before_an_index_names_them(journal: Folder) -> None:
    broker = single()
    migrations(broker, journal).migrate(TOPIC, "segments")
    assert broker.held == [[], [(30, 0), (30, 1)], [(30, 0), (30, 1)]]
    index = broker.topics[SnapshotKind.INDEX][-1].value
    assert isinstance(index, Index)
    assert index.entries.rows == 2


def test_tombstones_of_segments_are_compacted_away(journal: Folder) -> None:
    broker = segmented()
    migrations(broker, journal).migrate(TOPIC, "single")
    assert broker.compacted_spaces == [SPACE]


def test_what_was_there_can_be_put_back(journal: Folder) -> None:
    broker = segmented()
    found = migrations(broker, journal)
    found.migrate(TOPIC, "single")
    rows = {(row["topic"].rpartition("/")[2], row["key"]): row["value"] for row in found.journaled(TOPIC)}
    assert rows[str(SnapshotKind.INDEX), TOPIC] == OLD
    assert len(rows) == 3
    assert list(found.journaled(f"{TOPIC}-2")) == []


@pytest.mark.parametrize(
    ("broker", "to", "why"),
    [
        (segmented(), "segments", "in the form segments already"),
        (single(), "single", "in the form single already"),
        (Broker({SnapshotKind.SINGLE: []}), "parts", "has no snapshot"),
        (segmented(most_bytes=10_250), "single", "take .* bytes, more than"),
        (
            Broker(
                {
                    SnapshotKind.INDEX: [read_at(SnapshotKind.INDEX, TOPIC, OLD, (1, 1))],
                    SnapshotKind.SEGMENT: [segment_at(1, (10, 0))],
                }
            ),
            "parts",
            "is not at 9:0",
        ),
        (
            Broker(
                {
                    SnapshotKind.INDEX: [
                        read_at(
                            SnapshotKind.INDEX,
                            TOPIC,
                            encode_index(Index(TOPIC, entries_of([(0, (9, 0), (5, 1))]), BEFORE_ALL, ids_of([]))),
                            (1, 1),
                        )
                    ],
                    SnapshotKind.SEGMENT: [segment_at(0, (9, 0))],
                }
            ),
            "parts",
            "in the midst of a replay",
        ),
        (Broker({SnapshotKind.INDEX: [read_at(SnapshotKind.INDEX, TOPIC, b"torn", (1, 1))]}), "parts", "is no value"),
    ],
)
def test_what_must_not_be_migrated_is_refused(broker: Broker, to: str, why: str, journal: Folder) -> None:
    with pytest.raises(SafetyError, match=why):
        migrations(broker, journal).migrate(TOPIC, to)
    assert (broker.sent, entries(journal)) == ([], [])


def test_a_form_that_does_not_hold_what_the_old_one_did_is_an_alarm(journal: Folder) -> None:
    broker = segmented(lies=True)
    with pytest.raises(SafetyError, match="the new form does not hold what the old one did"):
        migrations(broker, journal).migrate(TOPIC, "single")


def test_what_lies_behind_the_max_read_position_is_left_to_the_broker(journal: Folder) -> None:
    late = aborts_of([(1, 1, 5, 1), (1, 2, 5, 3), (1, 3, 5, 9)])
    value = encode_snapshot(Snapshot(TOPIC, (5, 4), late))
    broker = Broker({SnapshotKind.SINGLE: [read_at(SnapshotKind.SINGLE, TOPIC, value, (2, 0))]})
    done = migrations(broker, journal).migrate(TOPIC, "segments")
    assert (done.ids, done.kept) == (3, 2)
    assert "finds 1 again" in done.in_words()
    index = broker.topics[SnapshotKind.INDEX][-1].value
    assert isinstance(index, Index)
    assert index.max_read == (5, 3)
    assert decode_index(encode_index(index)).max_read == (5, 3)


@pytest.mark.parametrize(
    ("to", "is_segmented", "warning"),
    [
        ("parts", True, "No broker reads parts"),
        ("segments", False, "The broker does not read segments"),
        ("segments", True, ""),
    ],
)
def test_who_reads_the_new_form_is_told(to: str, is_segmented: bool, warning: str, journal: Folder) -> None:
    done = migrations(single(is_segmented=is_segmented), journal).migrate(TOPIC, to)
    assert done.warning.startswith(warning)
    assert bool(done.warning) is bool(warning)


def test_segments_of_another_topic_are_left_alone(journal: Folder) -> None:
    broker = segmented()
    other = f"{TOPIC}-2"
    value = encode_segment(Segment(other, 0, (5, 1), ids_of([(9, 9)])))
    broker.topics[SnapshotKind.SEGMENT].append(read_at(SnapshotKind.SEGMENT, f"multiple-0-{other}", value, (10, 7)))
    migrations(broker, journal).migrate(TOPIC, "single")
    assert not [key for _kind, key, _is_null in broker.sent if key.endswith(other)]
