from pathlib import Path

import pytest

from streaming.rocketmq.convert.work import works_of
from streaming.rocketmq.store.inventory import inventory_of
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import paths


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_a_part_has_the_files_that_its_units_are_in_and_no_others(tmp_path: Path, rows: int) -> None:
    small_store(tmp_path).write()
    queues = inventory_of(paths(tmp_path)).queues
    ends = 0
    for work in works_of(queues, rows):
        assert work.rows == sum(piece.end - piece.first for piece in work.pieces)
        for piece in work.pieces:
            whole = queues[piece.number].files
            assert piece.files.read(piece.first, piece.end).phy.tolist() == (
                whole.read(piece.first, piece.end).phy.tolist()
            )
            if not piece.is_last:
                assert all(file.start < piece.end for file in piece.files.files)
                assert all(file.start + file.count > piece.first for file in piece.files.files)
            ends += piece.is_last
    assert ends == len(queues)
