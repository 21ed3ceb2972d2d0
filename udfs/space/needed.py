"""The ledgers of a topic's list, one by one, and the cursors that need their messages."""

from collections.abc import Sequence

from udfs.records import LedgerComponent
from udfs.space.report import NeededBy, NeededLedger
from udfs.space.topic_split import Cursor, Hold, Listed, TopicFacts, acknowledged_entries


def needed_data(facts: TopicFacts, ledger_ids: Sequence[int]) -> list[NeededLedger]:
    """Return those of the ledgers that the topic's list names, ascending."""
    wanted = {*ledger_ids}
    return [
        _needed(facts, Hold(facts), number) for number, each in enumerate(facts.ledgers) if each.ledger_id in wanted
    ]


def _needed(facts: TopicFacts, hold: Hold, number: int) -> NeededLedger:
    ledger, later = facts.ledgers[number], facts.ledgers[number + 1 :]
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
        is_last=not later,
        next_id=later[0].ledger_id if later else None,
        is_loaded=facts.is_loaded,
        needed_by=tuple(
            _needed_by(cursor, hold, ledger, later)
            for cursor in facts.cursors
            if not cursor.is_known or hold.first_held(cursor.position) <= ledger.ledger_id
        ),
    )


def _needed_by(cursor: Cursor, hold: Hold, ledger: Listed, later: Sequence[Listed]) -> NeededBy:
    acknowledged = acknowledged_entries(cursor, hold.ledgers)

    def unread(each: Listed) -> int | None:
        if not each.closed_ms and not each.entries:
            return None
        read = cursor.position[1] + 1 if cursor.position[0] == each.ledger_id else 0
        return 0 if each.ledger_id < cursor.position[0] else max(0, each.entries - read - acknowledged[each.ledger_id])

    counts = [unread(each) for each in later]
    return NeededBy(
        subscription=cursor.name,
        is_of_broker=cursor.is_of_broker,
        unread=unread(ledger) if cursor.is_known else None,
        later=sum(filter(None, counts)) if cursor.is_known else None,
        is_exact=cursor.is_known,
    )
