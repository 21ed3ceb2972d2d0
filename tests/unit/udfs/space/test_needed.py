"""What is known of a ledger that a topic needs, and which cursors need its messages."""

import time

import pytest

from udfs.formats.managed_ledger import AcknowledgedRange
from udfs.records import LedgerComponent
from udfs.space.needed import needed_data
from udfs.space.space_report import NeededBy, NeededLedger
from udfs.space.topic_split import Cursor, ListedLedger, Place, StoredTopic

TOPIC = "persistent://shop/prod/carts"


def listed(
    ledger_id: int, *, entries: int = 10, closed_ms: int | None = None, place: Place = Place.BOOKKEEPER
) -> ListedLedger:
    return ListedLedger(ledger_id, place, 100 * entries, entries, 1_000 * ledger_id if closed_ms is None else closed_ms)


def need_of(ledger_id: int, *cursors: Cursor, ledgers: tuple[ListedLedger, ...] = ()) -> NeededLedger:
    ledgers = ledgers or (listed(1), listed(2, place=Place.MISSING), listed(3), listed(4, entries=3, closed_ms=0))
    facts = StoredTopic(topic=TOPIC, namespace="shop/prod", is_loaded=False, ledgers=ledgers, cursors=cursors)
    (need,) = needed_data(facts, [ledger_id])
    return need


def at(ledger_id: int, entry: int, *acknowledged: AcknowledgedRange, known: bool = True) -> Cursor:
    return Cursor(name="billing", position=(ledger_id, entry), acknowledged=acknowledged, is_known=known)


def test_the_list_has_entries_bytes_and_times_of_a_ledger() -> None:
    need = need_of(2)
    assert (need.component, need.topic, need.entries, need.length) == (LedgerComponent.MANAGED_LEDGER, TOPIC, 10, 1_000)
    assert (need.after_ms, need.until_ms, need.is_last, need.next_id) == (1_000, 2_000, False, 3)


def test_the_next_ledger_is_the_next_that_is_not_missing() -> None:
    """A subscription that a command moves to another missing ledger would stop there again."""
    missing = {number: listed(number, place=Place.MISSING) for number in (2, 3, 5)}
    ledgers = (listed(1), missing[2], missing[3], listed(4, place=Place.UNCOUNTED), missing[5])
    assert [need_of(each, ledgers=ledgers).next_id for each in (2, 3, 5)] == [4, 4, None]


def test_a_topic_that_misses_ten_thousand_ledgers_takes_seconds() -> None:
    ledgers = tuple(listed(number, place=Place.MISSING) for number in range(10_000))
    cursors = tuple(Cursor(name=f"s{number}", position=(-1, -1)) for number in range(3))
    facts = StoredTopic(topic=TOPIC, namespace="shop/prod", is_loaded=False, ledgers=ledgers, cursors=cursors)
    started_s = time.process_time()
    needs = needed_data(facts, range(10_000))
    assert time.process_time() - started_s < 10  # 0.3 s; a pass over the list for each ledger takes minutes
    assert [need.needed_by[2].later for need in (needs[0], needs[-1])] == [99_990, 0]


def test_the_time_of_a_first_ledger_has_no_start_and_that_of_an_open_one_no_end() -> None:
    assert (need_of(1).after_ms, need_of(1).until_ms) == (None, 1_000)
    last = need_of(4)
    assert (last.after_ms, last.until_ms, last.entries, last.is_last, last.next_id) == (3_000, None, 3, True, None)


def test_what_a_list_does_not_contain_is_unknown_and_not_zero() -> None:
    need = need_of(2, at(1, 5), ledgers=(listed(1), ListedLedger(2, Place.MISSING, 0, 0, 0)))
    assert (need.entries, need.length, need.until_ms) == (None, None, None)
    assert need.needed_by == (NeededBy(subscription="billing", unread=None, later=0),)


def test_a_closed_ledger_without_entries_is_known_to_be_empty() -> None:
    need = need_of(2, ledgers=(listed(1), ListedLedger(2, Place.MISSING, 0, 0, 5), listed(3)))
    assert (need.entries, need.length) == (0, 0)


@pytest.mark.parametrize(
    ("cursor", "unread", "later"),
    [
        pytest.param(at(1, 3), 10, 13, id="before the ledger"),
        pytest.param(at(1, 9), 10, 13, id="at the end of the ledger before"),
        pytest.param(at(2, -1), 10, 13, id="before its first entry"),
        pytest.param(at(2, 8), 1, 13, id="at its last entry but one"),
        pytest.param(
            at(1, 3, AcknowledgedRange((2, 2), (2, 5))), 7, 13, id="three of its entries acknowledged one by one"
        ),
        pytest.param(
            at(1, 3, AcknowledgedRange((2, 4), (3, 4))), 5, 8, id="acknowledged from the ledger into the next"
        ),
    ],
)
def test_a_cursor_that_has_not_acknowledged_all_of_the_ledger_needs_it(cursor: Cursor, unread: int, later: int) -> None:
    assert need_of(2, cursor).needed_by == (NeededBy(subscription="billing", unread=unread, later=later),)


@pytest.mark.parametrize("position", [(2, 9), (3, 0), (4, 2)], ids=["its last entry", "the next", "the end"])
def test_a_cursor_after_the_ledger_does_not_need_it(position: tuple[int, int]) -> None:
    assert need_of(2, at(*position)).needed_by == ()


def test_a_cursor_whose_position_is_unknown_may_need_it() -> None:
    need = need_of(2, at(3, 0, known=False))
    assert need.needed_by == (NeededBy(subscription="billing", unread=None, later=None, is_exact=False),)
