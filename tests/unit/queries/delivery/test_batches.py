"""The started and uncommitted batch: its range, and the commit that the fallback writes instead of Spark."""

import json
import shutil
from pathlib import Path

import pytest

from streaming.errors import SafetyError, UnavailableError
from streaming.queries.delivery.batches import Batch, commit, unfinished
from udfs.entry_ranges import Range
from udfs.formats.internal_stats import BEFORE_ALL
from udfs.proto.message_id_pb2 import MessageIdData

FRAMES = Path(__file__).parents[3] / "data" / "checkpoint-frames" / "requests" / "v1"
FIRST, SECOND, THIRD = (f"persistent://t/ns/topic-partition-{number}" for number in range(3))
EARLIEST = (-1, -1)


def _offset(position: tuple[int, int], batch_index: int = -1) -> list[int]:
    ledger, entry = (number % (1 << 64) for number in position)
    message_id = MessageIdData(ledgerId=ledger, entryId=entry)
    if batch_index >= 0:
        message_id.batch_index = batch_index
    return [byte - 256 if byte > 127 else byte for byte in message_id.SerializeToString()]


def _write(checkpoint: Path, number: int, offsets: dict[str, tuple[int, int]], *, committed: bool) -> None:
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    written = json.dumps({partition: _offset(position) for partition, position in offsets.items()})
    (checkpoint / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{written}')
    if committed:
        (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_batch_reads_from_where_the_one_before_ended_to_its_own_end(tmp_path: Path) -> None:
    _write(tmp_path, 6, {FIRST: (7, 3), SECOND: (9, 0)}, committed=True)
    _write(tmp_path, 7, {FIRST: (8, 2), SECOND: (9, 5)}, committed=False)
    assert unfinished(str(tmp_path)) == Batch(7, {FIRST: Range((7, 3), (8, 2)), SECOND: Range((9, 0), (9, 5))})


def test_the_first_batch_and_a_new_partition_are_read_from_the_beginning(tmp_path: Path) -> None:
    _write(tmp_path, 0, {FIRST: (7, 3), SECOND: EARLIEST}, committed=False)
    assert unfinished(str(tmp_path)) == Batch(0, {FIRST: Range(BEFORE_ALL, (7, 3))})
    _write(tmp_path, 0, {FIRST: (7, 3), SECOND: EARLIEST}, committed=True)
    _write(tmp_path, 1, {FIRST: (7, 3), SECOND: (9, 5), THIRD: (1, 1)}, committed=False)
    assert unfinished(str(tmp_path)) == Batch(1, {SECOND: Range(BEFORE_ALL, (9, 5)), THIRD: Range(BEFORE_ALL, (1, 1))})


def test_an_end_before_the_first_entry_of_a_ledger_is_one(tmp_path: Path) -> None:
    _write(tmp_path, 0, {FIRST: (7, -1)}, committed=False)
    assert unfinished(str(tmp_path)) == Batch(0, {FIRST: Range(BEFORE_ALL, (7, -1))})


def test_a_batch_of_pulsar_frames_is_read_and_committed_as_spark_4_does(tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(FRAMES, tmp_path / "v1"))
    partition = "persistent://pulsar/system/kept-partition-{}"
    assert unfinished(str(checkpoint)) == Batch(
        1, {partition.format(1): Range((6, -1), (6, 1)), partition.format(3): Range((10, 4), (10, 5))}
    )
    commit(str(checkpoint), 1)
    assert (checkpoint / "commits" / "1").read_bytes() == (FRAMES / "commits" / "0").read_bytes()


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "no batch at all"])
def test_there_is_no_batch_to_finish(tmp_path: Path, committed: bool) -> None:
    if committed:
        _write(tmp_path, 4, {FIRST: (7, 3)}, committed=True)
    assert unfinished(str(tmp_path)) is None


def test_an_offsets_file_with_other_contents_is_never_read_as_empty(tmp_path: Path) -> None:
    _write(tmp_path, 0, {FIRST: (7, 3)}, committed=False)
    (tmp_path / "offsets" / "0").write_text("")
    with pytest.raises(UnavailableError, match="Damaged"):
        unfinished(str(tmp_path))


def test_without_the_offsets_before_it_a_batch_has_no_range(tmp_path: Path) -> None:
    _write(tmp_path, 6, {FIRST: (7, 3)}, committed=True)
    _write(tmp_path, 7, {FIRST: (8, 2)}, committed=False)
    (tmp_path / "offsets" / "6").unlink()
    with pytest.raises(UnavailableError, match="offsets/6"):
        unfinished(str(tmp_path))


def test_a_commit_is_written_as_spark_writes_it_and_once(tmp_path: Path) -> None:
    _write(tmp_path, 6, {FIRST: (7, 3)}, committed=True)
    _write(tmp_path, 7, {FIRST: (8, 2)}, committed=False)
    for _ in range(2):
        commit(str(tmp_path), 7)
        assert unfinished(str(tmp_path)) is None
        assert (tmp_path / "commits" / "7").read_bytes() == (tmp_path / "commits" / "6").read_bytes()
    assert sorted(each.name for each in (tmp_path / "commits").iterdir()) == ["6", "7"]


@pytest.mark.parametrize("number", [5, 6, 8])
def test_only_the_last_started_batch_can_be_committed(tmp_path: Path, number: int) -> None:
    _write(tmp_path, 6, {FIRST: (7, 3)}, committed=True)
    _write(tmp_path, 7, {FIRST: (8, 2)}, committed=False)
    with pytest.raises(SafetyError, match="is not the one to commit"):
        commit(str(tmp_path), number)
