from pathlib import Path

import numpy as np
import pytest

from streaming.rocketmq.convert.arrays import array_writer


def test_arrays_and_bytes_are_the_same_again(tmp_path: Path) -> None:
    with array_writer(tmp_path) as save:
        numbers, nothing, raw = save(np.arange(5, dtype="<u4")), save(b""), save(b"bytes")
        assert numbers.read("<u4").tolist() == [0, 1, 2, 3, 4]  # before the file is closed, too
    assert (nothing.bytes(), raw.bytes()) == (b"", b"bytes")
    assert nothing.read("<i8").tolist() == []
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_has_become_shorter_is_not_read(tmp_path: Path) -> None:
    with array_writer(tmp_path) as save:
        stored = save(np.arange(5, dtype="<u4"))
    Path(stored.path).write_bytes(bytes(19))
    with pytest.raises(RuntimeError, match="19 bytes"):
        stored.read("<u4")
