"""The ledgers of a topic's list, one by one, and the cursors that need their messages."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from udfs.records import LedgerComponent
from udfs.space.space_report import NeededBy, NeededLedger
from udfs.space.topic_split import Cursor, CursorHold, ListedLedger, Place, StoredTopic, acknowledged_entries


def needed_data(facts: StoredTopic, ledger_ids: Sequence[int]) -> list[NeededLedger]:
    """Return those of the ledgers that the topic's list names, ascending."""
    wanted = {*ledger_ids}
    numbers = [number for number, each in enumerate(facts.ledgers) if each.ledger_id in wanted]
    if not numbers:
        return []
    hold = CursorHold(facts)
    needed_by: dict[int, list[NeededBy]] = {number: [] for number in numbers}
    for cursor in facts.cursors:
        for number, need in _needs(cursor, hold, numbers):
            needed_by[number].append(need)
    following = _following(facts.ledgers)
    return [_needed(facts, number, following[number], needed_by[number]) for number in numbers]


def _needed(facts: StoredTopic, number: int, next_id: int | None, needed_by: Sequence[NeededBy]) -> NeededLedger:
    ledger = facts.ledgers[number]
    before_ms = facts.ledgers[number - 1].closed_ms if number else 0
    is_closed = ledger.closed_ms > 0  # a broker writes entries, bytes and time when it closes the ledger
    return NeededLedger(
        ledger_id=ledger.ledger_id,
        component=LedgerComponent.MANAGED_LEDGER,
        topic=facts.topic,
        entries=ledger.entries if is_closed or ledger.entries else None,
        length=ledger.length if is_closed or ledger.length else None,
        after_ms=before_ms if before_ms > 0 else None,
        until_ms=ledger.closed_ms if is_closed else None,
        is_last=number == len(facts.ledgers) - 1,
        next_id=next_id,
        is_loaded=facts.is_loaded,
        needed_by=tuple(needed_by),
    )


def _following(ledgers: Sequence[ListedLedger]) -> list[int | None]:
    """Return for each ledger the next one of the list that is not missing; None: there is none."""
    following: list[int | None] = []
    next_id = None
    for ledger in reversed(ledgers):
        following.append(next_id)
        if ledger.place is not Place.MISSING:
            next_id = ledger.ledger_id
    return following[::-1]


def _needs(cursor: Cursor, hold: CursorHold, numbers: Sequence[int]) -> Iterator[tuple[int, NeededBy]]:
    """Yield those of the ledgers, by their number in the list, that a cursor may need."""
    if not cursor.is_known:
        for number in numbers:
            yield number, _need(cursor, None, None)
        return
    unread = _unread(cursor, hold.ledgers)
    later = [0, *accumulate(count or 0 for count in reversed(unread))]  # of the last n ledgers
    first = hold.first_held(cursor.position)
    for number in numbers:
        if first <= hold.ledgers[number].ledger_id:
            yield number, _need(cursor, unread[number], later[len(unread) - number - 1])


def _need(cursor: Cursor, unread: int | None, later: int | None) -> NeededBy:
    return NeededBy(
        subscription=cursor.name,
        is_of_broker=cursor.is_of_broker,
        unread=unread,
        later=later,
        is_exact=cursor.is_known,
    )


def _unread(cursor: Cursor, ledgers: Sequence[ListedLedger]) -> list[int | None]:
    """Return the entries of each ledger that a cursor has not acknowledged; None: unknown."""
    acknowledged = acknowledged_entries(cursor, ledgers)
    at, entry = cursor.position

    def count(ledger: ListedLedger) -> int | None:
        if not ledger.closed_ms and not ledger.entries:
            return None
        read = entry + 1 if at == ledger.ledger_id else 0
        done = read + acknowledged[ledger.ledger_id]
        return 0 if ledger.ledger_id < at else max(0, ledger.entries - done)

    return [count(ledger) for ledger in ledgers]
