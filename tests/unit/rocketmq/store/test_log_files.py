from pathlib import Path

import numpy as np
import pytest

from streaming.errors import SafetyError
from streaming.rocketmq.store import log_files
from streaming.rocketmq.store.log_files import LogFile, commitlog_of, headers_of
from tests.rocketmq_store import Message, Store, small_store
from udfs.rocketmq import commitlog as c


def test_the_end_is_that_of_the_last_record_not_of_the_file(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s").write()
    log = commitlog_of(tmp_path / "s" / "commitlog")
    assert log.end == store.end
    assert len(log.files) > 2


def test_a_file_that_was_created_in_advance_does_not_count(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s").write(unused_file=True)
    log = commitlog_of(tmp_path / "s" / "commitlog")
    assert (log.end, len(log.used)) == (store.end, len(log.files) - 1)


def test_a_log_may_end_in_a_message_that_no_queue_has(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.put(Message())
    store.put(Message(sys_flag=4))
    store.write()
    assert commitlog_of(tmp_path / "s" / "commitlog").end == store.end


def test_an_empty_log_ends_at_its_start(tmp_path: Path) -> None:
    (tmp_path / f"{4096:020d}").write_bytes(bytes(4096))
    log = commitlog_of(tmp_path)
    assert (log.start, log.end, log.used) == (4096, 4096, ())


def test_a_record_is_read_by_its_position(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write(expired_files=1)
    log = commitlog_of(tmp_path / "s" / "commitlog")
    first = log.record_at(log.start)
    assert first is not None
    assert first.phy == log.start == 2048
    assert log.record_at(log.start - 1) is None
    assert log.record_at(log.end) is None
    with pytest.raises(SafetyError, match="byte 1: "):
        log.record_at(log.start + 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / f"{2048:020d}").unlink(), "does not follow"),
        (lambda folder: (folder / f"{2048:020d}").write_bytes(bytes(100)), "100 bytes"),
        (lambda folder: (folder / "x").write_bytes(b""), "no file of a commitlog"),
        (lambda folder: max(folder.iterdir()).write_bytes(b"\1" * 2048), "byte 0: wrong magic"),
    ],
    ids=["missing", "another size", "stranger", "magic"],
)
def test_what_no_healthy_log_has_is_named(tmp_path: Path, damage: object, said: str) -> None:
    small_store(tmp_path / "s").write()
    damage(tmp_path / "s" / "commitlog")  # type: ignore[operator]
    with pytest.raises(SafetyError, match=said):
        commitlog_of(tmp_path / "s" / "commitlog")


def test_headers_name_file_and_byte_of_what_is_no_record(tmp_path: Path) -> None:
    small_store(tmp_path / "s").write()
    file = commitlog_of(tmp_path / "s" / "commitlog").files[1]
    with pytest.raises(SafetyError, match=rf"{file.path}, byte 9"):
        headers_of(file, [np.array([0, 9])])


@pytest.mark.parametrize("stretch", [100, 257, 1 << 20])
@pytest.mark.parametrize("page", [1, 1 << 20], ids=["mapped", "read"])
def test_headers_of_several_runs_are_those_of_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int, page: int
) -> None:
    monkeypatch.setattr(log_files, "_READ_BYTES", stretch)
    monkeypatch.setattr(log_files, "_PAGE_BYTES", page)
    small_store(tmp_path / "s").write()
    file = commitlog_of(tmp_path / "s" / "commitlog").files[1]
    records = _records(file)
    runs = [records[::3], [], records[1::3], records[2::3]]
    found = headers_of(file, [np.array([each.phy - file.start for each in run], dtype=np.int64) for run in runs])
    for run, headers in zip(runs, found, strict=True):
        assert headers.phy.tolist() == [each.phy for each in run]
        assert headers.size.tolist() == [each.size for each in run]
        assert headers.queue_id.tolist() == [each.queue_id for each in run]
        assert headers.queue_offset.tolist() == [each.queue_offset for each in run]
        assert headers.store_time.tolist() == [each.store_time for each in run]


@pytest.mark.parametrize("page", [1, 1 << 20], ids=["mapped", "read"])
def test_a_later_stretch_names_the_byte_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(log_files, "_READ_BYTES", 100)
    monkeypatch.setattr(log_files, "_PAGE_BYTES", page)
    small_store(tmp_path / "s").write()
    file = commitlog_of(tmp_path / "s" / "commitlog").files[1]
    last = _records(file)[-1].phy - file.start
    with pytest.raises(SafetyError, match=rf"{file.path}, byte {last + 1}: wrong magic"):
        headers_of(file, [np.array([0, last + 1])])


def _records(file: LogFile) -> list[c.CommitLogRecord]:
    return list(c.walk(memoryview(Path(file.path).read_bytes()), file.start))


def test_the_end_is_found_from_a_known_record_on(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.put(Message("Orders", 0))
    store.write(unused_file=True)
    folder = tmp_path / "s" / "commitlog"
    last = max(unit[1] for units in store.units.values() for unit in units)
    whole = commitlog_of(folder)
    file = Path(whole.used[-1].path)
    assert last > whole.used[-1].start
    raw = bytearray(file.read_bytes())
    raw[4:8] = b"bad!"
    file.write_bytes(raw)
    assert commitlog_of(folder, last) == whole
    with pytest.raises(SafetyError, match="byte 0: wrong magic"):
        commitlog_of(folder)


@pytest.mark.parametrize("ahead", [0, 64, 5000])
def test_the_walk_starts_with_the_file_if_no_record_starts_there(tmp_path: Path, ahead: int) -> None:
    store = small_store(tmp_path / "s").write(unused_file=True)
    assert commitlog_of(tmp_path / "s" / "commitlog", store.end + ahead).end == store.end
