"""The ledgers in which a bookie must have an entry before it is believed that it has none of another ledger."""

from collections.abc import Sequence

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.adapters.memory.tree import MemoryTree
from streaming.clock import ManualClock
from streaming.errors import UnavailableError
from streaming.undo.bookie_answers import control_entries_on
from tests.builders import NOW_MS, ROOT, put
from tests.placements import placed
from udfs.paths import Layout, ledger_path

BOTH = frozenset("ab")
LARGE = 3_000_000_000  # a ledger id of the long layout


@pytest.fixture
def store() -> MemoryStore:
    created = MemoryStore(MemoryTree(ManualClock(NOW_MS)))
    put(created.tree, f"{ROOT}/LAYOUT", b"")
    put(created.tree, f"{ROOT}/available/a", b"")
    put(created.tree, f"{ROOT}/idgen-long/HOB-0/ID-1", b"")
    return created


def _put(store: MemoryStore, layout: Layout, ledgers: dict[int, bytes]) -> None:
    for ledger_id, data in ledgers.items():
        put(store.tree, ledger_path(layout, ROOT, ledger_id), data)


@pytest.mark.parametrize("layout", [*Layout])
def test_the_first_and_the_last_entry_of_closed_ledgers_are_named_newest_first(
    store: MemoryStore, layout: Layout
) -> None:
    closed = placed((0, "ab"), (4, "bc"), write=2, ack=2, last=9)
    _put(store, layout, {7: closed, 20_008: closed, LARGE: closed})
    assert [*control_entries_on(store, layout, ROOT, BOTH)] == [
        (ledger_id, entry, on) for ledger_id in (LARGE, 20_008, 7) for entry, on in ((0, ("a", "b")), (9, ("c", "b")))
    ]


def test_ledgers_that_have_no_entry_for_certain_are_left_out(store: MemoryStore) -> None:
    ledgers = {
        2: placed((0, "ab"), write=2, ack=2, last=-1),
        3: placed((0, "cd"), write=2, ack=2, last=9),
        4: b"no ledger",
    }
    _put(store, Layout.HIERARCHICAL, ledgers)
    assert [*control_entries_on(store, Layout.HIERARCHICAL, ROOT, BOTH)] == []


def test_the_first_entry_of_open_ledgers_is_named_too_and_more_often(store: MemoryStore) -> None:
    _put(store, Layout.HIERARCHICAL, dict.fromkeys(range(100), placed((0, "ab"), write=2, ack=2)))
    assert [*control_entries_on(store, Layout.HIERARCHICAL, ROOT, BOTH)] == [
        (ledger_id, 0, ("a", "b")) for ledger_id in reversed(range(36, 100))
    ]


def test_reading_ends_when_each_bookie_is_named_often_enough(store: MemoryStore) -> None:
    _put(store, Layout.HIERARCHICAL, dict.fromkeys(range(2_000), placed((0, "ab"), write=2, ack=2, last=9)))
    read: list[str] = []
    store.faults.before(lambda operation, paths: read.extend(paths) if operation == "read_many" else None)
    assert len([*control_entries_on(store, Layout.HIERARCHICAL, ROOT, BOTH)]) == 8
    assert len(read) == 500


def test_a_bookie_without_a_ledger_costs_a_bounded_number_of_reads(store: MemoryStore) -> None:
    _put(store, Layout.HIERARCHICAL, dict.fromkeys(range(6_000), placed((0, "ab"), write=2, ack=2, last=9)))
    read: list[str] = []
    store.faults.before(lambda operation, paths: read.extend(paths) if operation == "read_many" else None)
    assert len([*control_entries_on(store, Layout.HIERARCHICAL, ROOT, BOTH | {"new"})]) == 8
    assert len(read) == 5_000


def test_it_is_no_answer_that_zookeeper_is_away(store: MemoryStore) -> None:
    def away(_operation: str, _paths: Sequence[str]) -> None:
        raise UnavailableError("away")

    store.faults.before(away)
    with pytest.raises(UnavailableError):
        next(control_entries_on(store, Layout.HIERARCHICAL, ROOT, BOTH))
