"""Ledgers that no owner has claimed."""

from tests.builders import NOW_MS, OTHER_TOPIC, TOPIC, cursor_custom, data_custom, metadata
from udfs.formats.ledger_metadata import PlacedLedger
from udfs.paths import topic_of
from udfs.records import LedgerState
from udfs.space.causes import Cause
from udfs.space.ledger_table import Kind, LedgerTable, TableBuilder
from udfs.space.unreferenced import unreferenced_shares

ORDERS, PAYMENTS = topic_of(TOPIC), topic_of(OTHER_TOPIC)


def table() -> LedgerTable:
    builder = TableBuilder()
    ledgers = [
        (data_custom(), LedgerState.CLOSED, 0),
        (data_custom(), LedgerState.CLOSED, 0),
        (data_custom(), LedgerState.CLOSED, NOW_MS - 10),
        (data_custom(), LedgerState.OPEN, NOW_MS),
        (cursor_custom(OTHER_TOPIC), LedgerState.IN_RECOVERY, 0),
        ({}, LedgerState.CLOSED, NOW_MS),
    ]
    for ledger_id, (custom, state, changed_ms) in enumerate(ledgers):
        placed = PlacedLedger(metadata(custom, state=state, length_bytes=10), 1, 4, ((0, ("a",)),), 1)
        builder.add(ledger_id, placed, changed_ms)
    return builder.build()


def found(all_ledgers: LedgerTable, *, unread: set[tuple[str, Kind]] = frozenset()) -> dict[tuple[str, Cause], int]:  # type: ignore[assignment]
    shares = unreferenced_shares(
        all_ledgers, lambda owner, kind: (owner, kind) in unread, lambda _ns: True, now_ms=NOW_MS, min_age_ms=11
    )
    return {(share.topic, share.cause): share.ledgers for share in shares}


def test_each_has_a_cause() -> None:
    assert found(table()) == {
        ("", Cause.FOREIGN): 1,
        (ORDERS, Cause.UNREFERENCED): 2,
        (ORDERS, Cause.TOO_YOUNG): 1,
        (ORDERS, Cause.UNREFERENCED_OPEN): 1,
        (PAYMENTS, Cause.UNREFERENCED_OPEN): 1,
    }


def test_claimed_ledgers_are_left_out() -> None:
    all_ledgers = table()
    all_ledgers.claim([0, 1, 2, 3])
    assert found(all_ledgers) == {("", Cause.FOREIGN): 1, (PAYMENTS, Cause.UNREFERENCED_OPEN): 1}
    all_ledgers.claim([4, 5])
    assert found(all_ledgers) == {}


def test_unread_owners_make_their_ledgers_of_that_kind_unknown() -> None:
    of_orders = found(table(), unread={(TOPIC, Kind.DATA), (OTHER_TOPIC, Kind.DATA)})
    assert (ORDERS, Cause.UNKNOWN) in of_orders
    assert (ORDERS, Cause.UNREFERENCED) not in of_orders
    assert (PAYMENTS, Cause.UNREFERENCED_OPEN) in of_orders
    assert found(TableBuilder().build()) == {}
