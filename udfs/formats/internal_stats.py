"""internalStats of a topic as the broker's admin API returns them. Besides this module, only the sandbox
knows its keys.

1. InternalStats counts the backlog. An answer of an unknown form is a FormatError, never a zero.
2. view_of reads the broker's references to ledgers, from other fields. An answer of an unknown form is UNREADABLE.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from udfs.formats.errors import FormatError
from udfs.formats.managed_ledger import AcknowledgedRange
from udfs.owners.references import COMPACTED_LEDGER_PROPERTY, COMPACTION_CURSOR
from udfs.paths import encode_name
from udfs.records import BrokerView, Presence

Position = tuple[int, int]
BEFORE_ALL: Position = (-1, -1)
_ENSEMBLES = re.compile(r"\bensembleSize=([1-9]\d*), .*\bensembles=\{(0=\[[^]{}]+\](?:, \d+=\[[^]{}]+\])*)\}")
_FIRST_ENTRY = re.compile(r"(\d+)=\[")
_RANGE = re.compile(r"([\[(])(-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)([\])])")


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalStats:
    """A partition, or a topic without partitions."""

    # (ledger, entries that the bookies have confirmed), oldest first, including the ledger being written
    ledgers: tuple[tuple[int, int], ...]
    cursors: Mapping[str, Position]  # encoded name of a subscription's cursor -> last acknowledged position
    pending_adds: int  # entries that the broker has not written to the bookies yet
    sizes: Mapping[int, int] = field(default_factory=dict)  # ledger -> stored bytes; 0: the broker did not report them
    compacted: tuple[int, int] = (-1, 0)  # (ledger, entries) of the compacted ledger; (-1, 0): the topic has none
    # encoded cursor name -> the broker's text of what is acknowledged after the mark-delete position, if anything is
    acknowledged: Mapping[str, str] = field(default_factory=dict)
    reading: frozenset[str] = frozenset()  # encoded names of the cursors that have a consumer reading
    compacted_by_cursor: int | None = -1  # the ledger that cursor __compaction names; -1: none; None: not answered
    # the newest entry, even if its ledger was deleted since the broker loaded the topic; None: not answered
    last_confirmed: Position | None = None

    @property
    def horizon(self) -> Position:
        """Return the last entry that the compacted ledger covers; BEFORE_ALL if the topic has none."""
        return self.cursors.get(COMPACTION_CURSOR, BEFORE_ALL) if self.compacted[0] >= 0 else BEFORE_ALL

    def mark_deleted(self, subscription: str) -> Position:
        """Return the subscription's last acknowledged position; BEFORE_ALL if there is no such subscription."""
        return self.cursors.get(encode_name(subscription), BEFORE_ALL)

    def acknowledged_from(self, subscription: str, position: Position) -> list[AcknowledgedRange]:
        """Return the ranges of acknowledged entries that end at this entry or later.

        A text of an unknown form counts as no range.
        """
        ranges = [AcknowledgedRange(BEFORE_ALL, self.mark_deleted(subscription))]
        with suppress(FormatError):
            ranges += ranges_in(self.acknowledged.get(encode_name(subscription), ""))
        return [each for each in ranges if each.upper >= position]

    def has_subscription(self, subscription: str) -> bool:
        """Whether a subscription of that name exists."""
        return encode_name(subscription) in self.cursors

    @property
    def last(self) -> Position:
        """Return the newest entry's position; entry -1 of the newest ledger if there is no entry."""
        filled = [(ledger, entries - 1) for ledger, entries in self.ledgers if entries]
        newest = self.ledgers[-1][0] if self.ledgers else BEFORE_ALL[0]
        return filled[-1] if filled else (newest, -1)

    def entries_after(self, after: Position) -> int:
        """Return how many entries are stored after a position; (ledger, -1) is before that ledger's first entry."""
        later = sum(entries for ledger, entries in self.ledgers if ledger > after[0])
        rest = sum(max(0, entries - after[1] - 1) for ledger, entries in self.ledgers if ledger == after[0])
        return later + rest


def parse_internal_stats(stats: Any) -> InternalStats:
    """Read the answer's JSON. Raises FormatError."""
    try:
        last_confirmed = _position(stats["lastConfirmedEntry"]) if stats.get("lastConfirmedEntry") else None
        return InternalStats(
            ledgers=_ledgers(stats["ledgers"], int(stats["currentLedgerEntries"]), last_confirmed),
            cursors={str(name): _position(cursor["markDeletePosition"]) for name, cursor in stats["cursors"].items()},
            pending_adds=int(stats["pendingAddEntriesCount"]),
            sizes=_sizes(stats["ledgers"], int(stats.get("currentLedgerSize", 0))),
            compacted=_compacted(stats.get("compactedLedger")),
            acknowledged=_acknowledged(stats["cursors"]),
            reading=frozenset(str(name) for name, cursor in stats["cursors"].items() if _is_read(cursor)),
            compacted_by_cursor=_compacted_if_named(stats["cursors"].get(COMPACTION_CURSOR)),
            last_confirmed=last_confirmed,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"internalStats of an unknown form: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Ensembles:
    """The bookies of a ledger's entries. Each entry is stored by some bookies of an ensemble, which take turns."""

    size: int  # the ensembles' number of bookies
    firsts: tuple[int, ...]  # the first entry of each ensemble; a ledger gets another when a bookie fails

    def siblings(self, entry: int, entries: int) -> range:
        """Return the entries that are stored by the same bookies as this one, if the ledger has that many entries."""
        first = max(first for first in self.firsts if first <= entry)
        end = min((later for later in self.firsts if later > entry), default=entries)
        return range(first + (entry - first) % self.size, end, self.size)


def parse_ensembles(stats: Any) -> dict[int, Ensembles]:
    """Read ledger -> ensembles from internalStats with metadata, which are BookKeeper's LedgerMetadata.toSafeString().

    Ledgers with another form of metadata are left out.
    """
    ensembles = {}
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        for listed in stats["ledgers"]:
            if found := _ENSEMBLES.search(listed.get("metadata") or ""):
                firsts = tuple(sorted(int(first) for first in _FIRST_ENTRY.findall(found[2])))
                ensembles[int(listed["ledgerId"])] = Ensembles(int(found[1]), firsts)
    return ensembles


def ranges_in(acknowledged: str) -> tuple[AcknowledgedRange, ...]:
    """Read the text of acknowledged ranges, `[(3:5..3:9],(4:1..4:2]]`. Raises FormatError for an unknown form."""
    ranges = []
    for match in _RANGE.finditer(acknowledged):
        opening, *numbers, closing = match.groups()
        ledger, entry, upper_ledger, upper_entry = map(int, numbers)
        lower = (ledger, entry - (opening == "["))
        ranges.append(AcknowledgedRange(lower, (upper_ledger, upper_entry - (closing == ")"))))
    rest = _RANGE.sub("", acknowledged)
    if rest.strip("[], \n"):
        raise FormatError(f"acknowledged ranges of an unknown form: {rest[:60]!a}")
    return tuple(ranges)


def view_of(stats: Any) -> BrokerView:
    """Read internalStats; UNREADABLE if a field that the judge needs is missing or of an unknown type."""
    try:
        _ids(stats["schemaLedgers"])  # not needed, but part of every answer that we know
        return BrokerView(
            presence=Presence.PRESENT,
            ledgers=_ids(stats["ledgers"]),
            cursors={str(name): _id(cursor["cursorLedger"]) for name, cursor in stats["cursors"].items()},
            compacted_ledger=_id(stats["compactedLedger"]["ledgerId"]),
            compacted_by_cursor=_compacted_by_cursor(stats["cursors"].get(COMPACTION_CURSOR)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        return BrokerView(presence=Presence.UNREADABLE, detail=f"internalStats of an unknown form: {error!r}")


def _ledgers(
    listed: Sequence[Mapping[str, Any]], current_entries: int, last_confirmed: Position | None
) -> tuple[tuple[int, int], ...]:
    ledgers = [(int(ledger["ledgerId"]), int(ledger["entries"])) for ledger in listed]
    if ledgers:
        # the list has no count of entries for the ledger that is being written
        newest, entries = ledgers[-1]
        if last_confirmed is not None:
            # The broker counts an entry before the bookies confirm it. If they do not, the entry gets another position,
            # in the next ledger, and this one never exists.
            confirmed = last_confirmed[1] + 1 if last_confirmed[0] == newest else 0
            current_entries = min(current_entries, confirmed)
        ledgers[-1] = (newest, max(entries, current_entries))
    return tuple(ledgers)


def _sizes(listed: Sequence[Mapping[str, Any]], current_size: int) -> dict[int, int]:
    sizes = {int(ledger["ledgerId"]): int(ledger.get("size", 0)) for ledger in listed}
    if sizes:
        newest = int(listed[-1]["ledgerId"])  # the list has no size for the ledger that is being written either
        sizes[newest] = max(sizes[newest], current_size)
    return sizes


def _compacted(stats: Mapping[str, Any] | None) -> tuple[int, int]:
    ledger = int(stats["ledgerId"]) if stats else -1
    return (ledger, max(0, int(stats["entries"]))) if stats and ledger >= 0 else (-1, 0)


def _acknowledged(cursors: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    texts = {str(name): str(cursor.get("individuallyDeletedMessages") or "") for name, cursor in cursors.items()}
    return {name: text for name, text in texts.items() if text not in ("", "[]")}


def _is_read(cursor: Mapping[str, Any]) -> bool:
    """Whether a consumer reads: without one, a broker neither activates the cursor nor lets a read wait."""
    signs = ("active", "waitingReadOp", "subscriptionHavePendingRead", "subscriptionHavePendingReplayRead")
    return any(cursor.get(sign) is True for sign in signs)


def _position(text: str) -> Position:
    """Read `ledger:entry`. A broker may append the acknowledged messages of the entry's batch: ` (ackSet …)`."""
    ledger, _, entry = text.partition(" ")[0].partition(":")
    return int(ledger), int(entry)


def _compacted_by_cursor(cursor: Mapping[str, Any] | None) -> int:
    properties = cursor["properties"] if cursor is not None else {}
    return _id(properties.get(COMPACTED_LEDGER_PROPERTY, -1))


def _compacted_if_named(cursor: Mapping[str, Any] | None) -> int | None:
    return None if cursor is not None and "properties" not in cursor else _compacted_by_cursor(cursor)


def _ids(ledgers: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    return tuple(_id(ledger["ledgerId"]) for ledger in ledgers)


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no ledger id")
    return value
