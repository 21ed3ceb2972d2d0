"""After the undo of a migration the old form counts again: nothing that it does not have is removed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from streaming.clock import ManualClock
from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.snapshots.parts import migrate as module
from streaming.snapshots.parts.migrate import Migrations
from streaming.snapshots.parts.undo_migration import MigrationUndo
from streaming.snapshots.repair.repair_journal import RepairJournal
from streaming.snapshots.repair.restore import Restores
from streaming.state.filesystem import Folder, folder_of
from tests.unit.snapshots.migration_world import ALL, Broker, migrations, segmented, single
from tests.unit.snapshots.repair_world import SPACE, TAIL, TOPIC, read_at
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.codec import Index, Snapshot, decode_index, encode_index, encode_snapshot, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.sealed_segments import named_segments

PARTS, SINGLES, INDEX, SEGMENT = SnapshotKind.PARTS, SnapshotKind.SINGLE, SnapshotKind.INDEX, SnapshotKind.SEGMENT
DIRECTIONS = [
    pytest.param(segmented, ["parts"], INDEX, {INDEX, SEGMENT}, id="segments to parts"),
    pytest.param(segmented, ["single"], INDEX, {INDEX, SEGMENT, SINGLES}, id="segments to a single one"),
    pytest.param(single, ["parts"], SINGLES, {SINGLES}, id="a single one to parts"),
    pytest.param(single, ["segments"], SINGLES, {SINGLES}, id="a single one to segments"),
    pytest.param(single, ["parts", "segments"], PARTS, {PARTS, INDEX, SEGMENT}, id="parts to segments"),
    pytest.param(segmented, ["parts", "single"], PARTS, {PARTS, SINGLES}, id="parts to a single one"),
]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART_IDS", 2)


def undone(broker: Broker, runs: Migrations) -> list[str]:
    """Undo the last migration."""
    put_backs = Restores(broker, broker.sender, broker.require, lambda topic: broker.buffer(topic) is not None)
    return [each.describe() for each in MigrationUndo(runs, put_backs).undo(TOPIC)]


def counts_again(broker: Broker, runs: Migrations, old: SnapshotKind, before: dict[str, bytes]) -> None:
    """The form counts, and holds what it held; the tail of an index that was put back, the broker finds again."""
    form = runs.form(TOPIC, runs.stored(TOPIC))
    assert form.kind is old
    if old is INDEX:
        named = [
            (number, marker) for number, _place, marker in named_segments(decode_index(broker.values(INDEX)[TOPIC]))
        ]
        assert named == [(0, (5, 1)), (1, (5, 9))]
        assert set(form.aborts.ids.pairs()) in (ALL, ALL - {TAIL})
    else:
        assert broker.values(old) == before != {}
        assert set(form.aborts.ids.pairs()) == ALL


@pytest.mark.parametrize(("made", "forms", "old", "left"), DIRECTIONS)
def test_the_form_that_a_migration_removed_counts_again(
    made: Callable[[], Broker], forms: list[str], old: SnapshotKind, left: set[SnapshotKind], journal: Folder
) -> None:
    broker = made()
    runs = migrations(broker, journal)
    for to in forms[:-1]:
        runs.migrate(TOPIC, to)
    before = broker.values(old)
    runs.migrate(TOPIC, forms[-1])
    broker.sent.clear()
    assert undone(broker, runs)
    counts_again(broker, runs, old, before)
    assert broker.kinds() == left
    if old is PARTS:  # a part without its end does not count
        assert ["-end-" in key for kind, key, is_null in broker.sent if kind is old and not is_null] == [False, True]
    broker.sent.clear()
    undone(broker, runs)
    assert [key for _kind, key, is_null in broker.sent if not is_null] == []


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_migration_that_broke_off_before_it_sent_anything_does_not_hide_the_one_before(
    journal: Folder, monkeypatch: pytest.MonkeyPatch, *, is_resumed: bool
) -> None:
    broker = segmented()
    runs = migrations(broker, journal)
    before = broker.values(INDEX)
    runs.migrate(TOPIC, "parts")
    parts = broker.values(PARTS)
    with monkeypatch.context() as full:
        full.setattr(RepairJournal, "mark_sent", _disk_is_full)
        with pytest.raises(UnavailableError):
            runs.migrate(TOPIC, "single")
    assert broker.values(PARTS) == parts
    if is_resumed:
        runs.migrate(TOPIC, "single")
        undone(broker, runs)
        counts_again(broker, runs, PARTS, parts)
    else:
        undone(broker, runs)
        counts_again(broker, runs, INDEX, before)


def _disk_is_full(_journal: RepairJournal, _name: str) -> None:
    raise UnavailableError("no space left on device")


@pytest.mark.parametrize("is_run_again", [False, True])
@pytest.mark.parametrize(("made", "forms", "old", "left"), DIRECTIONS)
def test_a_migration_that_broke_off_can_be_undone(
    made: Callable[[], Broker],
    forms: list[str],
    old: SnapshotKind,
    left: set[SnapshotKind],
    journal: Folder,
    *,
    is_run_again: bool,
) -> None:
    for at in range(20):
        broker = made()
        runs = migrations(broker, folder_of(f"{journal.location}/{at}"))
        for to in forms[:-1]:
            runs.migrate(TOPIC, to)
        before = broker.values(old)
        broker.fails_at = len(broker.sent) + at
        try:
            runs.migrate(TOPIC, forms[-1])
        except UnavailableError:
            broker.fails_at = -1
        else:
            assert at > 2
            return
        if is_run_again:
            runs.migrate(TOPIC, forms[-1])
        undone(broker, runs)
        counts_again(broker, runs, old, before)
        assert broker.kinds() <= left


@pytest.mark.parametrize(("made", "forms", "old", "left"), DIRECTIONS)
def test_an_undo_that_broke_off_is_run_again(
    made: Callable[[], Broker], forms: list[str], old: SnapshotKind, left: set[SnapshotKind], journal: Folder
) -> None:
    for at in range(20):
        broker = made()
        runs = migrations(broker, folder_of(f"{journal.location}/{at}"))
        for to in forms[:-1]:
            runs.migrate(TOPIC, to)
        before = broker.values(old)
        runs.migrate(TOPIC, forms[-1])
        broker.fails_at = len(broker.sent) + at
        try:
            undone(broker, runs)
        except UnavailableError:
            assert runs.form(TOPIC, runs.stored(TOPIC)).aborts.rows >= len(ALL) - 1  # something whole counts
            broker.fails_at = -1
        else:
            assert at > 0
            return
        undone(broker, runs)
        counts_again(broker, runs, old, before)
        assert broker.kinds() == left


def test_an_undo_restores_what_the_last_migration_found_and_nothing_older(journal: Folder) -> None:
    broker = single()
    runs = migrations(broker, journal)
    broker.fails_at = 1
    with pytest.raises(UnavailableError):
        runs.migrate(TOPIC, "parts")
    broker.fails_at = -1
    undone(broker, runs)
    newer = encode_snapshot(Snapshot(TOPIC, (5, 30), aborts_of([(1, 9, 5, 25)])))
    broker.topics[SINGLES].append(read_at(SINGLES, TOPIC, newer, (40, 0)))
    runs.migrate(TOPIC, "parts")
    undone(broker, runs)
    assert broker.values(SINGLES) == {TOPIC: newer}


def test_a_run_that_broke_off_before_its_journal_was_whole_is_no_migration(journal: Folder) -> None:
    """It has sent nothing, and its entries name a part of what was there."""

    def breaks() -> str:
        if journal.names():
            raise UnavailableError("the disk is full")
        return "00000000"

    broker = segmented()
    runs = migrations(broker, journal)
    with pytest.raises(UnavailableError):
        replace(runs, journal=RepairJournal(journal, ManualClock(1_000), breaks)).migrate(TOPIC, "parts")
    with pytest.raises(ConfigError, match="no migration"):
        undone(broker, runs)
    assert broker.sent == []
    runs.migrate(TOPIC, "parts")
    undone(broker, runs)
    counts_again(broker, runs, INDEX, {})


def test_a_topic_that_was_never_migrated_is_refused(journal: Folder) -> None:
    with pytest.raises(ConfigError, match="no migration"):
        undone(single(), migrations(single(), journal))


def test_a_loaded_topic_is_refused(journal: Folder) -> None:
    broker = single()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "segments")
    broker.sent.clear()
    broker.loads_at = 0
    with pytest.raises(SafetyError, match="is loaded"):
        undone(broker, runs)
    assert broker.sent == []


def test_nothing_more_is_removed_once_a_broker_has_the_topic(journal: Folder) -> None:
    broker = single()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "segments")
    broker.sent.clear()
    broker.loads_at = 1
    with pytest.raises(SafetyError, match="is loaded"):
        undone(broker, runs)
    assert broker.sent == [(INDEX, TOPIC, True)]


def test_tombstones_of_segments_are_compacted_away(journal: Folder) -> None:
    broker = single()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "segments")
    undone(broker, runs)
    assert broker.compacted_spaces == [SPACE]


def test_an_index_that_a_broker_has_written_since_stays(journal: Folder) -> None:
    broker = single()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "segments")
    index = decode_index(broker.values(INDEX)[TOPIC])
    later = encode_index(Index(TOPIC, index.entries, (5, 40), ids_of([(3, 3)])))
    broker.topics[INDEX].append(read_at(INDEX, TOPIC, later, (50, 0)))
    broker.sent.clear()
    with pytest.raises(SafetyError, match=r"a later maxReadPosition, so nothing was removed.*--to single"):
        undone(broker, runs)
    assert broker.sent == []
    runs.migrate(TOPIC, "single")
    assert (3, 3) in runs.form(TOPIC, runs.stored(TOPIC)).aborts.ids.pairs()


@pytest.mark.parametrize(
    ("made", "kind", "value", "to"),
    [
        (single, SINGLES, encode_snapshot(Snapshot(TOPIC, (5, 40), aborts_of([(3, 3, 5, 39)]))), "single"),
        (segmented, INDEX, encode_index(Index(TOPIC, entries_of([]), (5, 40), ids_of([(3, 3)]))), "segments"),
    ],
)
def test_parts_stay_where_a_broker_has_started_without_a_snapshot(
    made: Callable[[], Broker], kind: SnapshotKind, value: bytes, to: str, journal: Folder
) -> None:
    """It knows none of the old ids, and they are in the parts alone."""
    broker = made()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "parts")
    broker.topics[kind].append(read_at(kind, TOPIC, value, (50, 0)))
    broker.sent.clear()
    with pytest.raises(SafetyError, match=rf"aborted ids that it does not have, so nothing was removed.*--to {to}"):
        undone(broker, runs)
    assert broker.sent == []
    runs.migrate(TOPIC, to)
    assert set(runs.form(TOPIC, runs.stored(TOPIC)).aborts.ids.pairs()) >= ALL - {TAIL}


def test_parts_stay_where_a_broker_has_written_an_index_before_the_single_snapshot_was_back(journal: Folder) -> None:
    """The index knows none of the old ids, and would count once the parts are gone."""
    broker = single()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "parts")
    wrong = encode_index(Index(TOPIC, entries_of([]), (5, 40), ids_of([(3, 3)])))
    broker.topics[INDEX] = [read_at(INDEX, TOPIC, wrong, (50, 0))]
    broker.topics[SEGMENT] = []
    with pytest.raises(SafetyError, match=r"a later maxReadPosition, so nothing was removed.*--to single"):
        undone(broker, runs)
    assert broker.kinds() == {PARTS, INDEX, SINGLES}
    runs.migrate(TOPIC, "single")
    assert broker.kinds() == {SINGLES}
    assert set(runs.form(TOPIC, runs.stored(TOPIC)).aborts.ids.pairs()) == ALL


def test_parts_stay_where_the_index_of_a_broker_can_not_be_read(journal: Folder) -> None:
    broker = segmented()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "parts")
    lost = encode_index(Index(TOPIC, entries_of([(0, (77, 0), (5, 1))]), (5, 40), ids_of([])))
    broker.topics[INDEX].append(read_at(INDEX, TOPIC, lost, (50, 0)))
    broker.sent.clear()
    with pytest.raises(SafetyError, match=r"is not at 77:0. Nothing was removed: .*--to segments"):
        undone(broker, runs)
    assert broker.sent == []
    runs.migrate(TOPIC, "segments")
    assert set(runs.form(TOPIC, runs.stored(TOPIC)).aborts.ids.pairs()) >= ALL - {TAIL}


def test_an_old_form_that_is_not_found_again_removes_nothing(journal: Folder) -> None:
    broker = single()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "parts")
    broker.sent.clear()
    broker.lies = True
    with pytest.raises(SafetyError, match="can't be read yet"):
        undone(broker, runs)
    assert broker.sent == [(SINGLES, TOPIC, False)]
    assert PARTS in broker.kinds()


def test_an_index_whose_segments_are_nowhere_is_refused_and_the_new_form_stays(journal: Folder) -> None:
    broker = segmented()
    runs = migrations(broker, journal)
    runs.migrate(TOPIC, "parts")
    broker.topics[SEGMENT] = [read for read in broker.topics[SEGMENT] if read.sequence != 0]
    for name in journal.names():
        content = journal.read(name) or b""
        if f"multiple-0-{TOPIC}".encode() in content:
            journal.write(name, content.replace(b"multiple-0-", b"multiple-7-"))
    broker.sent.clear()
    with pytest.raises(SafetyError, match=r"segments 0 .* nothing was sent. The form that the migration wrote stays"):
        undone(broker, runs)
    assert broker.sent == []
    assert broker.kinds() == {PARTS}
