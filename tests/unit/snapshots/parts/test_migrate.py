"""A snapshot goes from one form to another whole, of a topic that no broker has, and what it was can be put back."""

from collections.abc import Callable

import pytest

from streaming.errors import SafetyError, UnavailableError
from streaming.state.filesystem import Folder
from tests.unit.snapshots.migration_world import ALL, Broker, encoded, migrations, segmented, single
from tests.unit.snapshots.repair_world import OLD, SPACE, TOPIC, entries, read_at, segment_at
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.snapshots.aborts import aborts_of, ids_of
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
        found = decode_snapshot(encoded(broker.topics[SnapshotKind.SINGLE][-1]))
        assert set(found.aborts.ids.pairs()) == ALL
    assert entries(journal)


def test_a_dry_run_sends_nothing_and_creates_nothing(journal: Folder) -> None:
    broker = single()
    done = migrations(broker, journal).migrate(TOPIC, "segments", is_dry=True)
    assert (done.values, done.tombstones, broker.sent, set(broker.topics)) == (3, 0, [], {SnapshotKind.SINGLE})
    assert "would be converted from single to segments" in done.describe()
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


def test_the_journal_has_what_a_migration_replaces(journal: Folder) -> None:
    broker = segmented()
    found = migrations(broker, journal)
    found.migrate(TOPIC, "single")
    values = found.replaced(TOPIC).values
    assert values[SnapshotKind.INDEX] == {TOPIC: OLD}
    assert len(values[SnapshotKind.SEGMENT]) == 2
    assert found.replaced(f"{TOPIC}-2").values == {}


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
            "during a replay",
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
    with pytest.raises(SafetyError, match="the new form does not have the ids of the old form"):
        migrations(broker, journal).migrate(TOPIC, "single")


def test_what_lies_behind_the_max_read_position_is_left_to_the_broker(journal: Folder) -> None:
    late = aborts_of([(1, 1, 5, 1), (1, 2, 5, 3), (1, 3, 5, 9)])
    value = encode_snapshot(Snapshot(TOPIC, (5, 4), late))
    broker = Broker({SnapshotKind.SINGLE: [read_at(SnapshotKind.SINGLE, TOPIC, value, (2, 0))]})
    done = migrations(broker, journal).migrate(TOPIC, "segments")
    assert (done.ids, done.kept) == (3, 2)
    assert "finds 1 again" in done.describe()
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
