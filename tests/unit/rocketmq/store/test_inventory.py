import os
from dataclasses import replace
from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.store.inventory import inventory_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import paths


def test_every_queue_is_there_in_the_order_of_its_keys(tmp_path: Path) -> None:
    store = small_store(tmp_path).write()
    queues = inventory_of(paths(tmp_path)).queues
    assert [queue.range.number for queue in queues] == list(range(len(queues)))
    names = [(queue.range.topic.decode(), queue.range.queue_id) for queue in queues]
    assert names == sorted(store.units, key=lambda name: (len(name[0].encode()), *name))
    assert [queue.range.end for queue in queues] == [store.next_offset(*name) for name in names]
    assert [queue.last_phy for queue in queues] == [store.units[name][-1][1] for name in names]


def test_files_of_rocksdb_beside_the_topics_are_no_topics(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = inventory_of(paths(tmp_path))
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000005\n")
    assert inventory_of(paths(tmp_path)) == before


def test_a_stranger_beside_the_queues_is_named(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "consumequeue" / "Orders" / "x").mkdir()
    with pytest.raises(SafetyError, match="Orders/x"):
        inventory_of(paths(tmp_path))


@pytest.mark.parametrize("name", ["00", "-1", "\u0663", str(2**31)])
def test_a_folder_that_names_no_queue_is_named(tmp_path: Path, name: str) -> None:
    small_store(tmp_path).write()
    (tmp_path / "consumequeue" / "Orders" / name).mkdir()
    with pytest.raises(SafetyError, match=f"Orders/{name} is no folder"):
        inventory_of(paths(tmp_path))


def test_a_topic_whose_name_is_no_utf8_is_named(tmp_path: Path) -> None:
    """A broker writes names in the encoding of its system."""
    small_store(tmp_path).write()
    (tmp_path / "consumequeue" / os.fsdecode(b"%LMQ%\xb6\xa9") / "0").mkdir(parents=True)
    with pytest.raises(SafetyError, match=r"LMQ%\\xb6\\xa9' is no UTF-8"):
        inventory_of(paths(tmp_path))


@pytest.mark.parametrize("name", ["commitlog", "consumequeue/Orders/0", "config"])
def test_the_fingerprint_changes_with_any_file(tmp_path: Path, name: str) -> None:
    small_store(tmp_path).write()
    found = inventory_of(paths(tmp_path))
    before = found.fingerprint()
    assert inventory_of(paths(tmp_path)).fingerprint() == before
    file = min(path for path in (tmp_path / name).iterdir() if path.name != "subscriptionGroup.json")
    file.write_bytes(file.read_bytes())
    assert found.fingerprint() != before


def test_a_fingerprint_depends_on_options_and_on_files_beside_the_configuration(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "config" / "consumerOffset.json").write_text("{}")
    lmq = paths(tmp_path, lmq=True)
    seen = {inventory_of(lmq).fingerprint()}
    assert inventory_of(lmq).fingerprint() in seen
    seen.add(inventory_of(paths(tmp_path, lmq=False)).fingerprint())
    seen.add(inventory_of(replace(lmq, rocksdb=tmp_path / "consumequeue_rocksdb")).fingerprint())
    for name in ("topics.json.bak", "lmqConsumerOffset.json.bak"):
        (tmp_path / "config" / name).write_text("{}")
        seen.add(inventory_of(lmq).fingerprint())
    assert len(seen) == 5


def test_the_folder_of_a_mounted_disk_is_no_part_of_a_store(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before = [queue.name for queue in inventory_of(paths(tmp_path)).queues]
    for name in ("commitlog", "consumequeue"):
        (tmp_path / name / "lost+found").mkdir()
        (tmp_path / name / "lost+found" / "x").mkdir()
    assert [queue.name for queue in inventory_of(paths(tmp_path)).queues] == before
