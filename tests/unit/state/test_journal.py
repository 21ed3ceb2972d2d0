"""The undo journal: durable before it returns, complete, and never changed by a replay."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from streaming.clock import ManualClock
from streaming.errors import UnavailableError
from streaming.state.filesystem import open_filesystem
from streaming.state.journal import JournalEntry, JournalQuery, ParquetJournal, SnapshotEntry, entries, expire
from tests.builders import DAY_MS, HOUR_MS, reference

NOON_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


def entry(ledger_id: int = 5) -> JournalEntry:
    owner = reference(checks=(("/managed-ledgers/public/default/persistent/orders", 7),))
    return JournalEntry(
        ledger_id=ledger_id,
        path=f"/ledgers/00/0000/L{ledger_id:04}",
        data=b"\x00znode\xff",
        version=3,
        acl=b"acl",
        reference=owner,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_MS)


def journal_in(folder: Path, clock: ManualClock, *, query: str = "requests", batch_id: int = 4) -> ParquetJournal:
    return ParquetJournal(str(folder), query, batch_id, clock)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_written_entries_are_read_back_unchanged(tmp_path: Path, clock: ManualClock) -> None:
    journal_in(tmp_path, clock).write([entry(5)])
    assert list(entries(str(tmp_path))) == [
        {
            "at_ms": NOON_MS,
            "query": "requests",
            "batch_id": 4,
            "ledger_id": 5,
            "path": "/ledgers/00/0000/L0005",
            "version": 3,
            "data": b"\x00znode\xff",
            "acl": b"acl",
            "reference_key": "data:public/default/persistent/orders",
            "presence": "PRESENT",
            "checks": ["/managed-ledgers/public/default/persistent/orders@7"],
        }
    ]


def test_a_ledger_is_found_among_many(tmp_path: Path, clock: ManualClock) -> None:
    journal_in(tmp_path, clock).write([entry(n) for n in range(500)])
    journal_in(tmp_path, clock).write([entry(7)])
    found = list(entries(str(tmp_path), JournalQuery(where=ds.field("ledger_id") == 7)))
    assert [row["ledger_id"] for row in found] == [7, 7]


def test_the_newest_entry_of_a_snapshots_key_is_found_in_all_runs(tmp_path: Path, clock: ManualClock) -> None:
    def written(key: str, place: int, value: bytes, topic: str = "t") -> None:
        journal = journal_in(tmp_path, clock, query="another" if place else "requests")
        journal.write_snapshots(
            [
                SnapshotEntry(
                    topic=topic, key=key, ledger_id=7, entry_id=place, uuid="", value=value, reference=reference()
                )
            ]
        )
        clock.advance(HOUR_MS)

    assert journal_in(tmp_path, clock).newest_snapshots("t", ["a"]) == {}
    written("a", 1, b"old")
    written("a", 0, b"new")
    written("a", 2, b"elsewhere", topic="u")
    written("b", 3, b"of another key")
    assert journal_in(tmp_path, clock).newest_snapshots("t", ["a", "c"]) == {"a": ((7, 0), b"new")}


@pytest.mark.parametrize(
    ("at_ms", "ahead_ms"),
    [
        pytest.param(NOON_MS - 366 * DAY_MS, 366 * DAY_MS, id="the clock that counts was a year behind"),
        pytest.param(NOON_MS, 366 * DAY_MS, id="the other clock was a year ahead"),
    ],
)
def test_entries_written_while_clocks_were_a_year_apart_do_not_expire_when_they_agree(
    tmp_path: Path, at_ms: int, ahead_ms: int
) -> None:
    ParquetJournal(str(tmp_path), "requests", 4, ManualClock(at_ms), ahead_ms=ahead_ms).write([entry(5)])
    assert expire(str(tmp_path), now_ms=NOON_MS + DAY_MS, keep_days=30) == 0
    assert [row["ledger_id"] for row in entries(str(tmp_path), JournalQuery(since_ms=at_ms))] == [5]


def test_nothing_to_write_leaves_no_file(tmp_path: Path, clock: ManualClock) -> None:
    journal_in(tmp_path, clock).write([])
    assert files(tmp_path) == []
    assert list(entries(str(tmp_path))) == []


def test_a_replayed_batch_writes_a_file_of_its_own_and_leaves_the_first_as_it_was(
    tmp_path: Path, clock: ManualClock
) -> None:
    journal_in(tmp_path, clock).write([entry(5)])
    (first,) = files(tmp_path)
    before = (first.read_bytes(), first.stat().st_mtime_ns)
    journal_in(tmp_path, clock).write([entry(6)])
    assert len(files(tmp_path)) == 2
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before


def test_files_are_named_by_day_query_and_batch(tmp_path: Path, clock: ManualClock) -> None:
    journal_in(tmp_path, clock, query="retry", batch_id=12).write([entry()])
    (file,) = files(tmp_path)
    assert file.parent == tmp_path / "journal" / "day=2026-03-01"
    assert file.name.startswith("retry-12-")
    assert file.suffix == ".parquet"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """(path, is a directory) of everything that was fsynced, in order."""
    seen: list[tuple[str, bool]] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        seen.append((name, stat.S_ISDIR(os.fstat(descriptor).st_mode)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    return seen


def test_is_on_disk_before_it_returns_name_and_folders_included(
    tmp_path: Path, clock: ManualClock, synced: list[tuple[str, bool]]
) -> None:
    journal_in(tmp_path, clock).write([entry()])
    (file,) = files(tmp_path)
    (first, is_folder), *folders = synced
    assert not is_folder
    assert first == str(file.with_name(f".{file.name}.unfinished"))
    assert [name for name, _ in folders] == [str(file.parent), str(tmp_path / "journal"), str(tmp_path)]


def test_files_that_a_crash_left_unfinished_are_not_read(tmp_path: Path, clock: ManualClock) -> None:
    journal_in(tmp_path, clock).write([entry(5)])
    (file,) = files(tmp_path)
    file.with_name(".requests-4-x.parquet.unfinished").write_bytes(b"half")
    assert [row["ledger_id"] for row in entries(str(tmp_path))] == [5]


def test_a_folder_that_cannot_be_written_stops_the_deletion(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "journal").write_text("a file where the folder should be")
    with pytest.raises(UnavailableError, match="nothing is deleted"):
        journal_in(tmp_path, clock).write([entry()])


def test_a_full_disk_stops_the_deletion(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError, match="No space left"):
        journal_in(tmp_path, clock).write([entry()])
    assert files(tmp_path) == []


def test_an_unknown_scheme_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="nowhere://x"):
        open_filesystem("nowhere://x")


def test_a_uri_and_a_path_name_the_same_folder(tmp_path: Path, clock: ManualClock) -> None:
    ParquetJournal(tmp_path.as_uri(), "requests", 1, clock).write([entry(5)])
    assert [row["ledger_id"] for row in entries(str(tmp_path))] == [5]


@pytest.mark.parametrize(
    ("later_ms", "days_gone"),
    [
        pytest.param(29 * DAY_MS, 0, id="younger"),
        pytest.param(30 * DAY_MS, 0, id="kept to the day"),
        pytest.param(31 * DAY_MS - 12 * HOUR_MS - 1, 0, id="the last millisecond of the last day"),
        pytest.param(31 * DAY_MS - 12 * HOUR_MS, 1, id="the day after"),
    ],
)
def test_expires_by_whole_days(tmp_path: Path, clock: ManualClock, later_ms: int, days_gone: int) -> None:
    journal_in(tmp_path, clock).write([entry(5)])
    clock.advance(DAY_MS)
    journal_in(tmp_path, clock).write([entry(6)])
    assert expire(str(tmp_path), now_ms=NOON_MS + later_ms, keep_days=30) == days_gone
    assert [row["ledger_id"] for row in entries(str(tmp_path))] == [5, 6][days_gone:]


def test_expiry_touches_nothing_but_days(tmp_path: Path, clock: ManualClock) -> None:
    journal_in(tmp_path, clock).write([entry(5)])
    (tmp_path / "journal" / "notes").mkdir()
    assert expire(str(tmp_path), now_ms=NOON_MS + 400 * DAY_MS, keep_days=30) == 1
    assert (tmp_path / "journal" / "notes").is_dir()


def test_expiry_where_nothing_was_journaled_is_none(tmp_path: Path) -> None:
    assert expire(str(tmp_path), now_ms=NOON_MS, keep_days=30) == 0
