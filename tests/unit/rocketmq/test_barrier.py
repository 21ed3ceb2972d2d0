from pathlib import Path

from streaming.rocketmq.barrier import bar, unbar
from streaming.rocketmq.inventory import inventory_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import files_below, place


def test_the_barrier_is_a_queue_file_of_a_wrong_length_which_our_own_commands_leave_out(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    before, queues = files_below(tmp_path), inventory_of(place(tmp_path)).queues
    for _call in range(2):
        bar(place(tmp_path))
        assert (place(tmp_path).barrier / "0" / ("0" * 20)).stat().st_size == 1
    assert inventory_of(place(tmp_path)).queues == queues
    for _call in range(2):
        unbar(place(tmp_path))
        assert files_below(tmp_path) == before


def test_it_appears_and_goes_by_one_rename_each(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    renamed = list[Path]()

    def rename(source: Path, target: Path) -> None:
        renamed.append(target)
        source.replace(target)

    bar(place(tmp_path), rename)
    unbar(place(tmp_path), rename)
    assert len(renamed) == 2
    assert renamed[0] == place(tmp_path).barrier
