from itertools import pairwise
from pathlib import Path

import pytest

from streaming.rocketmq.convert.index_database import OvertakenError
from streaming.rocketmq.convert.ranges import LogRange
from streaming.rocketmq.follow.tail import Tail, TruncatedError
from streaming.rocketmq.store.log_files import commitlog_of
from tests.rocketmq_store import Message, Store, small_store
from tests.unit.rocketmq.followed_store import grown, written


def ranges(tail: Tail) -> list[LogRange]:
    found = list[LogRange]()
    while some := tail.read().ranges:
        found += some
    return found


def test_ranges_cover_all_records_but_the_last_across_files(tmp_path: Path) -> None:
    store = written(small_store(tmp_path))
    last = store.put(Message("Z"))
    written(store)
    found = ranges(Tail(tmp_path / "commitlog", 0, range_bytes=500))
    assert found[0].start == 0
    assert found[-1].end == last
    for before, after in pairwise(found):
        assert after.start in (before.end, before.file.start + before.file.size)
    assert {each.file.path for each in found} == {file.path for file in commitlog_of(tmp_path / "commitlog").used}


def test_a_record_whose_rest_is_not_written_yet_is_waited_for(tmp_path: Path) -> None:
    store = written(grown(Store(tmp_path), 5))
    (file,) = (tmp_path / "commitlog").iterdir()
    whole = file.read_bytes()
    begins = store.put(Message("Torn"))
    written(store)
    full = file.read_bytes()
    tail = Tail(tmp_path / "commitlog", 0)
    for count in (1, 4, 6, 30, 90):
        file.write_bytes(full[: begins + count] + whole[begins + count :])
        assert (ranges(tail) or [LogRange(None, 0, begins)])[-1].end <= begins  # type: ignore[arg-type]
    file.write_bytes(full)
    ranges(tail)
    assert tail.position == begins


def test_bytes_that_no_broker_writes_are_named_and_the_record_before_them_waits(tmp_path: Path) -> None:
    store = grown(Store(tmp_path), 4)
    last = store.put(Message("Last"))
    written(store)
    (file,) = (tmp_path / "commitlog").iterdir()
    raw = bytearray(file.read_bytes())
    raw[store.end : store.end + 8] = b"\0\0\0\x70abcd"
    file.write_bytes(raw)
    tail = Tail(tmp_path / "commitlog", 0)
    ranges(tail)
    assert tail.position == last
    assert "wrong magic 0x61626364" in Tail(tmp_path / "commitlog", store.end).read().bad


def test_a_log_whose_end_was_cut_off_is_noticed_though_it_has_grown_since(tmp_path: Path) -> None:
    written(grown(Store(tmp_path), 9))
    tail = Tail(tmp_path / "commitlog", 0)
    ranges(tail)
    other = grown(Store(tmp_path), 4)
    other.put(Message("Other", 0, body=b"12345678901"))
    written(grown(other, 20))
    with pytest.raises(TruncatedError):
        tail.read()


def test_files_that_are_gone_before_they_were_read_are_noticed(tmp_path: Path) -> None:
    store = written(grown(Store(tmp_path), 9))
    tail = Tail(tmp_path / "commitlog", 0)
    ranges(tail)
    written(grown(store, 60), expired_files=3)
    with pytest.raises(OvertakenError):
        tail.read()
