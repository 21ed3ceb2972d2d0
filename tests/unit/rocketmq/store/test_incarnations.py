from pathlib import Path

import pytest

from streaming.adapters.rocksdb.database import opened
from streaming.rocketmq.store.bounds import bounds_of
from streaming.rocketmq.store.incarnations import of_this_incarnation
from streaming.rocketmq.store.inventory import Inventory, inventory_of
from tests.rocketmq_store import Unit
from tests.unit.rocketmq.converted import converted_store, paths, replace_rows


def current(root: Path) -> tuple[Inventory, int]:
    with opened(root / "consumequeue", read_only=True) as database:
        return of_this_incarnation(inventory_of(paths(root)), bounds_of(database), database)


def test_file_queues_that_agree_with_rocksdb_stay(tmp_path: Path) -> None:
    converted_store(tmp_path)
    assert current(tmp_path) == (inventory_of(paths(tmp_path)), 0)


@pytest.mark.parametrize("offsets", [range(3), range(40)])
def test_the_file_queue_of_a_topic_that_was_created_again_does_not_count(tmp_path: Path, offsets: range) -> None:
    store = converted_store(tmp_path)
    later: list[Unit] = [(offset, store.end + offset, 99, 0, 0) for offset in offsets]
    replace_rows(tmp_path, "Sources", store.units["Sources", 0], later)
    inventory, earlier = current(tmp_path)
    assert earlier == 1
    assert [queue.name for queue in inventory.queues if not queue.files.files] == ["Sources-0"]


def test_a_contradiction_is_no_other_incarnation(tmp_path: Path) -> None:
    store = converted_store(tmp_path)
    units = store.units["Sources", 0]
    replace_rows(tmp_path, "Sources", units, [(offset, phy - 1, size, 0, 0) for offset, phy, size, *_ in units])
    assert current(tmp_path) == (inventory_of(paths(tmp_path)), 0)
