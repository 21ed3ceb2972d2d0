import struct
from pathlib import Path

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.errors import SafetyError
from streaming.rocketmq.file_queues import complete
from streaming.rocketmq.inventory import inventory_of
from streaming.rocketmq.rollback import rollback
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.converted import CLOCK, backfill, place
from udfs.rocketmq import rows


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
    for queue in inventory_of(place(root)).queues:
        units = queue.files.read(queue.range.first, queue.range.end)
        offsets = range(queue.range.first, queue.range.end)
        values = zip(offsets, units.phy.tolist(), units.size.tolist(), units.tags.tolist(), strict=True)
        found[queue.range.topic.decode(), queue.range.queue_id] = list(values)
    return found


def test_after_a_rollback_the_file_queues_have_every_message(tmp_path: Path) -> None:
    """A broker would leave out the one that begins exactly where the file queues ended."""
    store = small_store(tmp_path).write()
    backfill(tmp_path)
    gone_on(tmp_path, store)
    rollback(place(tmp_path), CLOCK)
    assert queues_of(tmp_path) == {name: [unit[:4] for unit in units] for name, units in store.units.items()}


def test_a_second_call_finds_nothing_to_do(tmp_path: Path) -> None:
    store = small_store(tmp_path).write()
    backfill(tmp_path)
    assert complete(place(tmp_path)) == 0
    gone_on(tmp_path, store)
    assert complete(place(tmp_path)) == 60
    assert complete(place(tmp_path)) == 0


def test_a_hole_is_no_rollback(tmp_path: Path) -> None:
    store = small_store(tmp_path).write()
    backfill(tmp_path)
    gone_on(tmp_path, store)
    with opened(tmp_path / "consumequeue", ("offset",), compressed=True) as database:
        database.delete("default", rows.unit_key(b"Orders", 0, len(store.units["Orders", 0]) - 2))
    with pytest.raises(SafetyError, match="hole"):
        rollback(place(tmp_path), CLOCK)
    assert (tmp_path / "consumequeue" / "CURRENT").exists()


def test_where_messages_between_have_expired_a_queue_is_not_continued(tmp_path: Path) -> None:
    store = small_store(tmp_path).write()
    backfill(tmp_path)
    with opened(tmp_path / "consumequeue", ("offset",), compressed=True) as database:
        for unit in store.units["Sources", 0]:
            database.delete("default", rows.unit_key(b"Sources", 0, unit[0]))
        database.put_all("default", [(rows.unit_key(b"Sources", 0, 50), struct.pack(">qiqq", 1, 100, 0, 0))])
    with pytest.raises(SafetyError, match="move the folder"):
        complete(place(tmp_path))
