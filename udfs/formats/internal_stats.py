"""A partition's internalStats as the broker's admin API gives them: no other module knows the keys of that JSON."""

from collections.abc import Mapping
from typing import Any

Position = tuple[int, int]


def mark_delete_of(stats: Mapping[str, Any], subscription: str) -> Position:
    """Up to where the subscription has acknowledged; before everything where there is none."""
    cursor = stats["cursors"].get(subscription)
    return position_of(cursor["markDeletePosition"]) if cursor else (-1, -1)


def entries_after(stats: Mapping[str, Any], after: Position) -> int:
    """How many entries internalStats knows behind a position; (ledger, -1) is before that ledger's first."""
    ledgers = ledgers_of(stats)
    whole = sum(entries for ledger, entries in ledgers if ledger > after[0])
    rest = sum(max(0, entries - after[1] - 1) for ledger, entries in ledgers if ledger == after[0])
    return whole + rest


def ledgers_of(stats: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(ledger, entries) of internalStats, oldest first. Raises KeyError, TypeError, ValueError for other forms."""
    ledgers = [(int(ledger["ledgerId"]), int(ledger["entries"])) for ledger in stats["ledgers"]]
    if ledgers:
        # the list has no number for the ledger that is being written
        newest, entries = ledgers[-1]
        ledgers[-1] = (newest, max(entries, int(stats["currentLedgerEntries"])))
    return ledgers


def position_of(text: str) -> Position:
    """Read `ledger:entry`. Raises ValueError."""
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)
