"""The backlog counted from internalStats: both ends of each ledger, and no conclusion from an unknown form."""

from typing import Any

import pytest

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Ensembles, InternalStats, parse_ensembles, parse_internal_stats, ranges_in


def _json(*entries: int, current: int = 0) -> dict[str, Any]:
    ledgers = [{"ledgerId": 10 + number, "entries": count} for number, count in enumerate(entries)]
    return {"ledgers": ledgers, "currentLedgerEntries": current, "cursors": {}, "pendingAddEntriesCount": 0}


def _stats(*entries: int, current: int = 0) -> InternalStats:
    return parse_internal_stats(_json(*entries, current=current))


@pytest.mark.parametrize(
    ("stats", "after", "expected"),
    [
        pytest.param(_stats(), (-1, -1), 0, id="a topic without ledgers"),
        pytest.param(_stats(0), (-1, -1), 0, id="an empty ledger"),
        pytest.param(_stats(0, current=5), (10, -1), 5, id="before the first entry"),
        pytest.param(_stats(0, current=5), (10, 3), 1, id="one left"),
        pytest.param(_stats(0, current=5), (10, 4), 0, id="after the last entry"),
        pytest.param(_stats(3, 4, 0, current=2), (10, 2), 6, id="at the end of an older ledger"),
        pytest.param(_stats(3, 4, 0, current=2), (10, 1), 7, id="within an older ledger"),
        pytest.param(_stats(3, 4, 0, current=2), (9, 7), 9, id="at a ledger that was trimmed"),
        pytest.param(_stats(3, 4, 0, current=2), (12, -1), 2, id="at the newest ledger's beginning"),
        pytest.param(_stats(3, 4, current=4), (10, 2), 4, id="the newest ledger is listed with its entries"),
    ],
)
def test_the_backlog_is_every_entry_after_the_position(
    stats: InternalStats, after: tuple[int, int], expected: int
) -> None:
    assert stats.entries_after(after) == expected


@pytest.mark.parametrize(
    ("confirmed", "entries"),
    [
        pytest.param("12:1", 2, id="two of three"),
        pytest.param("12:-1", 0, id="none"),
        pytest.param("11:3", 0, id="none since the ledger was opened"),
        pytest.param("12:2", 3, id="all"),
    ],
)
def test_entries_that_the_bookies_have_not_confirmed_are_not_stored(confirmed: str, entries: int) -> None:
    """Brokers count them. If a bookie fails, they get other positions, in the next ledger."""
    stats = parse_internal_stats(_json(3, 4, 0, current=3) | {"lastConfirmedEntry": confirmed})
    assert stats.ledgers == ((10, 3), (11, 4), (12, entries))


def test_without_a_subscription_every_entry_is_backlog() -> None:
    assert _stats(3).mark_deleted("ledger-reaper") == (-1, -1)
    assert not _stats(3).has_subscription("ledger-reaper")


@pytest.mark.parametrize(
    ("cursor", "subscription"), [("ledger-reaper", "ledger-reaper"), ("a+b%2Fc", "a b/c")], ids=["plain", "encoded"]
)
@pytest.mark.parametrize("text", ["10:1", "10:1 (ackSet with long[] size of 0)", "10:1 (ackSet is null)"])
def test_a_subscription_has_read_up_to_its_mark_delete_position(cursor: str, subscription: str, text: str) -> None:
    stats = parse_internal_stats(_json(3) | {"cursors": {cursor: {"markDeletePosition": text}}})
    assert stats.mark_deleted(subscription) == (10, 1)
    assert stats.has_subscription(subscription)


def test_pending_adds_are_reported() -> None:
    assert parse_internal_stats(_json(3) | {"pendingAddEntriesCount": 7}).pending_adds == 7


def test_the_size_of_the_ledger_being_written_is_in_a_field_of_its_own() -> None:
    listed = [{"ledgerId": 10, "entries": 3, "size": 50}, {"ledgerId": 11, "entries": 0, "size": 0}]
    stats = parse_internal_stats(_json(current=2) | {"ledgers": listed, "currentLedgerSize": 70})
    assert stats.sizes == {10: 50, 11: 70}
    assert parse_internal_stats(_json(3)).sizes == {10: 0}


@pytest.mark.parametrize(
    "stats",
    [
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
        pytest.param({}, id="nothing in it"),
        pytest.param(_json(3) | {"ledgers": None}, id="null ledgers"),
        pytest.param(_json(3) | {"ledgers": [{"ledgerId": 4}]}, id="ledger without entries"),
        pytest.param(_json(3) | {"ledgers": [{"ledgerId": "x", "entries": 1}]}, id="no number"),
        pytest.param(_json(3) | {"currentLedgerEntries": None}, id="null entries"),
        pytest.param(_json(3) | {"cursors": []}, id="cursors in a list"),
        pytest.param(_json(3) | {"cursors": {"s": {}}}, id="cursor without position"),
        pytest.param(_json(3) | {"cursors": {"s": {"markDeletePosition": "10"}}}, id="half a position"),
        pytest.param(_json(3) | {"cursors": {"s": {"markDeletePosition": None}}}, id="null position"),
        pytest.param({name: each for name, each in _json(3).items() if name != "pendingAddEntriesCount"}, id="no adds"),
    ],
)
def test_an_unknown_form_is_no_zero(stats: object) -> None:
    with pytest.raises(FormatError, match="unknown form"):
        parse_internal_stats(stats)


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", []),
        ("[]", []),
        ("[(3:5..3:9]]", [((3, 5), (3, 9))]),
        ("[(3:-1..3:9],(4:1..6:2]]", [((3, -1), (3, 9)), ((4, 1), (6, 2))]),
        ("[(3:5..3:9], [4:1..4:2], (5:0..5:4)]", [((3, 5), (3, 9)), ((4, 0), (4, 2)), ((5, 0), (5, 3))]),
    ],
)
def test_acknowledged_ranges(text: str, ranges: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    assert [tuple(each) for each in ranges_in(text)] == ranges


@pytest.mark.parametrize("text", ["3:5..3:9", "[(3..9]]", "[(3:5..3:9],...]", "{(3:5..3:9]}"])
def test_acknowledged_ranges_of_an_unknown_form(text: str) -> None:
    with pytest.raises(FormatError, match="unknown form"):
        ranges_in(text)


def test_cursors_that_are_read_and_their_acknowledged_ranges() -> None:
    cursors = {
        "idle": {"markDeletePosition": "10:1", "active": False, "individuallyDeletedMessages": "[]"},
        "active": {"markDeletePosition": "10:1", "active": True, "individuallyDeletedMessages": "[(10:2..10:3]]"},
        "waiting": {"markDeletePosition": "10:1", "subscriptionHavePendingRead": True},
    }
    stats = parse_internal_stats(_json(3) | {"cursors": cursors})
    assert stats.reading == {"active", "waiting"}
    assert stats.acknowledged == {"active": "[(10:2..10:3]]"}


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [({"properties": {"CompactedTopicLedger": 7}}, 7), ({"properties": {}}, -1), ({}, None), (None, -1)],
)
def test_the_compacted_ledger_of_the_cursor(cursor: dict[str, Any] | None, expected: int | None) -> None:
    cursors = {} if cursor is None else {"__compaction": cursor | {"markDeletePosition": "10:1"}}
    assert parse_internal_stats(_json(3) | {"cursors": cursors}).compacted_by_cursor == expected


def test_ensembles_are_read_from_the_metadata_of_ledgers() -> None:
    quorums = "LedgerMetadata{formatVersion=3, ensembleSize=3, writeQuorumSize=2, ackQuorumSize=2, "
    custom = "customMetadata={component=base64:bWFuYWdlZC1sZWRnZXI=, application=base64:cHVsc2Fy}}"
    texts = {
        1: f"{quorums}state=OPEN, password=OMITTED, ensembles={{0=[b1:3181, b2:3181, b3]}}, {custom}",
        2: f"{quorums}state=CLOSED, length=10, ensembles={{0=[a, b, c], 57=[a, b, d], 90=[x, y, z]}}, {custom}",
        3: f"{quorums}state=OPEN, ensembles={{}}, {custom}",
        4: f"{quorums}state=OPEN, ensembles={{7=[a, b, c]}}, {custom}",
        5: None,
        6: "ensembleSize=0, ensembles={0=[]}",
    }
    listed = [{"ledgerId": ledger, "entries": 1, "metadata": text} for ledger, text in texts.items()]
    assert parse_ensembles({"ledgers": listed}) == {1: Ensembles(3, (0,)), 2: Ensembles(3, (0, 57, 90))}
    of_other_forms: list[Any] = [
        {},
        [],
        None,
        {"ledgers": None},
        {"ledgers": ["1"]},
        {"ledgers": [{"metadata": texts[1]}]},
    ]
    for unknown in of_other_forms:
        assert parse_ensembles(unknown) == {}


def test_the_bookies_of_an_ensemble_take_turns() -> None:
    ensembles = Ensembles(3, (0, 5))
    assert [[*ensembles.siblings(entry, 12)] for entry in (0, 1, 4)] == [[0, 3], [1, 4], [1, 4]]
    assert [[*ensembles.siblings(entry, 12)] for entry in (5, 6, 7, 10)] == [[5, 8, 11], [6, 9], [7, 10], [7, 10]]
