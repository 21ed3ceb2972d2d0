import json
import os
import shutil
import struct
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.inspect.plan import plan_of
from streaming.rocketmq.rollback.export import export
from streaming.rocketmq.rollback.run import rollback
from streaming.rocketmq.store.json_files import json_table
from streaming.rocketmq.workspace.rollback_plan import unfinished_rollback
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.convert.test_backfill import KilledError, dying_rename, renames
from tests.unit.rocketmq.converted import CLOCK, backfill, check, converted_store, files_below, paths
from udfs.rocketmq.metadata import OffsetsOf
from udfs.rocketmq.refusals import Code

RENAMES = 25  # of a rollback of `used_store`
# the barrier, the old offsets, the new offsets, CURRENT, a table, a database of the configuration, our note, the end
KINDS = (0, 1, 2, 3, 4, 20, 23, 24)


def worked_with(root: Path, consumed: int = 9) -> None:
    """What a broker in RocksDB mode does to the offsets."""
    row = json.dumps({"offsetTable": dict.fromkeys("012", consumed)}, separators=(",", ":"))
    with opened(root / "config" / "consumerOffsets", ("kvDataVersion", "forbidden")) as database:
        database.put_all("default", [(b"Orders@readers", row.encode())])  # with quotation marks, as brokers write rows


def used_store(root: Path) -> Store:
    """A store that was upgraded, and that a broker has worked with since."""
    store = converted_store(root)
    worked_with(root)
    return store


def offsets_of(root: Path) -> Any:
    found = json_table(root / "config", "lmqConsumerOffset.json")
    assert found is not None
    return found[0]


def test_where_no_broker_has_worked_with_the_databases_all_is_as_before(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)
    backfill(tmp_path)
    assert rollback(paths(tmp_path), CLOCK).files == {}
    assert files_below(tmp_path) == before


def test_offsets_that_a_broker_has_moved_on_come_back(tmp_path: Path) -> None:
    store = small_store(tmp_path).write()
    (tmp_path / "config" / "lmqConsumerOffset.json.bak").write_text("{}")
    old = (tmp_path / "config" / "lmqConsumerOffset.json").read_bytes()
    backfill(tmp_path)
    worked_with(tmp_path)
    result = rollback(paths(tmp_path), CLOCK)
    assert result.files == {"lmqConsumerOffset.json": 3}
    assert offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 9, 1: 9, 2: 9}
    assert offsets_of(tmp_path)["lmqOffsetTable"] == store.lmq_offsets
    kept = Path(result.kept) / "config"
    assert (kept / "lmqConsumerOffset.json").read_bytes() == old
    assert (kept / "lmqConsumerOffset.json.bak").read_text() == "{}"
    assert (kept / "consumerOffsets" / "CURRENT").exists()
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def test_forward_again_the_newest_offsets_are_taken(tmp_path: Path) -> None:
    used_store(tmp_path)
    rollback(paths(tmp_path), CLOCK)
    backfill(tmp_path)
    assert check(tmp_path).findings == ()
    with opened(tmp_path / "config" / "consumerOffsets", read_only=True) as database:
        assert database.get("default", b"Orders@readers") == b'{"offsetTable":{0:9,1:9,2:9}}'


def killed_at_its_end(root: Path, monkeypatch: pytest.MonkeyPatch, *, is_barred: bool) -> None:
    """Have a rollback die behind its last rename, or right before that one, which lets the broker start again."""

    def dies(path: Path, *, ignore_errors: bool = False, **of_tempfile: object) -> None:
        if not ignore_errors and not of_tempfile:
            raise KilledError
        rmtree(path, ignore_errors=True)

    def rename(source: Path, target: Path) -> None:
        if is_barred and source == paths(root).barrier:
            raise KilledError
        source.replace(target)

    rmtree = shutil.rmtree
    with monkeypatch.context() as patched:
        patched.setattr("streaming.rocketmq.rollback.run.shutil.rmtree", dies)
        with pytest.raises(KilledError):
            rollback(paths(root), CLOCK, rename)


@pytest.mark.parametrize("is_barred", [False, True])
def test_a_rollback_that_was_killed_at_its_very_end_is_ended_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_barred: bool
) -> None:
    used_store(tmp_path)
    killed_at_its_end(tmp_path, monkeypatch, is_barred=is_barred)
    assert bool(unfinished_rollback(paths(tmp_path))) == is_barred
    result = rollback(paths(tmp_path), CLOCK)
    assert result.files == {"lmqConsumerOffset.json": 3}
    assert (Path(result.kept) / "config" / "consumerOffsets" / "CURRENT").exists()
    assert not paths(tmp_path).barrier.exists()
    assert not (tmp_path / "ledger-reaper" / "rollback").exists()


@pytest.mark.parametrize("is_backfilled", [True, False])
def test_a_plan_of_a_killed_rollback_does_not_count_after_the_next_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_backfilled: bool
) -> None:
    """The databases of two upgrades may have the same CURRENT, and the plan would keep offsets of the first one."""
    used_store(tmp_path)
    killed_at_its_end(tmp_path, monkeypatch, is_barred=False)
    plan = tmp_path / "ledger-reaper" / "rollback" / "plan.json"
    left = plan.read_bytes()
    backfill(tmp_path)
    assert not plan.parent.exists()
    if not is_backfilled:  # a broker has made the databases by a direct switch
        plan.parent.mkdir()
        plan.write_bytes(left)
    worked_with(tmp_path, 11)
    rollback(paths(tmp_path), CLOCK)
    assert offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 11, 1: 11, 2: 11}
    assert len(list((tmp_path / "ledger-reaper").glob("kept-*"))) == 2


def test_a_plan_is_dropped_if_a_database_with_the_same_current_is_another_database(tmp_path: Path) -> None:
    used_store(tmp_path)
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(0))
    current = tmp_path / "config" / "consumerOffsets" / "CURRENT"
    said = current.read_bytes()
    worked_with(tmp_path, 11)
    manifest = current.with_name(current.read_text().strip())
    manifest.rename(manifest.with_name(said.decode().strip()))
    current.write_bytes(said)
    rollback(paths(tmp_path), CLOCK)
    assert offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 11, 1: 11, 2: 11}


def test_another_option_counts_as_long_as_nothing_was_replaced_and_is_refused_afterwards(tmp_path: Path) -> None:
    used_store(tmp_path)
    file = tmp_path / "config" / "lmqConsumerOffset.json"
    before = file.read_bytes()
    for killed_at in (0, 3):
        with pytest.raises(KilledError):
            rollback(paths(tmp_path), CLOCK, dying_rename(killed_at))
        if killed_at:
            with pytest.raises(SafetyError, match="--offsets-of rocksdb has started that writes lmqC"):
                rollback(paths(tmp_path), CLOCK, offsets_of=OffsetsOf.FILES)
            with pytest.raises(SafetyError, match="end it with the options with which it started"):
                rollback(paths(tmp_path, lmq=False), CLOCK)
    rollback(paths(tmp_path), CLOCK, offsets_of=OffsetsOf.ROCKSDB)
    assert file.read_bytes() != before


def test_a_rollback_that_has_replaced_nothing_may_get_other_options(tmp_path: Path) -> None:
    used_store(tmp_path)
    file = tmp_path / "config" / "lmqConsumerOffset.json"
    before = file.read_bytes()
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(0), OffsetsOf.ROCKSDB)
    assert rollback(paths(tmp_path), CLOCK, offsets_of=OffsetsOf.FILES).files == {}
    assert file.read_bytes() == before


def test_within_a_rollback_nothing_is_exported(tmp_path: Path) -> None:
    used_store(tmp_path)
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(3))
    with pytest.raises(SafetyError, match="has not ended: run it again"):
        export(paths(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("killed_at", renames(range(RENAMES), KINDS))
def test_a_rollback_that_is_cut_short_anywhere_ends_the_same_when_repeated(tmp_path: Path, killed_at: int) -> None:
    store = used_store(tmp_path)
    try:
        rollback(paths(tmp_path), CLOCK, dying_rename(killed_at))
    except KilledError:
        rollback(paths(tmp_path), CLOCK, os.replace)
    else:
        pytest.fail("there are fewer renames")
    assert offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 9, 1: 9, 2: 9}
    (kept,) = (tmp_path / "ledger-reaper").glob("kept-*")
    old = json_table(kept / "config", "lmqConsumerOffset.json")
    assert old is not None
    assert old[0]["offsetTable"] == store.offsets
    assert {path.name for path in (tmp_path / "consumequeue").iterdir()} == {topic for topic, _queue in store.units}
    assert not any(path.is_dir() for path in (tmp_path / "config").iterdir())


@pytest.mark.parametrize("killed_at", renames(range(6), (0, 2, 4)))
def test_an_interrupted_rollback_drops_its_files_once_a_broker_has_written(tmp_path: Path, killed_at: int) -> None:
    """Whoever had no room on the disk may have started the broker once more, for days."""
    used_store(tmp_path)
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(killed_at))
    worked_with(tmp_path, 11)
    rollback(paths(tmp_path), CLOCK)
    assert offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 11, 1: 11, 2: 11}


@pytest.mark.parametrize("killed_at", renames(range(1, RENAMES), KINDS))
def test_json_files_that_a_broker_wrote_which_could_not_start_are_replaced_unasked(
    tmp_path: Path, killed_at: int
) -> None:
    """5.5.0 does so at its end, although it has served nobody."""
    used_store(tmp_path)
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(killed_at))
    if paths(tmp_path).barrier.exists():
        for file in (tmp_path / "config").glob("*.json"):
            os.utime(file, ns=(time.time_ns() + 5 * 10**9,) * 2)
    rollback(paths(tmp_path), CLOCK)
    assert offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 9, 1: 9, 2: 9}


def test_an_interrupted_rollback_asks_once_a_broker_in_file_mode_has_written(tmp_path: Path) -> None:
    used_store(tmp_path)
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(0))
    file = tmp_path / "config" / "lmqConsumerOffset.json"
    os.utime(file, ns=(time.time_ns() + 5 * 10**9,) * 2)
    with pytest.raises(SafetyError, match="--offsets-of"):
        rollback(paths(tmp_path), CLOCK)


def test_a_topic_that_was_created_again_in_file_mode_does_not_matter_if_no_broker_has_opened_rocksdb(
    tmp_path: Path,
) -> None:
    store = converted_store(tmp_path)
    file = tmp_path / "consumequeue" / "Sources" / "0" / ("0" * 20)
    file.write_bytes(struct.pack(">qiq", store.end, 99, 0) + bytes(file.stat().st_size - 20))
    before = file.read_bytes()
    rollback(paths(tmp_path), CLOCK)
    assert file.read_bytes() == before
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def test_offsets_in_a_database_that_this_program_does_not_know_are_not_lost_unasked(tmp_path: Path) -> None:
    """A broker that was started with another configuration manager reads ours, at most, and writes its own."""
    converted_store(tmp_path)
    (tmp_path / "config" / "metadata").mkdir()
    (tmp_path / "config" / "metadata" / "CURRENT").write_text("MANIFEST-000004\n")
    before = files_below(tmp_path)
    for offsets_of in (None, OffsetsOf.ROCKSDB, OffsetsOf.BOTH):
        with pytest.raises(SafetyError, match="--offsets-of files"):
            rollback(paths(tmp_path), CLOCK, offsets_of=offsets_of)
        assert files_below(tmp_path) == before
    rollback(paths(tmp_path), CLOCK, offsets_of=OffsetsOf.FILES)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_plan_is_reported(tmp_path: Path, text: str) -> None:
    converted_store(tmp_path)
    note = tmp_path / "ledger-reaper" / "rollback" / "plan.json"
    note.parent.mkdir()
    note.write_text(text)
    with pytest.raises(SafetyError, match=r"plan\.json"):
        rollback(paths(tmp_path), CLOCK)


def test_a_current_that_is_no_text_is_reported(tmp_path: Path) -> None:
    """Whose it is can't be seen then, and the databases count as opened by a broker."""
    converted_store(tmp_path)
    (tmp_path / "config" / "topics" / "CURRENT").write_bytes(b"\xff\xfe")
    with pytest.raises(SafetyError, match="can't be opened"):
        rollback(paths(tmp_path), CLOCK)


def test_a_store_without_any_queue_is_rolled_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.units["T", 0] = []
    store.write()
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    backfill(tmp_path)
    rollback(paths(tmp_path), CLOCK)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def test_double_writing_alone_leaves_no_offsets_to_export(tmp_path: Path) -> None:
    converted_store(tmp_path)
    with opened(tmp_path / "consumequeue", ("offset",), compressed=True) as database:  # as stage 2 does
        database.put_all("offset", [])
    before = (tmp_path / "config" / "lmqConsumerOffset.json").read_bytes()
    assert rollback(paths(tmp_path), CLOCK).files == {}
    assert (tmp_path / "config" / "lmqConsumerOffset.json").read_bytes() == before


def test_without_rocksdb_there_is_nothing_to_roll_back(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(SafetyError, match="nothing to roll back"):
        rollback(paths(tmp_path), CLOCK)


def test_a_backfill_that_has_not_ended_is_not_rolled_back(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(KilledError):
        backfill(tmp_path, rename=dying_rename(2))
    with pytest.raises(SafetyError, match="has not ended"):
        rollback(paths(tmp_path), CLOCK)


def stored_since(root: Path, *messages: Message) -> None:
    """What a broker in RocksDB mode adds to the commitlog, where it is killed before RocksDB has it."""
    longer = small_store(root.parent / "longer")
    for message in messages:
        longer.put(message)
    longer.write()
    for file in (root.parent / "longer" / "commitlog").iterdir():
        (root / "commitlog" / file.name).write_bytes(file.read_bytes())


def test_a_store_of_which_a_file_broker_would_leave_out_a_message_is_not_rolled_back(tmp_path: Path) -> None:
    root = tmp_path / "s"
    converted_store(root)
    stored_since(root, Message("Orders", 0), Message("Orders", 1))
    before = files_below(root)
    with pytest.raises(SafetyError, match="Orders, queue 0"):
        rollback(paths(root), CLOCK)
    assert files_below(root) == before


def test_a_message_that_is_in_no_queue_may_stand_where_the_file_queues_end(tmp_path: Path) -> None:
    root = tmp_path / "s"
    converted_store(root)
    stored_since(root, Message("Orders", 1, sys_flag=12), Message("Orders", 0))
    rollback(paths(root), CLOCK)
    assert not (root / "consumequeue" / "CURRENT").exists()


def test_a_message_of_a_deleted_topic_may_stand_where_the_file_queues_end(tmp_path: Path) -> None:
    """No broker would ever index it again, so nobody could do anything about it."""
    root = tmp_path / "s"
    converted_store(root)
    stored_since(root, Message("Gone", 0))
    rollback(paths(root), CLOCK)
    assert not (root / "consumequeue" / "CURRENT").exists()


def test_a_message_of_a_deleted_topic_counts_where_a_light_queue_has_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    converted_store(root)
    stored_since(root, Message("Gone", 0, lmq=("%LMQ%left",)))
    with pytest.raises(SafetyError, match="Gone, queue 0"):
        rollback(paths(root), CLOCK)


def test_nothing_is_rolled_back_after_a_broker_was_killed(tmp_path: Path) -> None:
    converted_store(tmp_path)
    (tmp_path / "abort").touch()
    with pytest.raises(SafetyError, match="the broker was killed"):
        rollback(paths(tmp_path), CLOCK)
    assert (tmp_path / "consumequeue" / "CURRENT").exists()


@pytest.mark.parametrize("counts", list(OffsetsOf))
def test_json_files_that_a_broker_has_written_later_are_not_replaced_unasked(tmp_path: Path, counts: OffsetsOf) -> None:
    used_store(tmp_path)
    file = tmp_path / "config" / "lmqConsumerOffset.json"
    later = time.time_ns() + 5 * 10**9
    os.utime(file, ns=(later, later))
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match=r"consumerOffsets .*--offsets-of"):
        rollback(paths(tmp_path), CLOCK)
    assert files_below(tmp_path) == before
    rollback(paths(tmp_path), CLOCK, offsets_of=counts)
    is_of_rocksdb = offsets_of(tmp_path)["offsetTable"]["Orders@readers"] == {0: 9, 1: 9, 2: 9}
    assert is_of_rocksdb == (counts is not OffsetsOf.FILES)
    assert (file.read_bytes() == before["config/lmqConsumerOffset.json"]) == (counts is OffsetsOf.FILES)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def switched_without_a_backfill(root: Path) -> None:
    """With enableLmq=true such a broker has no offsets but those of groups that have connected since."""
    store = small_store(root)
    store.offsets["Orders@asleep"] = {0: 7, 1: 7}
    store.write()
    backfill(root)
    shutil.rmtree(root / "ledger-reaper")
    with opened(root / "config" / "consumerOffsets", ("kvDataVersion", "forbidden")) as database:
        for name, _value in list(database.rows("default")):
            database.delete("default", name)
        database.put_all("default", [(b"Orders@readers", b'{"offsetTable":{"0":1,"3":4}}')])


def test_offsets_that_only_the_file_has_are_not_dropped_unasked(tmp_path: Path) -> None:
    switched_without_a_backfill(tmp_path)
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match=r"6 offsets .* 1 are lower .*Orders@asleep, queue 0.*--offsets-of"):
        rollback(paths(tmp_path), CLOCK)
    assert files_below(tmp_path) == before


def test_offsets_of_both_are_those_of_rocksdb_and_what_only_the_file_has(tmp_path: Path) -> None:
    switched_without_a_backfill(tmp_path)
    rollback(paths(tmp_path), CLOCK, offsets_of=OffsetsOf.BOTH)
    assert offsets_of(tmp_path)["offsetTable"] == {
        "Orders@asleep": {0: 7, 1: 7},
        "Orders@readers": {0: 1, 1: 5, 2: 1, 3: 4},
        "%RETRY%readers@readers": {0: 0},
    }
    assert offsets_of(tmp_path)["lmqOffsetTable"] == {"%LMQ%left@%LMQ%readers": 2}
    topics = json_table(tmp_path / "config", "topics.json")
    assert topics is not None
    assert {"Orders", "Sources"} <= topics[0]["topicConfigTable"].keys()


def test_topics_and_groups_that_only_the_files_have_are_named_where_they_come_back(tmp_path: Path) -> None:
    """Nothing says whether a topic was deleted in RocksDB mode, or is one that only a broker in file mode has made."""
    used_store(tmp_path)
    for name, gone in (("topics", b"Orders"), ("subscriptionGroups", b"readers")):
        with opened(tmp_path / "config" / name, ("kvDataVersion", "forbidden")) as database:
            assert database.get("default", gone) is not None
            database.delete("default", gone)
    with pytest.raises(KilledError):
        rollback(paths(tmp_path), CLOCK, dying_rename(1), OffsetsOf.BOTH)
    made = rollback(paths(tmp_path), CLOCK)
    assert made.only_in_files == {"topics.json": ["Orders"], "subscriptionGroup.json": ["readers"]}
    assert made.left_out == {}


def test_offsets_of_a_topic_that_was_deleted_in_rocksdb_are_not_asked_for(tmp_path: Path) -> None:
    converted_store(tmp_path)
    with opened(tmp_path / "config" / "consumerOffsets", ("kvDataVersion", "forbidden")) as database:
        database.delete("default", b"Orders@readers")
    with opened(tmp_path / "config" / "topics", ("kvDataVersion", "forbidden")) as database:
        database.delete("default", b"Orders")
    rollback(paths(tmp_path), CLOCK)
    assert "Orders@readers" not in offsets_of(tmp_path)["offsetTable"]


@pytest.mark.parametrize("each", [KINDS, pytest.param(range(RENAMES), marks=pytest.mark.long)], ids=["kinds", "all"])
def test_while_a_rollback_has_not_ended_no_broker_can_load_the_file_queues(
    tmp_path: Path, each: Collection[int]
) -> None:
    """A broker in file mode does not start with a queue file of another size (seen with 5.3.3 and 5.5.0)."""
    root = tmp_path / "s"
    converted_store(root)
    worked_with(root)
    before = files_below(root)
    for killed_at in each:
        copy = tmp_path / str(killed_at)
        shutil.copytree(root, copy, copy_function=shutil.copy2)
        with pytest.raises(KilledError):
            rollback(paths(copy), CLOCK, dying_rename(killed_at))
        file = paths(copy).barrier / "0" / ("0" * 20)
        is_whole = not (paths(copy).rocksdb / "CURRENT").exists() and not (copy / "config" / "topics").exists()
        is_as_before = files_below(copy) == before
        assert file.exists() or is_as_before or is_whole
        assert not file.exists() or file.stat().st_size == 1
        if file.exists():
            assert paths(copy).barrier.name in unfinished_rollback(paths(copy))
            assert Code.ROLLBACK in {refusal.code for refusal in plan_of(paths(copy)).refusals}
    rollback(paths(root), CLOCK, dying_rename(RENAMES))
    assert not paths(root).barrier.exists()


def test_a_message_of_a_topic_that_was_deleted_in_rocksdb_mode_may_stand_where_the_file_queues_end(
    tmp_path: Path,
) -> None:
    """The old topics.json still has the topic, and the new one will not."""
    root = tmp_path / "s"
    converted_store(root)
    with opened(root / "config" / "topics", ("kvDataVersion", "forbidden")) as database:
        database.delete("default", b"Orders")
    stored_since(root, Message("Orders", 0))
    rollback(paths(root), CLOCK)
    assert not (root / "consumequeue" / "CURRENT").exists()


def test_progress_is_shown_up_to_the_end(tmp_path: Path) -> None:
    converted_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Orders")
    said = list[str]()
    rollback(paths(tmp_path), CLOCK, say=said.append)
    assert said == ["100 % of 3 file queues"]
