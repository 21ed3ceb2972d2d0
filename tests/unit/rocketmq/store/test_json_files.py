import os
import tracemalloc
from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.store.json_files import json_table, offsets_name
from tests.rocketmq_store import small_store
from tests.unit.rocketmq.converted import paths


def test_where_a_json_file_is_empty_its_bak_counts_as_for_the_broker(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text("\n")
    assert json_table(tmp_path, "topics.json") is None
    (tmp_path / "topics.json.bak").write_text("{1:2}")
    assert json_table(tmp_path, "topics.json") == ({1: 2}, "topics.json.bak")  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a":', "character 5"),
        (b" \0{}", "character 1: no object"),
        (b"[]", "no object"),
        (b'{"\xff":1}', "byte 2: this is not UTF-8"),
    ],
)
def test_damaged_json_is_named_with_its_position(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "topics.json").write_bytes(data)
    with pytest.raises(SafetyError, match=rf"topics\.json.*{said}"):
        json_table(tmp_path, "topics.json")


@pytest.mark.parametrize("size", [256 << 20, 3 << 30])
def test_a_file_that_is_too_large_is_refused_without_reading_it(tmp_path: Path, size: int) -> None:
    """An almost empty file of 256 MB took 26 s and 835 MB of memory."""
    path = tmp_path / "topics.json"
    path.write_text("{}")
    os.truncate(path, size)
    tracemalloc.start()
    try:
        with pytest.raises(SafetyError, match=rf"topics\.json has {size} bytes"):
            json_table(tmp_path, "topics.json")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_of_zeros_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.touch()
    os.truncate(path, 100 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(SafetyError, match="no object starts here"):
            json_table(tmp_path, "topics.json")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_two_files_of_offsets_need_an_option(tmp_path: Path) -> None:
    small_store(tmp_path).write()
    (tmp_path / "config" / "consumerOffset.json").write_text("{}")
    with pytest.raises(SafetyError, match="--broker-conf"):
        offsets_name(paths(tmp_path))
    assert offsets_name(paths(tmp_path, lmq=True)) == "lmqConsumerOffset.json"
    assert offsets_name(paths(tmp_path, lmq=False)) == "consumerOffset.json"
