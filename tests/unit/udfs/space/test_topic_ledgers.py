"""What ZooKeeper, BookKeeper and brokers know of a topic, united."""

import pytest

from tests.builders import NOW_MS, cursor_znode, list_znode, metadata, offloaded
from udfs.formats.internal_stats import InternalStats
from udfs.formats.ledger_metadata import PlacedLedger
from udfs.formats.managed_ledger import ManagedCursorInfo, serialize_cursor
from udfs.space.ledger_table import LedgerTable, TableBuilder
from udfs.space.topic_ledgers import compacted_ids, confirmed, is_current, listed_ledgers, needed_ids, read_cursor
from udfs.space.topic_split import Place


def table(*ledger_ids: int) -> LedgerTable:
    builder = TableBuilder()
    for ledger_id in ledger_ids:
        builder.add(ledger_id, PlacedLedger(metadata(), 1, 4, ((0, ("a",)),), 1), NOW_MS)
    return builder.build()


def stats(*ledger_ids: int, **changes: object) -> InternalStats:
    return InternalStats(
        ledgers=tuple((each, 10) for each in ledger_ids),
        cursors={},
        pending_adds=0,
        **changes,  # type: ignore[arg-type]
    )


def test_ledgers_of_the_list_and_of_the_broker() -> None:
    found = listed_ledgers(list_znode(9, offloaded(1), 5, 7), stats(5, 7, 9, 11), table(5, 9, 11, 40), {7})
    assert [(each.ledger_id, each.place) for each in found] == [
        (1, Place.TIERED_ONLY),
        (5, Place.BOOKKEEPER),
        (7, Place.UNCOUNTED),
        (9, Place.BOOKKEEPER),
        (11, Place.BOOKKEEPER),
    ]


def test_a_ledger_that_is_listed_twice_is_in_bookkeeper_if_either_entry_says_so() -> None:
    for twice in ((offloaded(1), 1), (1, offloaded(1))):
        (found, _newest) = listed_ledgers(list_znode(*twice, 2), None, table(1, 2), set())
        assert found.place is Place.BOOKKEEPER
        assert needed_ids(list_znode(*twice, 2)) == {1, 2}


def test_a_second_list_claims_no_ledger_again() -> None:
    all_ledgers = table(1)
    assert [each.place for each in listed_ledgers(list_znode(1), None, all_ledgers, set())] == [Place.BOOKKEEPER]
    assert [each.place for each in listed_ledgers(list_znode(1), None, all_ledgers, set())] == [Place.UNCOUNTED]


def test_only_what_is_still_listed_and_absent_is_missing() -> None:
    ledgers = listed_ledgers(list_znode(1, 2, 3, 4), None, table(4), set())
    found = confirmed(ledgers, existing={1}, still_listed={1, 2, 4})
    assert [(each.ledger_id, each.place) for each in found] == [
        (1, Place.UNCOUNTED),
        (2, Place.MISSING),
        (4, Place.BOOKKEEPER),
    ]


@pytest.mark.parametrize(("known", "expected"), [((1, 2), True), ((1,), False), ((1, 2, 3), True)])
def test_a_broker_that_does_not_know_the_newest_ledger_is_old(known: tuple[int, ...], expected: bool) -> None:
    assert is_current(stats(*known), list_znode(1, 2)) is expected


@pytest.mark.parametrize(
    ("ledger", "position", "is_known"), [(-1, (3, 4), True), (8, (3, 4), False), (-1, (-1, -1), False)]
)
def test_a_znode_is_exact_only_without_a_cursor_ledger(ledger: int, position: tuple[int, int], is_known: bool) -> None:
    info = ManagedCursorInfo(
        cursors_ledger_id=ledger, mark_delete_ledger_id=position[0], mark_delete_entry_id=position[1]
    )
    read = read_cursor("a+b", serialize_cursor(info), None)
    assert (read.cursor.name, read.cursor.position, read.cursor.is_known) == ("a b", position, is_known)
    assert read.cursor.last_active_ms is None
    # a broker that has not opened the cursor yet knows no more
    assert read_cursor("a+b", serialize_cursor(info), stats(1)).cursor.is_known is is_known


def test_a_bucket_that_names_no_ledger_is_a_fault() -> None:
    """Any subscriber can write such a property."""
    properties = {"#pulsar.internal.delayed.bucket_0_1": "5", "#pulsar.internal.delayed.bucket_2_3": "x", "mine": "y"}
    read = read_cursor(
        "s", serialize_cursor(ManagedCursorInfo(cursors_ledger_id=-1, cursor_properties=properties)), None
    )
    assert read.buckets == (5,)
    assert "no ledger id" in read.fault


@pytest.mark.parametrize(
    ("ledger", "answer", "expected"),
    [
        pytest.param(-1, None, {7}, id="closed"),
        pytest.param(8, None, None, id="in its ledger"),
        pytest.param(8, stats(1), None, id="not opened yet"),
        pytest.param(8, stats(1, compacted=(9, 3), compacted_by_cursor=9), None, id="not opened yet, of an old broker"),
    ],
)
def test_compacted_ledgers(ledger: int, answer: InternalStats | None, expected: set[int] | None) -> None:
    cursors = {"__compaction": cursor_znode(ledger, properties={"CompactedTopicLedger": 7})}
    assert compacted_ids(cursors, answer) == expected
    assert compacted_ids({}, answer) == set()


def test_a_broker_names_all_compacted_ledgers_in_use() -> None:
    answer = InternalStats(
        ledgers=((1, 10),), cursors={"__compaction": (1, 2)}, pending_adds=0, compacted=(9, 3), compacted_by_cursor=10
    )
    cursors = {"__compaction": cursor_znode(8, properties={"CompactedTopicLedger": 7})}
    assert compacted_ids(cursors, answer) == {7, 9, 10}
    assert compacted_ids({"__compaction": b"\xff"}, answer) is None
