"""What counts as deleted within the last hour at a start, with and without receipts."""

from pathlib import Path

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.limits.last_hour import deletes_since
from streaming.state.journal import JournalEntry, ParquetJournal, started
from tests.builders import DAY_MS, HOUR_MS, NOW_MS, put, reference

KEY = "data:public/default/persistent/orders"


def _entry(ledger_id: int) -> JournalEntry:
    return JournalEntry(
        ledger_id=ledger_id, path=f"/ledgers/L{ledger_id:04}", data=b"", version=0, acl=b"", reference=reference()
    )


def _journal(folder: Path, clock: ManualClock, batch_id: int = 1) -> ParquetJournal:
    return ParquetJournal(str(folder), "requests", batch_id, clock)


def test_a_ledger_that_was_journaled_and_is_gone_counts_without_a_receipt_once_and_only_then(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    tree = MemoryTree(clock)
    put(tree, "/ledgers/L0003")
    _journal(tmp_path, clock).write([_entry(each) for each in (1, 2, 3)])
    clock.advance(1_000)
    _journal(tmp_path, clock).write([_entry(2)])  # the second try of a chunk that broke off

    recalled = list(deletes_since(str(tmp_path), MemoryStore(tree), NOW_MS - HOUR_MS))

    assert sorted(recalled) == [(NOW_MS, "public", KEY), (NOW_MS + 1_000, "public", KEY)]
    assert list(deletes_since(str(tmp_path), MemoryStore(tree), NOW_MS + 1_001)) == []


def test_what_a_batch_has_begun_counts_each_ledger_once_by_owner(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS - 1)
    _journal(tmp_path, clock).write([_entry(1)])
    clock.advance(1)
    _journal(tmp_path, clock).write([_entry(2), _entry(3)])
    clock.advance(DAY_MS)
    _journal(tmp_path, clock).write([_entry(3), _entry(4)])
    _journal(tmp_path, clock, batch_id=11).write([_entry(5)])
    assert started(str(tmp_path), "requests", 1, since_ms=NOW_MS) == {("public", KEY): 3}
    assert started(str(tmp_path), "requests", 2, since_ms=NOW_MS) == {}
    assert started(str(tmp_path / "nothing"), "requests", 1, since_ms=NOW_MS) == {}
