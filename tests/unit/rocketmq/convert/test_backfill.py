import os
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.convert import backfill as backfill_module
from streaming.rocketmq.convert import job as job_module
from streaming.rocketmq.convert.backfill import Backfill
from streaming.rocketmq.convert.join import join
from streaming.rocketmq.inspect.check import Check
from streaming.rocketmq.store.log_files import CommitLog, LogFile
from streaming.rocketmq.workspace.move import take_back
from streaming.rocketmq.workspace.staging import MOVED, file_name, sealed_of
from tests.rocketmq_store import V1, V2, Message, Store, small_store
from tests.unit.rocketmq.converted import CLOCK, backfill, check, context, converted_store, files_below, nothing, paths
from udfs.rocketmq import rows
from udfs.rocketmq.compare import FindingKind
from udfs.rocketmq.refusals import LOSSES, Code


def database_of(root: Path) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    with opened(root / "consumequeue", read_only=True) as database:
        return dict(database.rows("default")), dict(database.rows("offset"))


def expected_of(store: Store) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Both column families, packed here from what the store was made of."""
    units, bounds = {}, {}
    for (topic, queue_id), all_units in store.units.items():
        name = topic.encode()
        head = struct.pack(">i", len(name)) + b"\1" + name + b"\1"
        for offset, phy, size, tags, time in store.live(topic, queue_id):
            key = head + struct.pack(">i", queue_id) + b"\1" + struct.pack(">q", offset)
            units[key] = struct.pack(">qiqq", phy, size, tags, time)
        last = all_units[-1]
        bounds[head + b"max\1" + struct.pack(">i", queue_id)] = struct.pack(">qq", last[1], last[0])
        for first in store.live(topic, queue_id)[:1]:
            bounds[head + b"min\1" + struct.pack(">i", queue_id)] = struct.pack(">qq", first[1], first[0])
    bounds[rows.checkpoint_key()] = struct.pack(">q", last_of(store))
    return units, bounds


def last_of(store: Store) -> int:
    """Where the last message begins that is in a queue."""
    return max((unit[1] for units in store.units.values() for unit in units), default=store.end)


@pytest.mark.parametrize("expired", [0, 2])
def test_every_unit_becomes_a_row_and_every_queue_its_bounds(tmp_path: Path, expired: int) -> None:
    store = small_store(tmp_path).write(expired_files=expired)
    result = backfill(tmp_path)
    assert database_of(tmp_path) == expected_of(store)
    assert result.units == sum(len(store.live(*queue)) for queue in store.units)
    assert check(tmp_path).findings == ()


def test_what_was_there_stays_as_it_was(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)
    backfill(tmp_path)
    after = files_below(tmp_path)
    assert {name: after[name] for name in before} == before


def test_a_queue_whose_messages_have_all_expired_keeps_its_next_offset(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for _number in range(5):
        store.put(Message("Old"))
    while store.end < 3 * store.log_file_bytes:
        store.put(Message("New"))
    store.write(expired_files=2)
    backfill(tmp_path)
    _units, bounds = database_of(tmp_path)
    assert rows.decode_bound(bounds[rows.max_key(b"Old", 0)])[1] == 4
    assert rows.min_key(b"Old", 0) not in bounds
    assert check(tmp_path).findings == ()


MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["A", "B", "长", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"]),
    queue_id=st.integers(0, 2),
    tag=st.sampled_from(["", "a", "订单", "😀"]),
    body=st.binary(max_size=200),
    magic=st.sampled_from([V1, V2]),
    sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12, 0x10, 0x30]),
    level=st.sampled_from([0, 1, 18]),
    lmq=st.sampled_from([(), (), ("%LMQ%x",), ("%LMQ%x", "%LMQ%y")]),
).map(lambda each: each if each.topic in "AB长" else Message(each.topic, each.queue_id, each.tag, level=each.level))
BEGINS = st.dictionaries(st.tuples(st.sampled_from(["A", "B", "%LMQ%x"]), st.just(0)), st.integers(1, 20))


@settings(max_examples=12)
@given(
    st.lists(MESSAGES, min_size=1, max_size=40),
    BEGINS,
    st.integers(0, 2),
    st.integers(1, 9),
    st.sampled_from([0, 1024 * 7]),
    st.booleans(),
    st.sampled_from([0, 3, 100]),
)
def test_any_store_that_the_formats_allow_is_converted_and_found_whole(  # noqa: PLR0917
    tmp_path_factory: pytest.TempPathFactory,
    messages: list[Message],
    begins: dict[tuple[str, int], int],
    expired: int,
    per_file: int,
    log_start: int,
    unused: bool,
    least_rows_of_a_run: int,
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = Store(root, log_file_bytes=1024, queue_file_units=5, begins=begins, is_lmq=True, log_start=log_start)
    for message in [Message("A"), *messages]:
        store.put(message)
    store.units = {queue: units for queue, units in store.units.items() if units}
    files = -(-len(store.log) // 1024)
    store.write(expired_files=min(expired, files - 1), unused_file=unused)
    with mock.patch.object(job_module, "_LEAST_ROWS_OF_A_RUN", least_rows_of_a_run):  # of both writers
        backfill(root, rows_per_file=per_file)
    assert database_of(root) == expected_of(store)
    assert check(root).findings == ()


class KilledError(Exception):
    """Stands for a kill -9."""


CHANGES = ("nothing", "restart", "the store")
RENAMES = 20  # of a backfill of `small_store`, that of CURRENT is the last one
KINDS = (0, 3, 14, 18, 19)  # the first of the configuration, of the tables, of the log, one of RocksDB's notes, CURRENT


def renames(numbers: Iterable[int], kinds: Collection[int]) -> list[Any]:
    """Return these renames as parameters; `make test` uses only those of `kinds`, one of each kind of file."""
    return [number if number in kinds else pytest.param(number, marks=pytest.mark.long) for number in numbers]


def dying_rename(after: int) -> Callable[[Path, Path], None]:
    done = 0

    def rename(source: Path, target: Path) -> None:
        nonlocal done
        if done == after:
            raise KilledError
        done += 1
        source.replace(target)

    return rename


def test_a_conversion_of_the_other_offsets_is_not_resumed(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    config = tmp_path / "config"
    (config / "consumerOffset.json").write_text(
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1},"offsetTable":{"Orders@readers":{0:0}}}'
    )
    with pytest.raises(KilledError):
        Backfill(paths=paths(tmp_path, lmq=False), clock=CLOCK, say=nothing, rename=dying_rename(9)).run(context())
    Backfill(paths=paths(tmp_path, lmq=True), clock=CLOCK, say=nothing).run(context())
    with opened(config / "consumerOffsets", read_only=True) as database:
        assert database.get("default", b"Orders@readers") == b'{"offsetTable":{0:3,1:5,2:1}}'


def test_an_upgrade_has_this_many_renames(tmp_path: Path) -> None:
    """The tests that kill one at each of them have to know how many there are."""
    small_store(tmp_path).write()
    targets = list[str]()

    def rename(source: Path, target: Path) -> None:
        targets.append(target.name)
        source.replace(target)

    backfill(tmp_path, rename=rename)
    assert (len(targets), targets[-1]) == (RENAMES, "CURRENT")


@pytest.mark.parametrize(
    ("killed_at", "change"),
    [
        pytest.param(number, CHANGES[number % 3], marks=() if number in KINDS else pytest.mark.long)
        for number in range(RENAMES - 1)
    ]
    + [(RENAMES - 1, change) for change in CHANGES],
)
def test_a_run_that_is_cut_short_at_any_rename_ends_the_same_when_repeated(
    tmp_path: Path, killed_at: int, change: str
) -> None:
    store = small_store(tmp_path).write()
    with pytest.raises(KilledError):
        backfill(tmp_path, rename=dying_rename(killed_at))
    # before CURRENT is there, RocksDB takes the folder for none of its own
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()
    if change == "the store":
        store.counter += 1
        store.offsets["Orders@readers"] = {0: 4}
        store.write_config()
    backfill(tmp_path, restart=change == "restart")
    assert database_of(tmp_path) == expected_of(store)
    assert check(tmp_path).findings == ()
    assert not (tmp_path / "ledger-reaper" / "staging").exists()


def test_a_store_that_changes_while_it_is_read_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = small_store(tmp_path).write()

    def joined(*words: Any) -> None:
        join(*words)
        store.offsets["Orders@readers"] = {0: 4}
        store.write_config()

    monkeypatch.setattr(backfill_module, "join", joined)
    with pytest.raises(SafetyError, match="has changed while it was read"):
        backfill(tmp_path)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


@pytest.mark.parametrize("lost", [0, -1], ids=["first", "last"])
def test_a_database_without_its_first_or_last_row_is_not_moved_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)

    def joined(folder: Path, parts: list[Path], *words: Any) -> None:
        assert len(parts) > 2
        join(folder, [part for part in parts if part != parts[lost]], *words)

    monkeypatch.setattr(backfill_module, "join", joined)
    with pytest.raises(SafetyError, match="first or last row of the database is missing"):
        backfill(tmp_path)
    assert files_below(tmp_path) == before
    assert sealed_of(paths(tmp_path)) is None


def _cut_short(store: Path) -> Path:
    """Kill a run over a small store when it has all parts; returns where they are."""
    small_store(store).write()
    with pytest.raises(KilledError):
        backfill(store, rename=dying_rename(0))
    return store / "ledger-reaper" / "staging"


def test_finished_parts_are_not_created_again(tmp_path: Path) -> None:
    staging = _cut_short(tmp_path)
    (staging / "sealed.json").unlink()
    (staging / "parts" / "part-00000001.sst").unlink()
    result = backfill(tmp_path)
    assert (result.resumed, result.files) == (True, 1)
    assert check(tmp_path).findings == ()


def damaged(file: Path, position: int, data: bytes) -> None:
    raw = bytearray(file.read_bytes())
    raw[position : position + len(data)] = data
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("name", "position", "data", "said"),
    [
        ("consumequeue/Orders/0/" + "0" * 20, 20, bytes(20), "byte 20: the unit was not written"),
        ("consumequeue/Orders/0/" + f"{160:020d}", 0, bytes(20), "no unit was written here, but a later unit"),
        ("consumequeue/Orders/0/" + "0" * 20, 28, struct.pack(">i", 99), "byte 20: the unit is that of queue offset 1"),
        ("consumequeue/Orders/0/" + "0" * 20, 20, struct.pack(">q", 2**40), "byte 20: the unit points after the end"),
        ("consumequeue/Orders/0/" + "0" * 20, 20, struct.pack(">q", 5), "byte 5: wrong magic"),
        ("consumequeue/Orders/0/" + "0" * 20, 32, struct.pack(">q", -(2**40)), "ConsumeQueueExt"),
        ("commitlog/" + "0" * 20, 4, b"\0\0\0\1", "byte 0: wrong magic"),
        ("commitlog/" + "0" * 20, 28, struct.pack(">q", 7), "names another position"),
        ("commitlog/" + "0" * 20, 20, struct.pack(">q", 7), "is another message"),
        ("commitlog/" + "0" * 20, 12, struct.pack(">i", 9), "is another message"),
    ],
    ids=[
        "hole",
        "hole at the end",
        "size",
        "behind the end",
        "inside a record",
        "ext",
        "magic",
        "moved",
        "queue offset",
        "queue id",
    ],
)
def test_a_damaged_store_is_refused_by_file_and_byte_and_not_touched(
    tmp_path: Path, name: str, position: int, data: bytes, said: str
) -> None:
    small_store(tmp_path).write()
    damaged(tmp_path / name, position, data)
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match=said):
        backfill(tmp_path)
    assert files_below(tmp_path) == before


def test_a_store_whose_broker_did_not_stop_cleanly_is_refused(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "abort").write_bytes(b"")
    with pytest.raises(SafetyError, match="ABORT"):
        backfill(tmp_path)


def test_a_store_whose_queues_are_gone_is_refused(tmp_path: Path) -> None:
    """A broker in file mode makes them anew; one in RocksDB mode would never index what is there."""
    small_store(tmp_path).write()
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "consumequeue").mkdir()
    with pytest.raises(SafetyError, match="NO_QUEUES"):
        backfill(tmp_path)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def test_a_log_that_has_only_the_first_halves_of_transactions_needs_no_queues(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(Message("A", sys_flag=4))
    store.units.clear()
    store.write()
    backfill(tmp_path)
    assert (tmp_path / "consumequeue" / "CURRENT").exists()


def test_a_second_conversion_needs_an_option(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    with pytest.raises(SafetyError, match="ROCKSDB_THERE"):
        backfill(tmp_path)
    first = (tmp_path / "consumequeue" / "CURRENT").stat().st_ino
    backfill(tmp_path, replace=True)
    (kept,) = (tmp_path / "ledger-reaper").glob("kept-*")
    assert (kept / "consumequeue" / "CURRENT").stat().st_ino == first
    assert database_of(tmp_path) == expected_of(store)


def test_databases_that_a_broker_has_worked_with_are_never_replaced(tmp_path: Path) -> None:
    converted_store(tmp_path)
    with opened(tmp_path / "config" / "consumerOffsets", ("kvDataVersion", "forbidden")) as database:
        database.put_all("default", [(b"Orders@readers", b'{"offsetTable":{0:30}}')])
    with pytest.raises(SafetyError, match="DATABASES_THERE"):
        backfill(tmp_path, replace=True)


def test_no_broker_can_start_meanwhile(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    seen = list[int]()

    def say(text: str) -> None:
        if text == "moving in":
            seen.append(os.spawnvp(os.P_WAIT, "python3", ["python3", "-c", TRY_LOCK, str(tmp_path / "lock")]))

    Backfill(paths=paths(tmp_path), clock=CLOCK, say=say).run(context())
    assert seen == [7]


TRY_LOCK = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except BlockingIOError:
    sys.exit(7)
"""


def test_it_records_what_it_has_moved_in(tmp_path: Path) -> None:
    converted_store(tmp_path)
    assert (tmp_path / "ledger-reaper" / MOVED).exists()


def test_checkpoint_is_the_start_of_the_last_message_of_a_queue(tmp_path: Path) -> None:
    """A broker indexes what begins behind it. It must find what a broker has written in file mode since."""
    store = Store(tmp_path)
    store.put(Message())
    last = store.put(Message())
    store.put(Message(sys_flag=4))  # no queue has it, and the log goes on behind every unit
    store.write()
    backfill(tmp_path)
    _units, bounds = database_of(tmp_path)
    assert rows.decode_checkpoint(bounds[rows.checkpoint_key()]) == last


def test_messages_that_a_stopped_broker_has_not_indexed_are_left_to_its_next_start(tmp_path: Path) -> None:
    """A broker waits some seconds only, at its end, until its queues have all that its log has."""
    store = small_store(tmp_path)
    known = {queue: list(units) for queue, units in store.units.items()}
    last = last_of(store)
    for number in range(9):
        store.put(Message("Orders", number % 3))
    store.units = defaultdict(list, known)
    store.write()
    backfill(tmp_path)
    _units, bounds = database_of(tmp_path)
    assert rows.decode_checkpoint(bounds[rows.checkpoint_key()]) == last
    assert {each.kind for each in check(tmp_path).findings} == {FindingKind.NO_QUEUE}


@pytest.mark.parametrize(("parts", "tasks"), [(1, 1), (3, 3), (4, 4), (30, 4), (33, 5), (334, 42), (99_999, 2000)])
def test_every_core_has_tasks_and_no_task_many_parts(parts: int, tasks: int) -> None:
    assert job_module.tasks_of(parts, cores=2) == tasks


def test_a_file_has_the_name_of_its_part() -> None:
    assert file_name(12) == "part-00000012.sst"


def without_leaving(root: Path) -> None:
    """The state after a kill between the last rename and the removal of the staging folder."""
    sealed = root / "ledger-reaper" / "staging" / "sealed.json"
    sealed.parent.mkdir(parents=True)
    sealed.write_bytes((root / "ledger-reaper" / MOVED).read_bytes())


def test_a_run_that_is_cut_short_after_its_last_rename_is_done(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    without_leaving(tmp_path)
    with pytest.raises(SafetyError, match="ROCKSDB_THERE"):
        backfill(tmp_path)
    assert not (tmp_path / "ledger-reaper" / "staging").exists()
    assert database_of(tmp_path) == expected_of(store)


def test_nothing_is_taken_back_from_a_database_that_a_broker_has_opened(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.write()
    backfill(tmp_path)  # converted here, since a copy's files have other inodes, and are never taken back
    without_leaving(tmp_path)
    with opened(tmp_path / "consumequeue", ("offset",), compressed=True) as database:
        database.put_all("offset", [])
    for name in ("topics", "subscriptionGroups", "consumerOffsets"):
        with opened(tmp_path / "config" / name, ("kvDataVersion", "forbidden")):
            pass
    (tmp_path / "ledger-reaper" / MOVED).unlink()
    where, sealed = paths(tmp_path), sealed_of(paths(tmp_path))
    assert sealed is not None
    take_back(where, sealed)
    assert database_of(tmp_path) == expected_of(store)
    assert (tmp_path / "config" / "topics" / "CURRENT").exists()


def test_a_file_that_is_gone_meanwhile_keeps_current_out(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    with pytest.raises(KilledError):
        backfill(tmp_path, rename=dying_rename(6))
    next(path for path in (tmp_path / "consumequeue").iterdir() if path.is_file()).unlink()
    with pytest.raises(SafetyError, match="--restart"):
        backfill(tmp_path)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()
    backfill(tmp_path, restart=True)
    assert check(tmp_path).findings == ()


def stretches(starts: list[int], *phy: int) -> list[tuple[int, int, int]]:
    return list(job_module.by_section(np.array(phy, dtype=np.int64), starts))


def test_messages_are_grouped_by_the_section_of_the_log_in_which_they_start() -> None:
    assert stretches([100, 200, 300, 400], 100, 199, 200, 400, 999) == [(0, 0, 2), (1, 2, 3), (3, 3, 5)]
    assert stretches([100], 100, 500) == [(0, 0, 2)]
    assert stretches([100]) == []


def test_a_part_gets_its_name_once_the_disk_has_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run takes a file of that name for whole, also behind a machine that lost its power."""
    stored = dict[int, str]()
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        stored.setdefault(os.fstat(handle).st_ino, Path(f"/proc/self/fd/{handle}").readlink().name)

    monkeypatch.setattr(os, "fsync", noted)
    parts = list((_cut_short(tmp_path) / "parts").glob("part-*.sst"))
    assert len(parts) > 2
    assert all(stored.get(path.stat().st_ino, "").startswith(".") for path in parts)


def test_arrays_of_a_failed_run_are_deleted_by_the_next(tmp_path: Path) -> None:
    """A task that outlives its job can still write there when the job has removed the folder."""
    staging = _cut_short(tmp_path)
    (staging / "sealed.json").unlink()
    (staging / "parts" / "part-00000001.sst").unlink()
    (staging / "parts" / ".between").mkdir()
    (staging / "parts" / ".between" / "x").write_bytes(b"1")
    assert backfill(tmp_path).resumed
    assert not staging.exists()


def test_a_part_without_headers_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that got lost on its way would leave units without their store times."""
    small_store(tmp_path).write()
    whole = job_module.Job.with_headers
    monkeypatch.setattr(job_module.Job, "with_headers", lambda job, blocks: list(whole(job, blocks))[1:])
    with pytest.raises(RuntimeError, match="headers"):
        backfill(tmp_path)
    assert not (tmp_path / "consumequeue" / "CURRENT").exists()


def test_four_bytes_reach_to_the_end_of_every_stretch() -> None:
    """No broker has files of 8 GiB; one that had would get other messages' store times."""
    log = CommitLog(tuple(LogFile(str(number), number << 33, 1 << 33) for number in range(20)), 20 << 33)
    starts = [start for start, _file in job_module.sections_of(log)]
    assert max(np.diff([*starts, log.end])) <= 1 << 32


@pytest.mark.parametrize(
    ("files", "end", "starts"),
    [
        (1, 160, range(0, 160, 10)),
        (1, 95, range(0, 95, 10)),
        (3, 330, [*range(0, 160, 27), *range(160, 320, 27), 320]),
        (16, 16 * 160, range(0, 16 * 160, 160)),
        (0, 0, []),
    ],
    ids=["one file", "one, not full", "three", "as many as there shall be", "none"],
)
def test_few_files_of_the_log_are_several_stretches_each(files: int, end: int, starts: Iterable[int]) -> None:
    log = CommitLog(tuple(LogFile(str(number), number * 160, 160) for number in range(files)), end)
    made = job_module.sections_of(log)
    assert [start for start, _file in made] == list(starts)
    assert all(file.start <= start < file.start + file.size for start, file in made)


@given(st.lists(st.integers(0, 2**40) | st.integers(0, 2**62), max_size=20))
def test_packed_store_times_are_the_same_again(times: list[int]) -> None:
    packed = job_module.packed_times(np.array(times, dtype=np.int64))
    assert job_module.unpacked_times(packed, len(times)).tolist() == times


@pytest.mark.parametrize(
    ("times", "width"),
    [([5, 5 + 2**32 - 1], 4), ([5, 5 + 2**32], 8), ([-7, 2**31], 4)],
    ids=["49 days", "a millisecond more", "before 1970"],
)
def test_store_times_that_lie_near_each_other_are_packed_into_four_bytes(times: list[int], width: int) -> None:
    packed = job_module.packed_times(np.array(times, dtype=np.int64))
    assert len(packed.packed) == width * len(times)
    assert job_module.unpacked_times(packed, len(times)).tolist() == times


def test_offsets_that_the_broker_does_not_read_are_dropped_only_on_request(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = files_below(tmp_path)
    without = paths(tmp_path, lmq=False)
    with pytest.raises(
        SafetyError, match=r"UNREAD_OFFSETS: lmqConsumerOffset\.json has 3 .*--accept-loss UNREAD_OFFSETS"
    ):
        Backfill(paths=without, clock=CLOCK, say=nothing).run(context())
    assert files_below(tmp_path) == before
    with pytest.raises(SafetyError, match="UNREAD_OFFSETS: "):
        Backfill(paths=without, clock=CLOCK, say=nothing, accept_loss=(Code.UNKNOWN_TOPICS, Code.UNINDEXED)).run(
            context()
        )
    told = list[str]()
    result = Backfill(paths=without, clock=CLOCK, say=told.append, accept_loss=(Code.UNREAD_OFFSETS,)).run(context())
    (loss,) = result.losses
    assert loss.code == Code.UNREAD_OFFSETS
    assert f"warning: UNREAD_OFFSETS is accepted: {loss.text}" in told
    assert "lmqConsumerOffset.json has 3" in loss.text
    (finding,) = Check(without, CLOCK, nothing).run(context()).findings
    assert (finding.kind, finding.count) == (FindingKind.CONFIG, 3)
    assert "offsets of lmqConsumerOffset.json, the only file of offsets, are missing from" in finding.text


def test_a_copied_queue_of_a_topic_that_nothing_knows_is_refused_and_found_if_it_is_accepted(tmp_path: Path) -> None:
    """A note said that the topic was deleted, and that the commitlog had messages of it, which it had not."""
    small_store(tmp_path).write()
    shutil.copytree(tmp_path / "consumequeue" / "Orders", tmp_path / "consumequeue" / "Orders2")
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match=r"UNKNOWN_TOPICS: .*: Orders2\. A broker"):
        backfill(tmp_path)
    assert files_below(tmp_path) == before
    assert [each.code for each in backfill(tmp_path, accept_loss=(Code.UNKNOWN_TOPICS,)).losses] == [
        Code.UNKNOWN_TOPICS
    ]
    result = check(tmp_path)
    assert {(each.topic, each.kind) for each in result.findings} >= {
        (b"Orders2", FindingKind.NO_MESSAGE),
        (b"Orders2", FindingKind.FILE_NO_MESSAGE),
    }
    assert not any("deleted, perhaps" in note for note in result.notes)
    assert any("Orders2" in note and "within the hour" in note for note in result.notes)


@pytest.mark.parametrize("lost", ["queue", "first file", "last file"])
def test_a_queue_without_messages_of_the_log_is_refused(tmp_path: Path, lost: str) -> None:
    store = small_store(tmp_path)
    store.put(Message("Sources"))  # a later message that is indexed
    store.write()
    folder = tmp_path / "consumequeue" / "Orders" / "0"
    first, *_, last = sorted(folder.iterdir())
    if lost == "queue":
        shutil.rmtree(folder)
    else:
        (first if lost == "first file" else last).unlink()
    units = len(store.units["Orders", 0])
    messages, offset = {"queue": (units, 0), "first file": (8, 0), "last file": (units % 8, units // 8 * 8)}[lost]
    before = files_below(tmp_path)
    with pytest.raises(
        SafetyError, match=f"UNINDEXED: .*Orders queue 0: {messages} messages, from queue offset {offset},"
    ):
        backfill(tmp_path)
    assert files_below(tmp_path) == before
    with pytest.raises(SafetyError, match="UNINDEXED: "):
        backfill(tmp_path, accept_loss=(Code.UNREAD_OFFSETS, Code.UNKNOWN_TOPICS))
    assert files_below(tmp_path) == before
    told = list[str]()
    (loss,) = backfill(tmp_path, say=told.append, accept_loss=(Code.UNINDEXED,)).losses
    assert loss.code == Code.UNINDEXED
    assert f"warning: UNINDEXED is accepted: {loss.text}" in told
    assert not check(tmp_path).is_sound


def test_nothing_is_lost_of_a_healthy_store_whatever_is_accepted(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    assert backfill(tmp_path, accept_loss=LOSSES).losses == ()


def test_notes_of_an_interrupted_run_about_the_log_count_for_the_next(tmp_path: Path) -> None:
    staging = _cut_short(tmp_path)
    (staging / "sealed.json").unlink()
    (staging / "parts" / "part-00000001.sst").unlink()
    assert backfill(tmp_path).resumed
    assert check(tmp_path).findings == ()


def test_parts_without_notes_about_the_log_are_created_again(tmp_path: Path) -> None:
    """As an earlier version left them: what they cover is not known."""
    staging = _cut_short(tmp_path)
    (staging / "sealed.json").unlink()
    shutil.rmtree(staging / "covered")
    assert not backfill(tmp_path).resumed


@pytest.mark.parametrize("again", [0, 4])
def test_messages_of_deleted_topics_and_of_earlier_incarnations_are_not_missing(tmp_path: Path, again: int) -> None:
    store = small_store(tmp_path)
    for _number in range(9):
        store.put(Message("Again"))
    del store.units["Again", 0]
    for _number in range(again):
        store.put(Message("Again"))
    store.put(Message("Orders", 0))
    store.write()
    backfill(tmp_path)
    assert check(tmp_path).findings == ()
