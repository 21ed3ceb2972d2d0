"""Counting what waits from internalStats: both ends of each ledger."""

from typing import Any

import pytest

from udfs.formats.internal_stats import entries_after, mark_delete_of


def _stats(*entries: int, current: int = 0) -> dict[str, Any]:
    ledgers = [{"ledgerId": 10 + number, "entries": each} for number, each in enumerate(entries)]
    return {"ledgers": ledgers, "currentLedgerEntries": current, "cursors": {}}


@pytest.mark.parametrize(
    ("stats", "after", "expected"),
    [
        pytest.param(_stats(), (-1, -1), 0, id="a topic without ledgers"),
        pytest.param(_stats(0), (-1, -1), 0, id="an empty ledger"),
        pytest.param(_stats(0, current=5), (10, -1), 5, id="before the first entry"),
        pytest.param(_stats(0, current=5), (10, 3), 1, id="one left"),
        pytest.param(_stats(0, current=5), (10, 4), 0, id="behind the last entry"),
        pytest.param(_stats(3, 4, 0, current=2), (10, 2), 6, id="at the end of an older ledger"),
        pytest.param(_stats(3, 4, 0, current=2), (10, 1), 7, id="within an older ledger"),
        pytest.param(_stats(3, 4, 0, current=2), (9, 7), 9, id="at a ledger that was trimmed"),
        pytest.param(_stats(3, 4, 0, current=2), (12, -1), 2, id="at the newest ledger's beginning"),
        pytest.param(_stats(3, 4, current=4), (10, 2), 4, id="the newest ledger is listed with its entries"),
    ],
)
def test_what_waits_is_every_entry_behind_the_position(
    stats: dict[str, Any], after: tuple[int, int], expected: int
) -> None:
    assert entries_after(stats, after) == expected


def test_without_a_subscription_everything_waits() -> None:
    assert mark_delete_of(_stats(3), "ledger-reaper") == (-1, -1)


def test_a_subscription_has_read_up_to_its_mark_delete_position() -> None:
    stats = _stats(3) | {"cursors": {"ledger-reaper": {"markDeletePosition": "10:1"}}}
    assert mark_delete_of(stats, "ledger-reaper") == (10, 1)
