from pathlib import Path

from streaming.rocketmq.rollback.barrier import bar, unbar
from streaming.rocketmq.store.inventory import inventory_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import files_below, paths


def test_the_barrier_is_a_queue_file_of_a_wrong_length_which_our_own_commands_leave_out(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before, queues = files_below(tmp_path), inventory_of(paths(tmp_path)).queues
    for _call in range(2):
        bar(paths(tmp_path))
        assert (paths(tmp_path).barrier / "0" / ("0" * 20)).stat().st_size == 1
    assert inventory_of(paths(tmp_path)).queues == queues
    for _call in range(2):
        unbar(paths(tmp_path))
        assert files_below(tmp_path) == before


def test_it_appears_and_goes_by_one_rename_each(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    renamed = list[Path]()

    def rename(source: Path, target: Path) -> None:
        renamed.append(target)
        source.replace(target)

    bar(paths(tmp_path), rename)
    unbar(paths(tmp_path), rename)
    assert len(renamed) == 2
    assert renamed[0] == paths(tmp_path).barrier
