import struct
from pathlib import Path

import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.store.queue_files import QueueFiles, files_of
from udfs.rocketmq.queue_units import BLANK_SIZE

PER_FILE = 4


def unit(number: int) -> bytes:
    return struct.pack(">qiq", 1000 + number * 10, 10, number)


def queue(folder: Path, units: list[bytes], *, first_file: int = 0) -> QueueFiles:
    raw = b"".join(units)
    raw += bytes(-len(raw) % (PER_FILE * 20))
    for number in range(len(raw) // (PER_FILE * 20)):
        name = f"{(first_file + number) * PER_FILE * 20:020d}"
        (folder / name).write_bytes(raw[number * PER_FILE * 20 : (number + 1) * PER_FILE * 20])
    return files_of(folder)


@pytest.mark.parametrize("count", range(14))
def test_the_end_is_found_wherever_it_is(tmp_path: Path, count: int) -> None:
    files = queue(tmp_path, [unit(number) for number in range(count)] + [bytes(20)] * (16 - count))
    assert files.end() == count
    assert files.later(count) is None


def test_a_queue_may_start_in_the_middle(tmp_path: Path) -> None:
    blank = struct.pack(">qiq", 0, BLANK_SIZE, 0)
    files = queue(tmp_path, [blank, blank, unit(2), unit(3), unit(4)], first_file=5)
    assert (files.start, files.end(), files.limit) == (20, 25, 28)
    assert files.first_live(25, 0) == 22
    assert files.first_live(25, 1030) == 23
    assert files.first_live(25, 9999) == 25


@pytest.mark.parametrize(("first", "end"), [(0, 12), (3, 5), (4, 8), (11, 12), (5, 5)])
def test_any_run_of_units_is_read(tmp_path: Path, first: int, end: int) -> None:
    files = queue(tmp_path, [unit(number) for number in range(12)])
    assert files.read(first, end).tags.tolist() == list(range(first, end))


def test_a_unit_is_named_by_file_and_byte(tmp_path: Path) -> None:
    files = queue(tmp_path, [unit(number) for number in range(12)])
    assert files.where(6) == f"{tmp_path}/{80:020d}, byte 40"


def test_a_written_unit_after_the_end_is_found(tmp_path: Path) -> None:
    files = queue(tmp_path, [unit(0), bytes(20), bytes(20), bytes(20), bytes(20), unit(5), unit(6)])
    assert files.end() == 1
    assert files.later(1) == 5


def test_a_queue_without_files_has_no_unit(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    assert (files.start, files.end(), files.limit, files.first_live(0, 0), files.later(0)) == (0, 0, 0, 0, None)


def test_a_torn_file_is_named_with_its_byte(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(47))
    with pytest.raises(SafetyError, match="a torn unit starts at byte 40"):
        files_of(tmp_path)


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    queue(tmp_path, [unit(number) for number in range(12)])
    (tmp_path / f"{80:020d}").unlink()
    with pytest.raises(SafetyError, match="does not follow"):
        files_of(tmp_path)


def test_a_stranger_in_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SafetyError, match=r"notes\.txt"):
        files_of(tmp_path)


def test_a_file_that_shrinks_meanwhile_is_noticed(tmp_path: Path) -> None:
    files = queue(tmp_path, [unit(number) for number in range(4)])
    (tmp_path / f"{0:020d}").write_bytes(b"")
    with pytest.raises(SafetyError, match="shorter"):
        files.read(0, 4)
