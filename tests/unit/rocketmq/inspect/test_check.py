import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.rocksdb import counted
from streaming.adapters.rocksdb.database import Database, opened
from streaming.errors import ConfigError, SafetyError
from streaming.rocketmq.inspect.check import Check
from streaming.rocketmq.store.store_paths import store_paths
from tests import rocketmq_store
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.converted import CLOCK, backfill, check, context, converted_store, nothing, replace_rows
from udfs.rocketmq import rows
from udfs.rocketmq.compare import FindingKind


def changed(root: Path, change: Callable[[Database], object]) -> None:
    with opened(root / "consumequeue", ("offset",), compressed=True) as database:
        change(database)
        database.flush()


ORDERS_0 = rows.unit_key(b"Orders", 0, 1)


VALUE = struct.pack(">qiqq", 1, 2, 3, 4)


MAX = rows.max_key(b"Orders", 0)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        pytest.param(lambda db: db.delete("default", ORDERS_0), [FindingKind.MISSING], id="a row is missing"),
        pytest.param(
            lambda db: db.put_all("default", [(ORDERS_0, db.get("default", ORDERS_0)[:20] + VALUE[20:])]),
            [FindingKind.TIME],
            id="another store time",
        ),
        pytest.param(
            lambda db: db.put_all("default", [(ORDERS_0, VALUE[:12] + db.get("default", ORDERS_0)[12:])]),
            [FindingKind.DIFFERENT],
            id="another position",
        ),
        pytest.param(
            lambda db: db.put_all("default", [(rows.unit_key(b"Orders", 0, 99), VALUE)]),
            [FindingKind.NO_MESSAGE, FindingKind.MAX],
            id="a row without a message",
        ),
        pytest.param(lambda db: db.delete("offset", rows.max_key(b"Orders", 0)), [FindingKind.MAX], id="no max"),
        pytest.param(
            lambda db: db.put_all("offset", [(rows.max_key(b"Orders", 0), rows.bound_value(0, 500))]),
            [FindingKind.MAX],
            id="a max that would leave a hole",
        ),
        pytest.param(
            lambda db: db.put_all("offset", [(MAX, rows.bound_value(0, rows.decode_bound(db.get("offset", MAX))[1]))]),
            [FindingKind.MAX],
            id="a max at another position: all would count as expired once the log begins behind it",
        ),
        pytest.param(
            lambda db: db.put_all("offset", [(rows.min_key(b"Orders", 0), rows.bound_value(0, 2))]),
            [FindingKind.MIN],
            id="a min behind the first message",
        ),
        pytest.param(lambda db: db.delete("offset", rows.min_key(b"Orders", 0)), [], id="no min: the broker finds it"),
        pytest.param(
            lambda db: db.delete("offset", rows.checkpoint_key()), [FindingKind.CHECKPOINT], id="no CHECKPOINT"
        ),
        pytest.param(
            lambda db: db.put_all("offset", [(rows.checkpoint_key(), rows.checkpoint_value(2**40))]),
            [FindingKind.CHECKPOINT],
            id="CHECKPOINT behind the log",
        ),
        pytest.param(
            lambda db: db.put_all("offset", [(rows.checkpoint_key(), rows.checkpoint_value(1))]),
            [],
            id="CHECKPOINT before the end: the broker reads again",
        ),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, change: Callable[[Database], object], kinds: list[FindingKind]) -> None:
    converted_store(tmp_path)
    changed(tmp_path, change)
    result = check(tmp_path, rows_per_part=5)
    assert sorted({each.kind for each in result.findings}) == sorted(kinds)
    assert result.is_sound == (not kinds)


def test_a_message_that_was_never_indexed_is_found(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.write()
    backfill(tmp_path / "s")
    longer = small_store(tmp_path / "t")
    longer.put(Message("Orders", 0))
    longer.put(Message("Orders", 9))
    longer.write()
    for file in (tmp_path / "t" / "commitlog").iterdir():
        (tmp_path / "s" / "commitlog" / file.name).write_bytes(file.read_bytes())
    result = check(tmp_path / "s")
    assert [(each.topic, each.queue_id, each.kind, each.count) for each in result.findings] == [
        (b"Orders", 0, FindingKind.NO_QUEUE, 1),
        (b"Orders", 9, FindingKind.NO_QUEUE, 1),
    ]
    assert "index" in result.notes[0]


def test_a_store_without_any_queue_is_not_well_while_its_log_has_messages(tmp_path: Path) -> None:
    converted_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "consumequeue").mkdir()
    changed(tmp_path, lambda _db: None)
    found = {(each.topic, each.queue_id) for each in check(tmp_path).findings if each.kind is FindingKind.NO_QUEUE}
    assert found >= {(b"Orders", 0), (b"Orders", 1), (b"Orders", 2), (b"Sources", 0)}


@pytest.mark.parametrize("again", [1, 4, 9, 12])
def test_messages_of_a_topic_that_was_created_again_count_from_its_new_start(tmp_path: Path, again: int) -> None:
    store = small_store(tmp_path)
    for _ in range(9):
        store.put(Message("Again", 0, tag="before"))
    store.delete_topic("Again")
    for _ in range(again):
        store.put(Message("Again", 0, tag="after"))
    store.write()
    backfill(tmp_path)
    assert check(tmp_path).findings == ()

    changed(tmp_path, lambda db: db.delete("default", rows.unit_key(b"Again", 0, 0)))
    assert FindingKind.MISSING in {each.kind for each in check(tmp_path).findings}


def test_with_a_topic_only_its_queues_are_shown(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    changed(tmp_path, lambda db: db.delete("default", rows.unit_key(b"Sources", 0, 0)))
    result = check(tmp_path, "Orders")
    assert result.is_sound
    assert [(each.queue_id, each.next) for each in result.queues] == [
        (queue, len(store.units["Orders", queue])) for queue in range(3)
    ]
    assert not check(tmp_path, "Sources").is_sound


def test_an_unknown_topic_is_an_error_and_a_topic_without_messages_is_not(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.units["Unused", 0] = []
    store.write()
    shutil.rmtree(tmp_path / "consumequeue" / "Unused")
    backfill(tmp_path)
    with pytest.raises(ConfigError, match=r"a topic Order$"):
        check(tmp_path, "Order")
    unused = check(tmp_path, "Unused")
    assert (unused.is_sound, unused.queues) == (True, ())
    assert any("no queue yet" in note for note in unused.notes)


def test_a_note_reports_a_broker_that_was_killed(tmp_path: Path) -> None:
    converted_store(tmp_path)
    assert not any("abort" in note for note in check(tmp_path).notes)
    (tmp_path / "abort").touch()
    assert any("abort" in note for note in check(tmp_path).notes)


def test_a_store_without_rocksdb_is_nothing_to_check(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(SafetyError, match="backfill"):
        check(tmp_path)


def test_messages_without_any_queue_are_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write()
    backfill(tmp_path)
    assert check(tmp_path).is_sound
    other = Store(tmp_path / "other")
    other.put(Message())
    other.write()
    for file in (tmp_path / "other" / "commitlog").iterdir():
        (tmp_path / "commitlog" / file.name).write_bytes(file.read_bytes())
    assert [each.kind for each in check(tmp_path).findings] == [FindingKind.NO_QUEUE]


def test_a_file_queue_of_a_topic_that_was_created_again_in_rocksdb_is_no_finding(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    whole = list(store.units["Sources", 0])
    begin = len(store.log)
    store.units["Sources", 0] = []
    for _number in range(3):
        store.put(Message("Sources", 0))
    size = store.log_file_bytes
    padded = bytes(store.log) + bytes(-len(store.log) % size)
    for start in range(begin // size * size, len(padded), size):
        (tmp_path / "commitlog" / f"{start:020d}").write_bytes(padded[start : start + size])
    replace_rows(tmp_path, "Sources", whole, store.units["Sources", 0])
    changed(tmp_path, lambda db: db.delete("offset", rows.min_key(b"Sources", 0)))  # a broker deletes it with the topic
    result = check(tmp_path)
    assert result.findings == ()
    assert any("created again" in note for note in result.notes)


def test_a_row_that_only_its_key_does_not_find_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker looks rows up by their keys; a file with a wrong index still gives them all to who reads in turn."""
    whole = counted._Table._point_at

    def point_too_early(table: Any, last_key: bytes, handle: bytes) -> None:
        number = int.from_bytes(last_key[-8:], "big")
        early = number if number == 1199 else number - 300  # the last row is looked up by `backfill` itself
        whole(table, last_key[:-8] + early.to_bytes(8, "big"), handle)

    store = Store(tmp_path, queue_file_units=900)
    for _number in range(1200):
        store.put(Message("A"))
    store.write()
    monkeypatch.setattr(counted._Table, "_point_at", point_too_early)
    backfill(tmp_path, rows_per_file=1200)
    with opened(tmp_path / "consumequeue", read_only=True) as database:
        assert len(list(database.rows("default"))) == 1200
    with pytest.raises(SafetyError, match="does not find it by its key"):
        check(tmp_path, rows_per_part=1200)


@pytest.mark.parametrize("expired", [0, 1])
@pytest.mark.parametrize("are_files_there", [True, False])
def test_a_min_that_is_not_the_first_message_is_found_without_file_queues_too(
    tmp_path: Path, expired: int, are_files_there: bool
) -> None:
    store = Store(tmp_path)
    for number in range(60):
        store.put(Message("Orders", number % 3))
    store.write(expired_files=expired)
    backfill(tmp_path)
    if not are_files_there:
        shutil.rmtree(tmp_path / "consumequeue" / "Orders")
    assert check(tmp_path).is_sound
    live = store.live("Orders", 0)
    for offset, phy in ((live[0][0] + 3, live[3][1]), (live[0][0] + 1, live[0][1]), (live[0][0] + 1, 0)):
        changed(tmp_path, lambda db, to=(phy, offset): db.put_all("offset", [(MIN, rows.bound_value(*to))]))  # type: ignore[misc]
        assert [each.kind for each in check(tmp_path).findings] == [FindingKind.MIN]
    # a queue that had no message when it was converted: its min row has the log's beginning, and a broker serves that
    first_of_log = min(store.live("Orders", queue_id)[0][1] for queue_id in range(3))
    changed(tmp_path, lambda db: db.put_all("offset", [(MIN, rows.bound_value(first_of_log, live[0][0]))]))
    assert check(tmp_path).is_sound
    if expired:  # a broker looks for the first one itself, where the message of the min row has expired
        changed(tmp_path, lambda db: db.put_all("offset", [(MIN, rows.bound_value(0, 0))]))
        assert check(tmp_path).is_sound


MIN = rows.min_key(b"Orders", 0)


def spans_of(root: Path) -> dict[str, int]:
    """How many units of each queue are compared."""
    return {f"{each.topic}-{each.queue_id}": each.units for each in check(root).queues}


@pytest.mark.parametrize("offset", [500_000, 2**62, -5])
def test_a_damaged_key_does_not_determine_how_much_is_compared(tmp_path: Path, offset: int) -> None:
    """Whoever compared what it promises would run until the memory is full."""
    converted_store(tmp_path)
    changed(tmp_path, lambda db: db.put_all("default", [(rows.unit_key(b"Orders", 0, offset), bytes(28))]))
    with pytest.raises(SafetyError, match=rf"Orders.*{offset}"):
        check(tmp_path)


def test_a_database_without_queues_is_reported(tmp_path: Path) -> None:
    converted_store(tmp_path)
    for path in (tmp_path / "consumequeue").iterdir():
        if path.is_file():
            path.unlink()
    with opened(tmp_path / "consumequeue") as database:
        database.put_all("default", [(ORDERS_0, VALUE)])
    with pytest.raises(SafetyError, match="column family `offset`"):
        check(tmp_path)


def test_unknown_delays_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_store, "DELAYS_S", (1, 5, 7200))  # as messageDelayLevel=1s 5s 2h
    small_store(tmp_path).write()
    backfill(tmp_path)
    result = check(tmp_path)
    assert {each.topic.decode() for each in result.findings} == {rocketmq_store.SCHEDULE}
    assert any("messageDelayLevel" in note and "--broker-conf" in note for note in result.notes)
    conf = tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel=1s 5s 2h\nmappedFileSizeCommitLog=2048\nmappedFileSizeConsumeQueue=160\n")
    told = Check(store_paths(tmp_path, conf), CLOCK, nothing, rows_per_part=5).run(context())
    assert told.findings == ()
    assert not any("messageDelayLevel" in note for note in told.notes)


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    converted_store(tmp_path)
    changed(tmp_path, lambda db: db.put_all("offset", [(rows.checkpoint_key(), b"abc")]))
    with pytest.raises(SafetyError, match="CHECKPOINT has 3 bytes"):
        check(tmp_path)


def test_a_damaged_max_does_not_determine_how_much_is_compared(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    for phy in (0, 17, 2**40):
        changed(
            tmp_path,
            lambda db, to=phy: db.put_all(  # type: ignore[misc]
                "offset", [(rows.max_key(b"Orders", 0), rows.bound_value(to, 2**50))]
            ),
        )
        result = check(tmp_path)
        assert [each.kind for each in result.findings] == [FindingKind.MAX]
        assert spans_of(tmp_path)["Orders-0"] == len(store.units["Orders", 0])


def test_rows_that_are_missing_at_the_end_are_found_without_a_file_queue(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Sources")
    count = len(store.units["Sources", 0])
    for offset in range(count - 3, count):
        changed(tmp_path, lambda db, at=offset: db.delete("default", rows.unit_key(b"Sources", 0, at)))  # type: ignore[misc]
    found = [
        (each.topic, each.kind, each.count) for each in check(tmp_path).findings if each.kind is not FindingKind.MAX
    ]
    assert found == [(b"Sources", FindingKind.MISSING, 3)]


def test_a_light_queue_that_started_in_rocksdb_mode_is_compared(tmp_path: Path) -> None:
    store = Store(tmp_path, is_lmq=True)
    for _number in range(9):
        store.put(Message("Orders", 0))
    store.put(Message("Orders", 0, lmq=("%LMQ%new",)))
    store.write()
    backfill(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "%LMQ%new")
    assert check(tmp_path).findings == ()


def test_a_light_queue_that_no_broker_in_file_mode_creates_is_no_finding(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.put(Message("Sources", 0, lmq=("%LMQ%a/b",)))
    del store.units["%LMQ%a/b", 0]
    store.write()
    backfill(tmp_path)
    assert check(tmp_path).findings == ()
