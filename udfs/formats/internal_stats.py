"""internalStats of a topic as the broker's admin API gives them: no other module knows the keys of that JSON.

1. InternalStats is for counting what waits. An answer of another form than known is a FormatError, never a zero.
2. view_of is for the broker as a witness. It reads other fields, and an answer of another form is UNREADABLE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from udfs.formats.errors import FormatError
from udfs.paths import encode_name
from udfs.records import BrokerView, Presence
from udfs.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR

Position = tuple[int, int]
BEFORE_ALL: Position = (-1, -1)


@dataclass(frozen=True, slots=True)
class InternalStats:
    """One partition, or one topic without partitions.

    ledgers: (ledger, entries), oldest first, the one being written included. cursors: encoded name of a subscription's
    cursor -> up to where it has acknowledged. pending_adds: entries that the broker has not got to the bookies yet.
    sizes: ledger -> bytes, as they are stored; 0 where the broker does not say. compacted: (ledger, entries) of the
    compacted ledger; (-1, 0) where the topic has none.
    """

    ledgers: tuple[tuple[int, int], ...]
    cursors: Mapping[str, Position]
    pending_adds: int
    sizes: Mapping[int, int] = field(default_factory=dict)
    compacted: tuple[int, int] = (-1, 0)

    @property
    def horizon(self) -> Position:
        """The last entry that the compacted ledger stands for; before everything where the topic has none."""
        return self.cursors.get(COMPACTION_CURSOR, BEFORE_ALL) if self.compacted[0] >= 0 else BEFORE_ALL

    def mark_deleted(self, subscription: str) -> Position:
        """Up to where the subscription has acknowledged; before everything where there is none."""
        return self.cursors.get(encode_name(subscription), BEFORE_ALL)

    def has_subscription(self, subscription: str) -> bool:
        """Whether there is a subscription of that name."""
        return encode_name(subscription) in self.cursors

    @property
    def last(self) -> Position:
        """Position of the newest entry; entry -1 of the newest ledger where there is none."""
        filled = [(ledger, entries - 1) for ledger, entries in self.ledgers if entries]
        newest = self.ledgers[-1][0] if self.ledgers else BEFORE_ALL[0]
        return filled[-1] if filled else (newest, -1)

    def entries_after(self, after: Position) -> int:
        """How many entries are stored behind a position; (ledger, -1) is before that ledger's first."""
        whole = sum(entries for ledger, entries in self.ledgers if ledger > after[0])
        rest = sum(max(0, entries - after[1] - 1) for ledger, entries in self.ledgers if ledger == after[0])
        return whole + rest


def parse_internal_stats(stats: Any) -> InternalStats:
    """Read the answer's JSON. Raises FormatError."""
    try:
        return InternalStats(
            _ledgers(stats["ledgers"], int(stats["currentLedgerEntries"])),
            {str(name): _position(cursor["markDeletePosition"]) for name, cursor in stats["cursors"].items()},
            int(stats["pendingAddEntriesCount"]),
            _sizes(stats["ledgers"], int(stats.get("currentLedgerSize", 0))),
            _compacted(stats.get("compactedLedger")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"internalStats of a form not known: {error!r}") from error


def view_of(stats: Any) -> BrokerView:
    """Read internalStats; UNREADABLE where anything that decides is missing or of another type than known."""
    try:
        _ids(stats["schemaLedgers"])  # not needed, but part of every answer that we know
        return BrokerView(
            Presence.PRESENT,
            ledgers=_ids(stats["ledgers"]),
            cursors={str(name): _id(cursor["cursorLedger"]) for name, cursor in stats["cursors"].items()},
            compacted_ledger=_id(stats["compactedLedger"]["ledgerId"]),
            compacted_by_cursor=_compacted_by_cursor(stats["cursors"].get(COMPACTION_CURSOR)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        return BrokerView(Presence.UNREADABLE, detail=f"internalStats of a form not known: {error!r}")


def _ledgers(listed: Sequence[Mapping[str, Any]], current_entries: int) -> tuple[tuple[int, int], ...]:
    ledgers = [(int(ledger["ledgerId"]), int(ledger["entries"])) for ledger in listed]
    if ledgers:
        # the list has no number for the ledger that is being written
        newest, entries = ledgers[-1]
        ledgers[-1] = (newest, max(entries, current_entries))
    return tuple(ledgers)


def _sizes(listed: Sequence[Mapping[str, Any]], current_size: int) -> dict[int, int]:
    sizes = {int(ledger["ledgerId"]): int(ledger.get("size", 0)) for ledger in listed}
    if sizes:
        newest = int(listed[-1]["ledgerId"])  # the list has no size for the ledger that is being written either
        sizes[newest] = max(sizes[newest], current_size)
    return sizes


def _compacted(found: Mapping[str, Any] | None) -> tuple[int, int]:
    ledger = int(found["ledgerId"]) if found else -1
    return (ledger, max(0, int(found["entries"]))) if found and ledger >= 0 else (-1, 0)


def _position(text: str) -> Position:
    """Read `ledger:entry`. Behind a space a broker may say that the entry's whole batch is acknowledged: (ackSet …)."""
    ledger, _, entry = text.partition(" ")[0].partition(":")
    return int(ledger), int(entry)


def _compacted_by_cursor(cursor: Mapping[str, Any] | None) -> int:
    properties = cursor["properties"] if cursor is not None else {}
    return _id(properties.get(COMPACTED_LEDGER_PROPERTY, -1))


def _ids(ledgers: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(_id(ledger["ledgerId"]) for ledger in ledgers)


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no ledger id")
    return value
