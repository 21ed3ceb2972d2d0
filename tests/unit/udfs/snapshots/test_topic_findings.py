"""Each fault of a topic's snapshots is named once, and what is in use, or not known, is never called an orphan."""

from dataclasses import replace

import pytest

from udfs.records import Presence
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import (
    BufferFacts,
    IndexState,
    NamedSegment,
    NamespaceFacts,
    SnapshotClass,
    SnapshotFacts,
    SnapshotReason,
    TopicFacts,
    findings_of,
    namespace_findings_of,
)

TOPIC = "persistent://t/ns/orders"
LIVES, GONE = 5, 4  # ledgers of the topic
PLACE = (70, 1)
INDEX = SnapshotFacts(kind=SnapshotKind.INDEX, key=TOPIC, position=(60, 0), size_bytes=100)
SEGMENT = SnapshotFacts(
    kind=SnapshotKind.SEGMENT,
    key=f"multiple-0-{TOPIC}",
    position=PLACE,
    size_bytes=600,
    ids=200,
    sequence=0,
    marker=(LIVES, 9),
)
SINGLE = SnapshotFacts(kind=SnapshotKind.SINGLE, key=TOPIC, position=(50, 0), size_bytes=300, ids=30)
NAMED = NamedSegment(0, PLACE, (LIVES, 9), is_readable=True)
WELL = TopicFacts(
    topic=TOPIC,
    in_metadata=Presence.PRESENT,
    at_broker=Presence.UNREADABLE,
    ledgers=frozenset({LIVES}),
    segment_ledgers=frozenset({70}),
    values=(INDEX, SEGMENT),
    index=IndexState.READABLE,
    segments=1,
    named=(NAMED,),
    live_ids=200,
    buffer=BufferFacts(state="Ready", snapshot_type="Segment", aborted=230),
    most_bytes=5_000,
    is_segmented=True,
)
ONLY_SINGLE = replace(WELL, values=(SINGLE,), index=IndexState.NONE, segments=0, named=(), live_ids=30)


def _found(facts: TopicFacts) -> set[tuple[SnapshotClass, SnapshotReason]]:
    return {(each.finding_class, each.reason) for each in findings_of(facts)}


def test_a_topic_that_is_well_has_no_findings() -> None:
    assert _found(WELL) == set()
    assert _found(ONLY_SINGLE) == set()
    assert _found(replace(WELL, values=(INDEX, SEGMENT, SINGLE))) == set()  # an index may be lost, a single one is left


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"named": (replace(NAMED, is_readable=False),)},
            {(SnapshotClass.MISSING, SnapshotReason.SEGMENT_LOST)},
            id="a segment that can't be read, and its marker lives",
        ),
        pytest.param(
            {"named": (replace(NAMED, is_readable=False, marker=(GONE, 1)),)},
            set(),
            id="a segment that can't be read, and its marker is gone",
        ),
        pytest.param(
            {"values": (INDEX, SEGMENT, replace(SEGMENT, sequence=1, position=(71, 0)))},
            {(SnapshotClass.WASTE, SnapshotReason.NOT_NAMED)},
            id="a segment that the index does not name yet",
        ),
        pytest.param(
            {
                "values": (INDEX, SEGMENT, replace(SEGMENT, sequence=1, position=(71, 0))),
                "named": (NAMED, replace(NAMED, sequence=2)),
            },
            {(SnapshotClass.ORPHAN, SnapshotReason.NOT_NAMED)},
            id="a segment that the index has left behind",
        ),
        pytest.param(
            {"values": (INDEX, replace(SEGMENT, position=(71, 0)))},
            set(),
            id="a named number that lies at another place too",
        ),
        pytest.param(
            {"values": (replace(INDEX, max_read=(-1, -1)), SEGMENT)},
            {(SnapshotClass.DANGER, SnapshotReason.NO_MAX_READ)},
            id="an index that was written in the midst of a replay",
        ),
        pytest.param(
            {
                "values": (replace(INDEX, max_read=(-1, -1)), SEGMENT),
                "buffer": BufferFacts(state="Initializing", snapshot_type="Segment", aborted=0),
            },
            {(SnapshotClass.UNKNOWN, SnapshotReason.NO_MAX_READ)},
            id="an index that is written in the midst of a replay that goes on",
        ),
        pytest.param(
            {
                "values": (replace(INDEX, max_read=(-1, -1)), replace(SEGMENT, marker=(GONE, 1))),
                "named": (replace(NAMED, marker=(GONE, 1)),),
                "live_ids": 0,
            },
            {(SnapshotClass.WASTE, SnapshotReason.DEAD_IDS)},
            id="one that names only what no load finds again",
        ),
        pytest.param(
            {"values": (replace(INDEX, max_read=(-1, -1)),), "named": (), "segments": 0, "live_ids": 0},
            set(),
            id="an empty index, with which a topic is replayed",
        ),
        pytest.param({"doubled_ids": 3}, {(SnapshotClass.DANGER, SnapshotReason.DOUBLED_IDS)}, id="doubled ids"),
        pytest.param(
            {"buffer": BufferFacts(state="Ready", snapshot_type="Segment", aborted=199)},
            {(SnapshotClass.DANGER, SnapshotReason.IDS_LOST)},
            id="fewer ids in memory than in the snapshot",
        ),
        pytest.param(
            {"buffer": BufferFacts(state="Recovering", snapshot_type="Segment", aborted=0)},
            set(),
            id="a buffer that recovers",
        ),
        pytest.param({"buffer": None}, set(), id="a topic that is not loaded"),
        pytest.param(
            {"buffer": BufferFacts(state="Ready", snapshot_type="Single", aborted=230)},
            {(SnapshotClass.DANGER, SnapshotReason.FLAG_OFF)},
            id="loaded with single snapshots",
        ),
        pytest.param(
            {"buffer": None, "is_segmented": False},
            {(SnapshotClass.DANGER, SnapshotReason.FLAG_OFF)},
            id="brokers write single snapshots",
        ),
        pytest.param({"buffer": None, "is_segmented": None}, set(), id="nobody says what brokers write"),
        pytest.param(
            {"values": (replace(INDEX, size_bytes=4_001), SEGMENT)},
            {(SnapshotClass.DANGER, SnapshotReason.NEAR_LIMIT)},
            id="an index close to the limit",
        ),
        pytest.param({"values": (replace(INDEX, size_bytes=4_000), SEGMENT)}, set(), id="just far enough from it"),
        pytest.param(
            {"values": (INDEX, replace(SEGMENT, marker=(GONE, 1)))},
            {(SnapshotClass.WASTE, SnapshotReason.DEAD_IDS)},
            id="a segment whose marker is gone",
        ),
        pytest.param(
            {"values": (SEGMENT,), "index": IndexState.NONE, "named": (), "live_ids": 0},
            {(SnapshotClass.DANGER, SnapshotReason.INDEX_LOST)},
            id="segments without an index",
        ),
        pytest.param(
            {"values": (SEGMENT,), "index": IndexState.FAULTY, "named": (), "live_ids": 0},
            {(SnapshotClass.UNKNOWN, SnapshotReason.INDEX_UNREADABLE)},
            id="segments and an index that nobody can read",
        ),
    ],
)
def test_each_fault_of_a_living_topic_is_named(
    changes: dict[str, object], expected: set[tuple[SnapshotClass, SnapshotReason]]
) -> None:
    assert _found(replace(WELL, **changes)) == expected  # type: ignore[arg-type]


def test_an_index_without_a_max_read_position_is_told_as_that_very_message() -> None:
    """A broker that replays writes several; two looks agree only where the same one still stands there."""
    (found,) = findings_of(replace(WELL, values=(replace(INDEX, max_read=(-1, -1)), SEGMENT), is_first=False))
    assert (found.key, found.position, found.kind) == (TOPIC, INDEX.position, SnapshotKind.INDEX)


def test_dead_ids_of_a_single_snapshot_count_until_there_is_an_index() -> None:
    dead = replace(SINGLE, dead_ids=10)
    (found,) = findings_of(replace(ONLY_SINGLE, values=(dead,), live_ids=20))
    assert (found.reason, found.ids, found.size_bytes) == (SnapshotReason.DEAD_IDS, 10, 100)
    assert _found(replace(WELL, values=(INDEX, SEGMENT, dead))) == set()


@pytest.mark.parametrize("in_metadata", Presence)
@pytest.mark.parametrize("at_broker", Presence)
def test_a_topic_is_gone_only_where_both_say_so(in_metadata: Presence, at_broker: Presence) -> None:
    found = list(findings_of(replace(WELL, in_metadata=in_metadata, at_broker=at_broker)))
    if in_metadata is Presence.PRESENT:
        assert found == []
    elif (in_metadata, at_broker) == (Presence.GONE, Presence.GONE):
        assert [(each.reason, each.key) for each in found] == [
            (SnapshotReason.OWNER_GONE, INDEX.key),
            (SnapshotReason.OWNER_GONE, SEGMENT.key),
        ]
    else:
        assert [each.finding_class for each in found] == [SnapshotClass.UNKNOWN]


def test_of_the_parts_of_a_topic_the_first_tells_what_concerns_the_topic() -> None:
    broken = replace(WELL, named=(replace(NAMED, is_readable=False),), doubled_ids=1)
    assert _found(replace(broken, is_first=False)) == set()
    assert {reason for _class, reason in _found(broken)} == {SnapshotReason.SEGMENT_LOST, SnapshotReason.DOUBLED_IDS}


def test_a_lost_segment_is_named_by_key_and_place() -> None:
    (found,) = findings_of(replace(WELL, named=(replace(NAMED, is_readable=False, position=(69, 4)),)))
    assert (found.key, found.position, found.topic) == (SEGMENT.key, (69, 4), TOPIC)
    assert "was trimmed" in found.detail


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (NamespaceFacts(namespace="t/ns"), set()),
        (NamespaceFacts(namespace="t/ns", segments=3), set()),
        (NamespaceFacts(namespace="t/ns", segments=3, is_guarded=False), {SnapshotReason.NO_GUARD}),
        (NamespaceFacts(namespace="t/ns", segments=0, is_guarded=False), set()),
        (NamespaceFacts(namespace="t/ns", nulls=1), {SnapshotReason.NULLS_VISIBLE}),
        (NamespaceFacts(namespace="t/ns", foreign={str(SnapshotKind.INDEX): 1}), {SnapshotReason.FOREIGN_SCHEMA}),
    ],
)
def test_each_fault_of_a_namespace_is_named(facts: NamespaceFacts, expected: set[SnapshotReason]) -> None:
    assert {each.reason for each in namespace_findings_of(facts)} == expected
