"""The receipts' own count of chunks, with fake Spark tasks."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from streaming import schemas
from streaming.errors import FencedError, SafetyError, UnavailableError
from streaming.state.delta.delta_tables import Durable, Table, opened, table_path
from streaming.state.receipts import TABLE, Receipts, expire, newest_positions, rows
from streaming.state.waiting import Waiting
from tests.tasks import Tasks
from udfs import columns as c


class AnswerLost(Table):
    """Fails when it commits, before or after the commit is stored."""

    is_stored = True

    def create_write_transaction(self, *args: Any, **kwargs: Any) -> None:
        if self.is_stored:
            DeltaTable(self.table_uri).create_write_transaction(*args, **kwargs)
        raise OSError("answer lost")


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    spark: Any = None
    return Receipts(spark, str(tmp_path))


def append(receipts: Receipts, chunk: int, work: Any = None) -> None:
    row = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk}
    rows: Any = Tasks(pa.Table.from_pylist([row], schema=schemas.RECEIPT))
    receipts.append(rows, chunk, work)


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_append_that_failed_counts_if_it_was_stored(tmp_path: Path, is_stored: bool) -> None:
    spark: Any = None
    tables: list[Table] = []
    receipts = Receipts(spark, str(tmp_path), lambda *_: tables.pop(0) if tables else opened(str(tmp_path), TABLE))
    append(receipts, 1)
    failing = AnswerLost(receipts.path)
    failing.is_stored = is_stored
    tables.append(failing)
    with pytest.raises(UnavailableError, match="answer lost"):
        append(receipts, 2)
    receipts.catch_up()
    assert receipts.newest_chunk == (2 if is_stored else 1)


def test_the_first_append_may_fail_with_nothing_stored(receipts: Receipts) -> None:
    def fails(_batches: Any) -> Any:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        append(receipts, 1, fails)
    receipts.catch_up()
    assert receipts.newest_chunk == 0


def test_the_newest_entry_with_a_receipt_is_found_for_each_source_that_is_wanted(
    receipts: Receipts, tmp_path: Path
) -> None:
    assert newest_positions(str(tmp_path), lambda _source: True) == {}
    for chunk, positions in enumerate(([("a", 5, 9), ("b", 4, 0)], [("a", 6, 1), ("a", 6, 0), ("other", 9, 9)]), 1):
        made = [
            dict.fromkeys(schemas.RECEIPT.names)
            | {c.CHUNK: chunk, c.SOURCE: source, c.POSITION_LEDGER: ledger, c.POSITION_ENTRY: entry}
            for source, ledger, entry in positions
        ]
        tasks: Any = Tasks(pa.Table.from_pylist(made, schema=schemas.RECEIPT))
        receipts.append(tasks, chunk)
    append(receipts, 3)
    assert newest_positions(str(tmp_path), lambda source: source != "other") == {"a": (6, 1), "b": (4, 0)}


def test_a_stored_chunk_is_not_processed_again(receipts: Receipts) -> None:
    append(receipts, 1)
    append(receipts, 1, lambda _batches: pytest.fail("worked off twice"))
    assert receipts.summary(1).total == 1


def test_a_chunk_is_counted_by_the_kind_of_ledger_too(receipts: Receipts) -> None:
    kinds = ["LEDGER", "LEDGER", "OFFLOAD_LEDGER", None]
    about = {c.CHUNK: 1, c.OUTCOME: "DELETED", c.REASON: "UNREFERENCED"}
    rows = [dict.fromkeys(schemas.RECEIPT.names) | about | {c.LEDGER_TYPE: kind} for kind in kinds]
    tasks: Any = Tasks(pa.Table.from_pylist(rows, schema=schemas.RECEIPT))
    receipts.append(tasks, 1)
    found = receipts.summary(1)
    assert found.by_type == {
        ("LEDGER", "DELETED", "UNREFERENCED"): 2,
        ("OFFLOAD_LEDGER", "DELETED", "UNREFERENCED"): 1,
        (None, "DELETED", "UNREFERENCED"): 1,
    }
    assert found.outcomes == {("DELETED", "UNREFERENCED"): 4}


def test_a_run_that_stalled_while_a_newer_one_wrote_is_fenced(receipts: Receipts, tmp_path: Path) -> None:
    def stalls(batches: Any) -> Any:
        append(Receipts(None, str(tmp_path)), 1)  # type: ignore[arg-type]
        yield from batches

    with pytest.raises(FencedError):
        append(receipts, 1, stalls)
    assert receipts.summary(1).total == 1


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    paths: list[Path] = []

    def fsync(file: int) -> None:
        paths.append(Path(f"/proc/self/fd/{file}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_a_commit_is_on_the_disk_with_its_data_before_it_and_its_folders(
    receipts: Receipts, tmp_path: Path, flushed: list[Path]
) -> None:
    receipts.sync()
    flushed.clear()
    append(receipts, 1)
    append(receipts, 2)
    table, log = tmp_path / "receipts", tmp_path / "receipts" / "_delta_log"
    checksum = log / f".{2:020}.json.crc"
    checksum.touch()
    receipts.sync()
    commits = [log / f"{version:020}.json" for version in (1, 2)]
    first, second = (flushed.index(commit) for commit in commits)
    assert flushed[first - 1].suffix == flushed[second - 1].suffix == ".parquet"
    assert first < second
    assert flushed[second + 1 :] == [checksum, log, table, tmp_path]
    assert set(table.glob("*.parquet")) <= set(flushed)
    flushed.clear()
    receipts.sync()
    assert flushed == [log, table, tmp_path]


def test_the_newest_commit_of_an_earlier_run_is_flushed_too(
    receipts: Receipts, tmp_path: Path, flushed: list[Path]
) -> None:
    append(receipts, 1)
    Durable(str(tmp_path / "receipts")).sync()
    assert set((tmp_path / "receipts").glob("*.parquet")) <= set(flushed)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: whole[: len(whole) // 2], id="truncated"),
        pytest.param(lambda whole: bytes(len(whole)), id="zeros"),
    ],
)
@pytest.mark.parametrize("of", ["commit", "commit before", "data"])
def test_a_commit_that_a_power_loss_tore_is_named_and_the_others_stay(
    receipts: Receipts, tmp_path: Path, damage: Callable[[bytes], bytes], of: str
) -> None:
    append(receipts, 1)
    log = tmp_path / "receipts" / "_delta_log"
    before = set(log.parent.glob("*.parquet"))
    append(receipts, 2)
    newest = log / f"{2:020}.json"
    checksum = log / f".{newest.name}.crc"
    checksum.touch()
    (data,) = set(log.parent.glob("*.parquet")) - before
    torn = {"commit": newest, "commit before": log / f"{1:020}.json", "data": data}[of]
    torn.write_bytes(damage(torn.read_bytes()))

    with pytest.raises(SafetyError, match="truncated, most likely by a power loss") as refused:
        Receipts(None, str(tmp_path))  # type: ignore[arg-type]

    named = [newest, checksum] if of != "commit before" else [torn, newest, checksum]
    assert f"Move {', '.join(map(str, named))} away" in str(refused.value)
    for file in named:
        file.unlink()
    assert Receipts(None, str(tmp_path)).newest_chunk == (0 if of == "commit before" else 1)  # type: ignore[arg-type]


def test_data_that_a_power_loss_took_is_missed_at_the_start(receipts: Receipts, tmp_path: Path) -> None:
    append(receipts, 1)
    (data,) = (tmp_path / "receipts").glob("*.parquet")
    data.unlink()
    with pytest.raises(SafetyError, match="truncated"):
        Receipts(None, str(tmp_path))  # type: ignore[arg-type]


def test_waiting_retries_that_a_power_loss_tore_are_missed_at_the_start(tmp_path: Path) -> None:
    table = Path(Waiting(None, str(tmp_path)).path)  # type: ignore[arg-type]
    row = dict.fromkeys(schemas.WAITING.names)
    write_deltalake(table, pa.Table.from_pylist([row], schema=schemas.WAITING), mode="append")
    (data,) = table.glob("*.parquet")
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(SafetyError, match="truncated"):
        Waiting(None, str(tmp_path))  # type: ignore[arg-type]


def test_a_disk_that_refuses_stops_the_service(receipts: Receipts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SafetyError, match="may be lost, the disk reports"):
        receipts.sync()


def test_receipts_that_a_clock_dated_a_year_too_early_expire_with_their_neighbours(tmp_path: Path) -> None:
    day_ms, year_ms = 24 * 3_600_000, 366 * 24 * 3_600_000
    now_ms = 2 * year_ms
    _write_at(tmp_path, now_ms - 40 * day_ms, now_ms - 2 * day_ms, now_ms - year_ms, now_ms)

    def left() -> list[int]:
        return _chunks_left(tmp_path)

    expire(str(tmp_path), now_ms - 30 * day_ms, now_ms=now_ms)
    assert left() == [2, 3, 4]
    expire(str(tmp_path), now_ms - day_ms, now_ms=now_ms)
    assert left() == [4]
    expire(str(tmp_path), now_ms + year_ms, now_ms=now_ms + 2 * year_ms)
    assert left() == [4], "its number is what the next chunk goes on from"


def test_a_receipt_of_the_future_keeps_no_later_one(tmp_path: Path) -> None:
    day_ms = 24 * 3_600_000
    now_ms = 400 * day_ms
    _write_at(tmp_path, now_ms + 366 * day_ms, now_ms - 40 * day_ms, now_ms - 2 * day_ms, now_ms)

    expire(str(tmp_path), now_ms - 30 * day_ms, now_ms=now_ms)

    assert _chunks_left(tmp_path) == [1, 3, 4]


def _write_at(state: Path, *at_ms: int) -> None:
    """Write one receipt for each time, in chunks 1, 2, ..."""
    for chunk, each in enumerate(at_ms, start=1):
        row = dict.fromkeys(schemas.RECEIPT.names) | {c.CHUNK: chunk, c.AT_MS: each}
        table = pa.Table.from_pylist([row], schema=schemas.RECEIPT)
        write_deltalake(table_path(str(state), TABLE), table, mode="append")


def _chunks_left(state: Path) -> list[int]:
    return sorted(row[c.CHUNK] for row in rows(str(state), columns=[c.CHUNK]))
