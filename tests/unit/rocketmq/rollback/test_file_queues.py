import errno
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.inspect.plan import plan_of
from streaming.rocketmq.rollback import file_queues
from streaming.rocketmq.rollback.file_queues import complete
from streaming.rocketmq.rollback.run import rollback
from streaming.rocketmq.store.inventory import inventory_of
from streaming.rocketmq.store.store_paths import store_paths
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.convert.test_backfill import KilledError, dying_rename
from tests.unit.rocketmq.converted import CLOCK, backfill, check, converted_store, files_below, paths, replace_rows
from udfs.rocketmq import rows


def kept(root: Path) -> Path:
    return paths(root).own / "kept-now"


def gone_on(root: Path, store: Store) -> None:
    """What a broker in RocksDB mode does: messages go to the log and to RocksDB, also those of a new topic."""
    for number in range(20):
        store.put(Message("Orders", number % 3, tag="later", lmq=("%LMQ%left",)))
        store.put(Message("Later", 0))
    store.begins["Later", 0] = 3
    store.units["Later", 0] = [(unit[0] + 3, *unit[1:]) for unit in store.units["Later", 0]]
    whole = bytes(store.log) + bytes(-len(store.log) % store.log_file_bytes)
    for start in range(0, len(whole), store.log_file_bytes):
        (root / "commitlog" / f"{start:020d}").write_bytes(whole[start : start + store.log_file_bytes])
    with opened(root / "consumequeue", ("offset",), compressed=True) as database:
        for (topic, queue_id), units in store.units.items():
            database.put_all(
                "default",
                [(rows.unit_key(topic.encode(), queue_id, unit[0]), struct.pack(">qiqq", *unit[1:])) for unit in units],
            )
        database.flush()


def queues_of(root: Path) -> dict[tuple[str, int], list[tuple[int, int, int, int]]]:
    found = {}
    for queue in inventory_of(paths(root)).queues:
        units = queue.files.read(queue.range.first, queue.range.end)
        offsets = range(queue.range.first, queue.range.end)
        values = zip(offsets, units.phy.tolist(), units.size.tolist(), units.tags.tolist(), strict=True)
        found[queue.range.topic.decode(), queue.range.queue_id] = list(values)
    return found


def test_after_a_rollback_the_file_queues_have_every_message(tmp_path: Path) -> None:
    """A broker would leave out the one that begins exactly where the file queues ended."""
    store = converted_store(tmp_path)
    gone_on(tmp_path, store)
    rollback(paths(tmp_path), CLOCK)
    assert queues_of(tmp_path) == {name: [unit[:4] for unit in units] for name, units in store.units.items()}


def test_a_second_call_finds_nothing_to_do(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    assert complete(paths(tmp_path), kept(tmp_path)) == 0
    gone_on(tmp_path, store)
    assert complete(paths(tmp_path), kept(tmp_path)) == 60
    assert complete(paths(tmp_path), kept(tmp_path)) == 0


def grown(tmp_path: Path) -> tuple[Path, dict[tuple[str, int], list[tuple[int, int, int, int]]]]:
    """A store whose file queues all lack units, and what they have to have in the end."""
    root = tmp_path / "grown"
    store = converted_store(root)
    gone_on(root, store)
    replace_rows(
        root, "Sources", store.units["Sources", 0], [(offset, store.end + offset, 99, 0, 0) for offset in range(3)]
    )
    expected = {name: [unit[:4] for unit in units] for name, units in store.units.items()}
    return root, expected | {("Sources", 0): [(offset, store.end + offset, 99, 0) for offset in range(3)]}


def test_a_disk_that_is_full_leaves_all_file_queues_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker in file mode goes on behind the largest end of all, so no queue may be ahead of the others."""
    root, expected = grown(tmp_path)
    before, written = file_queues_of(root), list[Path]()
    whole, room = file_queues._write_file, [10**6]

    def write(folder: Path, *words: Any) -> None:
        if len(written) == room[0]:
            raise OSError(errno.ENOSPC, "no space is left")
        written.append(folder)
        whole(folder, *words)

    monkeypatch.setattr(file_queues, "_write_file", write)
    shutil.copytree(root, tmp_path / "counted")
    complete(paths(tmp_path / "counted"), kept(tmp_path / "counted"))
    writes = len(written)
    assert writes > 10
    for number in range(writes):
        written.clear()
        room[0] = number
        with pytest.raises(OSError, match="no space is left"):
            complete(paths(root), kept(root))
        assert file_queues_of(root) == before
    room[0] = 10**6
    complete(paths(root), kept(root))
    assert queues_of(root) == expected


def test_a_rollback_that_is_cut_short_leaves_no_hole_in_any_file_queue(tmp_path: Path) -> None:
    root, expected = grown(tmp_path)
    old, killed_at, is_done = queues_of(root), 0, False
    while not is_done:
        copy = tmp_path / str(killed_at)
        shutil.copytree(root, copy)
        try:
            complete(paths(copy), kept(copy), dying_rename(killed_at))
            is_done = True
        except KilledError:
            for name, units in queues_of(copy).items():
                assert units in (old.get(name, []), expected[name]) or units == expected[name][: len(units)]
            complete(paths(copy), kept(copy))
        assert queues_of(copy) == expected
        assert not (paths(copy).own / "rollback" / "file-queues").exists()
        killed_at += 1
    assert killed_at > 10


def test_plan_and_check_report_an_unfinished_rollback(tmp_path: Path) -> None:
    root, _expected = grown(tmp_path)
    with pytest.raises(KilledError):
        rollback(paths(root), CLOCK, dying_rename(5))
    assert any("has not ended" in note for note in plan_of(paths(root)).notes)
    assert any("has not ended" in note for note in check(root).notes)
    (root / "consumequeue" / "CURRENT").unlink()
    with pytest.raises(SafetyError, match="has not ended"):
        check(root)


def with_a_row(root: Path, topic: bytes) -> None:
    with opened(root / "consumequeue", ("offset",), compressed=True) as database:
        database.put_all("default", [(rows.unit_key(topic, 0, 0), struct.pack(">qiqq", 0, 120, 0, 1))])
        database.put_all("offset", [(rows.max_key(topic, 0), rows.bound_value(0, 0))])


@pytest.mark.parametrize("topic", ["%LMQ%a/b", "%LMQ%../../commitlog/x"])
def test_a_light_queue_that_no_broker_in_file_mode_creates_gets_no_files(tmp_path: Path, topic: str) -> None:
    """The name comes from a message, and a broker in file mode leaves it out."""
    converted_store(tmp_path)
    with_a_row(tmp_path, topic.encode())
    (tmp_path / "x").mkdir()
    before = file_queues_of(tmp_path)
    made = rollback(paths(tmp_path), CLOCK)
    assert made.left_out == {topic: 1}
    assert file_queues_of(tmp_path) == before
    assert not list((tmp_path / "x").iterdir())
    assert inventory_of(paths(tmp_path)).queues


@pytest.mark.parametrize("topic", [b"%LMQ%" + b"y" * 251, b"%LMQ%\xff", b"%LMQ%\0", b"..", b".", b"a/b"])
def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_written(tmp_path: Path, topic: bytes) -> None:
    store = converted_store(tmp_path)
    gone_on(tmp_path, store)
    with_a_row(tmp_path, topic)
    before = files_below(tmp_path)
    with pytest.raises(SafetyError, match="can't have a file queue"):
        rollback(paths(tmp_path), CLOCK)
    assert files_below(tmp_path) == before
    assert not any("has not ended" in note for note in plan_of(paths(tmp_path)).notes)


def file_queues_of(root: Path) -> dict[str, bytes]:
    return {
        name: data
        for name, data in files_below(root).items()
        if name.startswith("consumequeue/") and name.count("/") > 1
    }


def test_a_hole_is_no_rollback(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    gone_on(tmp_path, store)
    with opened(tmp_path / "consumequeue", ("offset",), compressed=True) as database:
        database.delete("default", rows.unit_key(b"Orders", 0, len(store.units["Orders", 0]) - 2))
    with pytest.raises(SafetyError, match="hole"):
        rollback(paths(tmp_path), CLOCK)
    assert (tmp_path / "consumequeue" / "CURRENT").exists()


def file_queue(root: Path, topic: str) -> tuple[int, list[tuple[int, int]]]:
    """Where a topic's queue 0 goes on, and the messages of its units; blanks are left out."""
    (queue,) = [each for each in inventory_of(paths(root)).queues if each.name == f"{topic}-0"]
    units = queue.files.read(queue.files.start, queue.range.end)
    found = [
        (queue.files.start + number, int(units.phy[number]))
        for number in range(units.rows)
        if int(units.size[number]) != 0x7FFFFFFF
    ]
    return queue.range.end, found


LIVES = [
    pytest.param(range(3), id="fewer messages than before"),
    pytest.param(range(40), id="more messages than before"),
    pytest.param(range(17, 20), id="the first ones have expired"),
]


@pytest.mark.parametrize("offsets", LIVES)
def test_a_topic_that_was_created_again_has_only_its_new_messages(tmp_path: Path, offsets: range) -> None:
    store = converted_store(tmp_path)
    new = [(offset, store.end - 500 + offset, 99, 0, 0) for offset in offsets]
    replace_rows(tmp_path, "Sources", store.units["Sources", 0], new)
    old = (tmp_path / "consumequeue" / "Sources" / "0" / ("0" * 20)).read_bytes()
    assert complete(paths(tmp_path), kept(tmp_path)) == len(offsets)
    assert file_queue(tmp_path, "Sources") == (offsets[-1] + 1, [unit[:2] for unit in new])
    assert (kept(tmp_path) / "file-queues" / "Sources" / "0-1" / ("0" * 20)).read_bytes() == old
    assert complete(paths(tmp_path), kept(tmp_path)) == 0


def test_what_only_the_file_queue_has_stays(tmp_path: Path) -> None:
    """Double writing of 5.3.x loses rows, and the file queues are those that count then."""
    store = converted_store(tmp_path)
    units = store.units["Sources", 0]
    replace_rows(tmp_path, "Sources", units[4:], units[3:4])
    assert complete(paths(tmp_path), kept(tmp_path)) == 0
    assert file_queue(tmp_path, "Sources") == (len(units), [unit[:2] for unit in units])


def test_file_queue_and_rocksdb_must_not_contradict_each_other(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    units = store.units["Sources", 0]
    replace_rows(tmp_path, "Sources", units, [(offset, phy - 1, size, 0, 0) for offset, phy, size, *_ in units])
    before = (tmp_path / "consumequeue" / "Sources" / "0" / ("0" * 20)).read_bytes()
    with pytest.raises(SafetyError, match="the unit differs from RocksDB's row"):
        rollback(paths(tmp_path), CLOCK)
    assert (tmp_path / "consumequeue" / "Sources" / "0" / ("0" * 20)).read_bytes() == before
    assert (tmp_path / "consumequeue" / "CURRENT").exists()


@pytest.mark.parametrize("following", [48, 51])
def test_a_queue_whose_later_messages_have_all_expired_continues_at_its_offset(tmp_path: Path, following: int) -> None:
    store = converted_store(tmp_path)
    replace_rows(tmp_path, "Sources", store.units["Sources", 0], [])
    with opened(tmp_path / "consumequeue", ("offset",), compressed=True) as database:
        database.put_all("offset", [(rows.max_key(b"Sources", 0), rows.bound_value(store.end, following - 1))])
    complete(paths(tmp_path), kept(tmp_path))
    assert file_queue(tmp_path, "Sources") == (following, [])
    assert complete(paths(tmp_path), kept(tmp_path)) == 0


def test_a_queue_continues_after_expired_messages(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    replace_rows(tmp_path, "Sources", store.units["Sources", 0], [(50, store.end, 100, 0, 0)])
    complete(paths(tmp_path), kept(tmp_path))
    assert file_queue(tmp_path, "Sources") == (51, [(50, store.end)])


def test_a_queue_without_files_whose_messages_have_all_expired_continues_at_its_offset(tmp_path: Path) -> None:
    """Whoever needed the room has deleted the file queues after the upgrade."""
    store, conf = small_store(tmp_path).write(), tmp_path / "broker.conf"
    backfill(tmp_path)
    units = store.units["Sources", 0]
    replace_rows(tmp_path, "Sources", units, [])
    for topic in (path for path in (tmp_path / "consumequeue").iterdir() if path.is_dir()):
        shutil.rmtree(topic)
    with pytest.raises(SafetyError, match=r"mappedFileSizeConsumeQueue.*--broker-conf"):
        rollback(paths(tmp_path), CLOCK)
    assert (tmp_path / "consumequeue" / "CURRENT").exists()
    conf.write_text("mappedFileSizeConsumeQueue=159\n")  # a broker rounds up
    complete(store_paths(tmp_path, conf), kept(tmp_path))
    assert file_queue(tmp_path, "Sources") == (len(units), [])
    expected = {name: [unit[:4] for unit in each] for name, each in store.units.items() if name[0] != "Sources"}
    assert queues_of(tmp_path) == expected | {("Sources", 0): []}
    assert {path.stat().st_size for path in (tmp_path / "consumequeue").glob("*/*/*")} == {160}
    assert complete(store_paths(tmp_path, conf), kept(tmp_path)) == 0


def test_queues_that_were_deleted_before_a_broker_opened_rocksdb_come_back(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Sources")
    rollback(paths(tmp_path), CLOCK)
    assert queues_of(tmp_path) == {name: [unit[:4] for unit in units] for name, units in store.units.items()}
