"""Divides the ledgers of a topic's list among causes, by the rules of 4.0.8 brokers (ManagedLedgerImpl).

1. A broker never drops the current ledger, the last of the list.
2. A cursor holds the ledger of its mark-delete position, or the next one if it has acknowledged that ledger's last
   entry, and all ledgers after it. If a subscription and a cursor of the broker itself hold a ledger, its cause is the
   subscription.
3. The broker drops the ledgers before those that are held, oldest first, up to the first one that retention keeps both
   by time and by size.
4. The bytes of a ledger in tiered storage, there and in BookKeeper, have the same causes wherever cursors are.
5. Within a ledger only entries can be counted, so bytes that are divided there are estimates.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate
from typing import NamedTuple

from udfs.formats.internal_stats import Position
from udfs.formats.managed_ledger import AcknowledgedRange
from udfs.phase_one.trim_forecast import Retention
from udfs.space.causes import Cause
from udfs.space.space_report import Share, Subscription, Unknown
from udfs.units import MIB, MINUTE_MS


class Place(Enum):
    """Where the bytes of a listed ledger are."""

    BOOKKEEPER = auto()
    TIERED_ONLY = auto()
    MISSING = auto()
    UNCOUNTED = auto()  # BookKeeper has it, but the reading does not: it is newer, or its metadata could not be read


# each ledger is compared with them, and Python finds a member of an enumeration five times slower than a global name
_BACKLOG, _BROKER_CURSOR, _HELD_OR_RETAINED = Cause.BACKLOG, Cause.BROKER_CURSOR, Cause.HELD_OR_RETAINED
_BOOKKEEPER, _TIERED_ONLY, _MISSING = Place.BOOKKEEPER, Place.TIERED_ONLY, Place.MISSING


class ListedLedger(NamedTuple):
    """A ledger of a topic's list."""

    ledger_id: int
    place: Place
    length: int  # bytes of one copy
    entries: int
    closed_ms: int
    stored: int = 0  # bytes in BookKeeper, with all copies
    is_offloaded: bool = False  # also in tiered storage
    is_exact: bool = True  # False: the ledger is open, and no broker reported its length


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A durable cursor."""

    name: str  # decoded
    position: Position  # the last acknowledged entry; nothing before it is held
    is_known: bool = True  # False: the cursor may have moved on from `position`
    acknowledged: Sequence[AcknowledgedRange] = ()  # after `position`
    is_of_broker: bool = False
    last_active_ms: int | None = None
    is_connected: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """The facts about a topic."""

    topic: str
    namespace: str
    is_loaded: bool | None  # None: unknown
    ledgers: Sequence[ListedLedger]  # ascending
    cursors: Sequence[Cursor] = ()
    detail: str = ""  # why positions, or whether a broker has loaded the topic, are unknown
    of_pulsar: Cause | None = None  # SYSTEM_TOPICS or TRANSACTIONS: the cause of all its bytes in BookKeeper


@dataclass(slots=True)
class Divided:
    """A topic's part of the report."""

    shares: list[Share] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


class CursorHold:
    """The ledgers that the cursors of a topic hold."""

    def __init__(self, facts: StoredTopic) -> None:
        self.ledgers = facts.ledgers
        self.current = facts.ledgers[-1].ledger_id if facts.ledgers else -1
        self._ids = [ledger.ledger_id for ledger in facts.ledgers]
        self._there = [ledger for ledger in facts.ledgers if ledger.place is not _MISSING]
        self._there_ids = [ledger.ledger_id for ledger in self._there]
        self._last = [0, *accumulate(ledger.length for ledger in reversed(self._there))]  # bytes of the last n of them
        known = [cursor for cursor in facts.cursors if cursor.is_known]
        self.subscription = _slowest(cursor for cursor in known if not cursor.is_of_broker)
        self.of_broker = _slowest(cursor for cursor in known if cursor.is_of_broker)
        self.by_subscription = self._from_least([self.subscription])
        self.by_broker = self._from_least([self.of_broker])
        self.maybe = self._from_least(cursor for cursor in facts.cursors if not cursor.is_known)
        self.consumed_end = min(self.by_subscription, self.by_broker, self.maybe)
        self.are_all_known = len(known) == len(facts.cursors)
        self._slowest_two = sorted(self.first_held(cursor.position) for cursor in facts.cursors)[:2]

    @property
    def needs_retention(self) -> bool:
        """Whether the topic's retention decides about any ledger, now or once a subscription is at the end."""
        if len(self.ledgers) < 2:
            return False
        return self.ledgers[0].ledger_id < self.consumed_end or self._next_slowest() > self.consumed_end

    def frees(self, cursor: Cursor, retention: Retention | str, now_ms: int) -> int | None:
        """Return the bytes of one copy that a broker drops once the cursor is at the end; None: not known."""
        if not self.are_all_known:
            return None
        if not self.is_alone(cursor):
            return 0
        if isinstance(retention, str):
            return None if self.needs_retention else 0
        already = droppable(self.ledgers, self.first_held(cursor.position), retention, now_ms)
        freed = droppable(self.ledgers, self._next_slowest(), retention, now_ms)[len(already) :]
        return sum(ledger.length for ledger in freed if ledger.place is Place.BOOKKEEPER)

    def is_alone(self, cursor: Cursor) -> bool:
        """Whether no other cursor holds the first ledger that this one holds."""
        first = self.first_held(cursor.position)
        return first == self._slowest_two[0] and self._next_slowest() > first

    def first_held(self, position: Position) -> int:
        """Return the first ledger that a cursor at this position holds; at most the current ledger."""
        at, entry = position
        index = bisect_right(self._ids, at)
        if index and self._ids[index - 1] == at != self.current and entry + 1 >= self.ledgers[index - 1].entries:
            return self._ids[index]  # there is a next ledger, because this one is not the current
        return min(at, self.current)

    def backlog(self, cursor: Cursor) -> tuple[int, int]:
        """Return the bytes of one copy after the cursor's position, and how many of them are acknowledged."""
        at, entry = cursor.position
        index = bisect_right(self._there_ids, at)
        backlog = self._last[len(self._there) - index]
        if index and self._there_ids[index - 1] == at:
            ledger = self._there[index - 1]
            backlog += ledger.length - _portion(ledger.length, entry + 1, ledger.entries)
        counts = acknowledged_entries(cursor, self._there)
        sizes = (_portion(each.length, counts[each.ledger_id], each.entries) for each in self._there) if counts else ()
        return backlog, min(backlog, sum(sizes))

    def _from_least(self, cursors: Iterable[Cursor | None]) -> int:
        return min((self.first_held(cursor.position) for cursor in cursors if cursor), default=self.current)

    def _next_slowest(self) -> int:
        return self._slowest_two[1] if len(self._slowest_two) > 1 else self.current


def divide(facts: StoredTopic, hold: CursorHold, retention: Retention | str, *, now_ms: int) -> Divided:
    """Divide a topic's bytes.

    Args:
        facts: of the topic.
        hold: of the same facts.
        retention: in force; a text: why it could not be read, or that it was not needed.
        now_ms: the time, in ms since 1970.
    """
    division = _Division(facts, hold, retention, now_ms)
    for ledger in facts.ledgers:
        division.add(ledger)
    divided = Divided(division.sums.shares(facts), unknown=division.unknown())
    if facts.of_pulsar is None:
        divided.subscriptions = [_subscription(facts, hold, cursor, retention, now_ms) for cursor in facts.cursors]
    return divided


def droppable(ledgers: Sequence[ListedLedger], end: int, retention: Retention, now_ms: int) -> list[ListedLedger]:
    """Return the ledgers before `end` that retention does not keep, oldest first."""
    total = sum(ledger.length for ledger in ledgers)
    freed = 0
    dropped: list[ListedLedger] = []
    for ledger in ledgers[:-1]:
        freed += ledger.length
        has_expired = retention.minutes >= 0 and now_ms - ledger.closed_ms > retention.minutes * MINUTE_MS
        is_over = retention.megabytes >= 0 and total - freed >= retention.megabytes * MIB
        if ledger.ledger_id >= end or not (has_expired or is_over):
            break
        dropped.append(ledger)
    return dropped


def acknowledged_entries(cursor: Cursor, ledgers: Sequence[ListedLedger]) -> Counter[int]:
    """Return how many entries of each ledger are acknowledged after the cursor's position."""
    counts: Counter[int] = Counter()
    if not cursor.acknowledged:
        return counts
    entries = {ledger.ledger_id: ledger.entries for ledger in ledgers}
    for lower, upper in cursor.acknowledged:
        start = max(lower, cursor.position)
        if start[0] == upper[0]:
            counts[upper[0]] += max(0, min(upper[1], entries.get(upper[0], 0) - 1) - start[1])
            continue
        for ledger_id in (each for each in entries if start[0] <= each <= upper[0]):
            first = start[1] + 1 if ledger_id == start[0] else 0
            last = min(upper[1], entries[ledger_id] - 1) if ledger_id == upper[0] else entries[ledger_id] - 1
            counts[ledger_id] += max(0, last - first + 1)
    return counts


@dataclass(slots=True)
class _Sum:
    ledgers: int = 0
    one_copy: int = 0
    stored: int = 0
    is_exact: bool = True


class _Sums:
    """Sums by cause and subscription."""

    def __init__(self) -> None:
        self._sums: defaultdict[tuple[Cause, str], _Sum] = defaultdict(_Sum)

    def add(self, cause: Cause, ledger: ListedLedger, subscription: str = "", *, is_stored: bool = True) -> None:
        """Add a whole ledger."""
        stored = ledger.stored if is_stored else 0
        self.add_part(cause, subscription, ledger.length, stored, is_exact=ledger.is_exact)

    def add_part(self, cause: Cause, subscription: str, one_copy: int, stored: int, *, is_exact: bool) -> None:
        """Add a part of a ledger."""
        of_cause = self._sums[cause, subscription]
        of_cause.ledgers += 1
        of_cause.one_copy += one_copy
        of_cause.stored += stored
        of_cause.is_exact &= is_exact

    def shares(self, facts: StoredTopic) -> list[Share]:
        """Return the sums as the topic's shares."""
        return [
            Share(
                cause=cause,
                namespace=facts.namespace,
                topic=facts.topic,
                subscription=subscription,
                ledgers=of_cause.ledgers,
                one_copy=of_cause.one_copy,
                stored=of_cause.stored,
                is_exact=of_cause.is_exact,
            )
            for (cause, subscription), of_cause in self._sums.items()
        ]


class _Division:
    """Sums a topic's ledgers by cause."""

    def __init__(self, facts: StoredTopic, hold: CursorHold, retention: Retention | str, now_ms: int) -> None:
        self.sums = _Sums()
        self._facts, self._hold, self._retention = facts, hold, retention
        # the first one that holds a ledger decides
        self._holds = (
            (hold.by_subscription, _BACKLOG),
            (hold.maybe, _HELD_OR_RETAINED),
            (hold.by_broker, _BROKER_CURSOR),
        )
        self._dropped: frozenset[int] | None = None
        if isinstance(retention, Retention):
            dropped = droppable(facts.ledgers, hold.consumed_end, retention, now_ms)
            self._dropped = frozenset(ledger.ledger_id for ledger in dropped)
        self._acknowledged: Counter[int] = Counter()
        if hold.subscription is not None:
            self._acknowledged = acknowledged_entries(hold.subscription, facts.ledgers)
        self._maybe_held = self._maybe_retained = 0  # bytes

    def add(self, ledger: ListedLedger) -> None:
        """Add a ledger to the sum of its cause, or causes."""
        place = ledger.place
        if place is _MISSING:
            self.sums.add(Cause.MISSING, ledger, is_stored=False)
        if place is _TIERED_ONLY or ledger.is_offloaded:
            self.sums.add(Cause.TIERED, ledger, is_stored=False)
        if place is _BOOKKEEPER:
            self._add_stored(ledger, self._facts.of_pulsar or self._cause(ledger))

    def unknown(self) -> list[Unknown]:
        """Return what could not be decided."""
        of_cursors = Unknown(what=self._facts.topic, detail=self._facts.detail, at_least=0, at_most=self._maybe_held)
        of_retention = Unknown(
            what=self._facts.topic, detail=str(self._retention), at_least=0, at_most=self._maybe_retained
        )
        is_undecided = bool(self._maybe_held) or (self._facts.is_loaded is None and not self._facts.of_pulsar)
        is_unread = isinstance(self._retention, str) and self._hold.needs_retention and not self._facts.of_pulsar
        return [of_cursors] * is_undecided + [of_retention] * is_unread

    def _add_stored(self, ledger: ListedLedger, cause: Cause) -> None:
        slowest, holder = self._hold.subscription, ""
        if cause is _BACKLOG and slowest is not None:
            acknowledged = self._acknowledged.get(ledger.ledger_id, 0)
            if acknowledged or slowest.position[0] == ledger.ledger_id:
                _divide_backlog(self.sums, ledger, slowest, acknowledged)
                return
            holder = slowest.name
        elif cause is _BROKER_CURSOR and self._hold.of_broker is not None:
            holder = self._hold.of_broker.name
        elif cause is _HELD_OR_RETAINED and ledger.ledger_id >= self._hold.consumed_end:
            self._maybe_held += ledger.length
        elif cause is _HELD_OR_RETAINED:
            self._maybe_retained += ledger.length
        self.sums.add(cause, ledger, holder)

    def _cause(self, ledger: ListedLedger) -> Cause:
        hold, facts = self._hold, self._facts
        if ledger.ledger_id == hold.current:
            if facts.is_loaded is None:
                return Cause.HELD_OR_RETAINED
            return Cause.OPEN_ACTIVE if facts.is_loaded else Cause.OPEN_IDLE
        if ledger.is_offloaded:
            return Cause.OFFLOADED_AND_KEPT
        if ledger.ledger_id >= hold.consumed_end:
            for first, cause in self._holds:
                if ledger.ledger_id >= first:
                    return cause
        if self._dropped is None:
            return Cause.HELD_OR_RETAINED
        return Cause.TRIMMABLE if ledger.ledger_id in self._dropped else Cause.RETENTION


def _divide_backlog(sums: _Sums, ledger: ListedLedger, slowest: Cursor, acknowledged: int) -> None:
    """Divide a ledger that the slowest subscription holds by its entries."""
    read = min(ledger.entries, slowest.position[1] + 1) if slowest.position[0] == ledger.ledger_id else 0
    counts = {
        Cause.PARTLY_READ: read,
        Cause.ACKNOWLEDGED_BEHIND_GAP: min(acknowledged, ledger.entries - read),
    }
    counts[Cause.BACKLOG] = ledger.entries - sum(counts.values())
    parts = [cause for cause, count in counts.items() if count] or [Cause.BACKLOG]
    done = one_copy = stored = 0
    for cause in parts:
        done += counts[cause]
        length_end = _portion(ledger.length, done, ledger.entries) if cause is not parts[-1] else ledger.length
        stored_end = _portion(ledger.stored, done, ledger.entries) if cause is not parts[-1] else ledger.stored
        is_exact = ledger.is_exact and len(parts) == 1
        sums.add_part(cause, slowest.name, length_end - one_copy, stored_end - stored, is_exact=is_exact)
        one_copy, stored = length_end, stored_end


def _subscription(
    facts: StoredTopic, hold: CursorHold, cursor: Cursor, retention: Retention | str, now_ms: int
) -> Subscription:
    backlog, acknowledged = hold.backlog(cursor)
    return Subscription(
        topic=facts.topic,
        name=cursor.name,
        is_of_broker=cursor.is_of_broker,
        backlog=backlog,
        acknowledged=acknowledged,
        frees=hold.frees(cursor, retention, now_ms),
        is_alone=hold.is_alone(cursor),
        last_active_ms=cursor.last_active_ms,
        is_connected=cursor.is_connected,
        is_exact=cursor.is_known,
    )


def _slowest(cursors: Iterable[Cursor]) -> Cursor | None:
    return min(cursors, key=lambda cursor: (cursor.position, cursor.name), default=None)


def _portion(total: int, count: int, whole: int) -> int:
    """Return the portion of `total` that `count` of `whole` entries are, as if all were equally large."""
    return total * max(0, min(count, whole)) // whole if whole else 0
