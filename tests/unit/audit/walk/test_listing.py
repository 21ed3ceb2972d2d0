"""The listing of BookKeeper's ledgers, and its report of unreadable paths."""

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.audit.walk.listing import find_folders, ids_in
from tests.builders import ROOT, put
from udfs.paths import FIRST_LONG_ID, Layout, ledger_path


def _listed(store: MemoryStore, layout: Layout) -> tuple[list[int], list[str]]:
    folders = find_folders(store, ROOT, layout)
    problems = list(folders.problems)
    ids = ids_in(ROOT, folders.paths, store.children_many(folders.paths), problems)
    return sorted(ids), [path for path, _detail in problems]


@pytest.mark.parametrize(
    ("layout", "ids"),
    [
        (Layout.HIERARCHICAL, [0, 7, 9_999, 10_000, 123_456_789, FIRST_LONG_ID - 1, FIRST_LONG_ID, 2**40, 2**63 - 1]),
        (Layout.LONG_HIERARCHICAL, [0, 7, 9_999, 10_000, 2**31, 2**63 - 1]),
    ],
)
def test_every_ledger_of_either_layout_is_listed(store: MemoryStore, layout: Layout, ids: list[int]) -> None:
    for ledger_id in ids:
        put(store.tree, ledger_path(layout, ROOT, ledger_id))

    assert _listed(store, layout) == (ids, [])


def test_an_unreadable_folder_is_reported_and_the_others_are_listed(store: MemoryStore) -> None:
    for ledger_id in (5, 10_005, 100_000_005):
        put(store.tree, ledger_path(Layout.HIERARCHICAL, ROOT, ledger_id))
    store.unreadable |= {f"{ROOT}/00/0001", f"{ROOT}/01"}

    assert _listed(store, Layout.HIERARCHICAL) == ([5], [f"{ROOT}/01", f"{ROOT}/00/0001"])


def test_a_znode_that_is_no_ledger_below_a_ledgers_folder_is_reported(store: MemoryStore) -> None:
    put(store.tree, f"{ROOT}/00/0000/L0005")
    put(store.tree, f"{ROOT}/00/0000/backup")
    put(store.tree, f"{ROOT}/00/old")

    ids, problems = _listed(store, Layout.HIERARCHICAL)

    assert ids == [5]
    assert sorted(problems) == [f"{ROOT}/00/0000/backup", f"{ROOT}/00/old"]


def test_a_folder_that_vanishes_during_the_listing_is_empty(store: MemoryStore) -> None:
    problems: list[tuple[str, str]] = []

    assert ids_in(ROOT, [f"{ROOT}/00/0003"], store.children_many([f"{ROOT}/00/0003"]), problems) == []
    assert problems == []
