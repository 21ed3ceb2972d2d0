"""The ledgers that a broker is about to drop, on both sides of each boundary; and what a changed znode reveals."""

import pytest

from tests.builders import CURSOR, MINUTE_MS, NOW_MS, SCHEMA, TOPIC, UUID, locator_znode
from udfs.formats.internal_stats import Position
from udfs.formats.managed_ledger import (
    LedgerInfo,
    ManagedCursorInfo,
    ManagedLedgerInfo,
    OffloadState,
    serialize_cursor,
    serialize_managed_ledger,
)
from udfs.paths import cursor_path, managed_ledger_path, schema_path
from udfs.phase_one.marks import MarkedTopic, Marks
from udfs.phase_one.trim_forecast import (
    Outlook,
    Retention,
    Sign,
    about_to_drop,
    has_unmarked,
    marks_for,
    no_longer_listed,
    sign_of,
)
from udfs.phase_one.vanished_names import kind_of, names_in

MIB = 1024 * 1024
AHEAD_MS = 3 * MINUTE_MS
HOUR = Retention(60, -1)
OLD_MS = NOW_MS - 100 * MINUTE_MS
OFFLOAD = OffloadState(uuid=UUID, complete=True, driver_name="aws-s3", driver_properties={"bucket": "b"})
FREED = OffloadState(uuid=UUID, complete=True, bookkeeper_deleted=True, driver_name="aws-s3")


def closed(ledger_id: int, at_ms: int = OLD_MS, size_bytes: int = MIB) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, entries=10, size_bytes=size_bytes, timestamp_ms=at_ms)


def outlook(
    *ledgers: LedgerInfo, cursors: tuple[Position, ...] = (), retention: Retention = HOUR, open_bytes: int = 0
) -> Outlook:
    """Return the outlook of closed ledgers that an open ledger follows."""
    newest = LedgerInfo(ledger_id=99)
    return about_to_drop([*ledgers, newest], open_bytes, cursors, retention, now_ms=NOW_MS, ahead_ms=AHEAD_MS)


@pytest.mark.parametrize(
    ("age_ms", "ids"),
    [
        pytest.param(57 * MINUTE_MS, (), id="three minutes before its end it stays"),
        pytest.param(57 * MINUTE_MS + 1, (1,), id="later than that it is about to go"),
        pytest.param(90 * MINUTE_MS, (1,), id="after its end, too"),
    ],
)
def test_by_time_a_ledger_is_about_to_go_shortly_before_its_retention_ends(age_ms: int, ids: tuple[int, ...]) -> None:
    assert outlook(closed(1, NOW_MS - age_ms)).ids == ids


def test_the_prediction_of_the_next_drop_is_exact() -> None:
    predicted = outlook(closed(1), closed(2, NOW_MS - 10 * MINUTE_MS), closed(3))
    assert predicted == Outlook((1,), NOW_MS + 47 * MINUTE_MS + 1)  # the broker stops at the first ledger that stays
    assert predicted.next_ms is not None
    ledgers = [closed(2, NOW_MS - 10 * MINUTE_MS), LedgerInfo(ledger_id=99)]
    for at_ms, ids in ((predicted.next_ms - 1, ()), (predicted.next_ms, (2,))):
        assert about_to_drop(ledgers, 0, (), HOUR, now_ms=at_ms, ahead_ms=AHEAD_MS).ids == ids


@pytest.mark.parametrize(
    ("cursors", "ids"),
    [
        pytest.param((), (1, 2), id="no cursor has to read it"),
        pytest.param(((99, -1),), (1, 2), id="everything was read"),
        pytest.param(((2, 9),), (1, 2), id="the last entry of a ledger was read"),
        pytest.param(((2, 8),), (1,), id="one entry of it was not"),
        pytest.param(((2, -1),), (1,), id="nothing of it was"),
        pytest.param(((1, 8),), (), id="nor was the oldest one's last"),
        pytest.param(((99, 5), (1, 9)), (1,), id="the slowest cursor counts"),
        pytest.param(((0, 9),), (), id="a cursor was set back before everything"),
    ],
)
def test_only_a_ledger_that_every_cursor_is_past_is_about_to_go(
    cursors: tuple[Position, ...], ids: tuple[int, ...]
) -> None:
    assert outlook(closed(1), closed(2), cursors=cursors).ids == ids


def test_a_ledger_with_unknown_entries_is_past_only_for_cursors_in_later_ledgers() -> None:
    crashed = LedgerInfo(ledger_id=2, entries=None, size_bytes=0, timestamp_ms=OLD_MS)
    assert outlook(closed(1), crashed, cursors=((2, 9),)).ids == (1,)
    assert outlook(closed(1), crashed, cursors=((3, -1),)).ids == (1, 2)


@pytest.mark.parametrize(
    ("megabytes", "open_bytes", "ids"),
    [
        # three closed ledgers of 1 MiB, and another as large as the largest
        pytest.param(4, 0, (), id="with one more ledger it has four MiB: none may go"),
        pytest.param(3, 0, (1,), id="one ledger is too many then"),
        pytest.param(3, 1, (1,), id="a byte in the open one changes nothing"),
        pytest.param(4, MIB, (1,), id="a full open one makes it five"),
        pytest.param(4, MIB - 1, (), id="one byte less does not"),
        pytest.param(1, 0, (1, 2, 3), id="all but the size of another ledger"),
    ],
)
def test_by_size_a_ledger_is_about_to_go_if_one_more_makes_the_topic_too_large(
    megabytes: int, open_bytes: int, ids: tuple[int, ...]
) -> None:
    predicted = outlook(closed(1), closed(2), closed(3), retention=Retention(-1, megabytes), open_bytes=open_bytes)
    assert predicted == Outlook(ids)


def test_either_limit_is_enough() -> None:
    young = NOW_MS - MINUTE_MS
    both = Retention(60, 2)
    assert outlook(closed(1, young), closed(2, young), retention=both).ids == (1,)
    assert outlook(closed(1), retention=Retention(60, 100)).ids == (1,)
    assert outlook(closed(1), closed(2), retention=Retention(-1, -1)) == Outlook()


@pytest.mark.parametrize("retention", [Retention(0, 0), Retention(0, 5), Retention(5, 0)])
def test_without_retention_nothing_can_be_marked_before_it_goes(retention: Retention) -> None:
    assert outlook(closed(1), closed(2), retention=retention) == Outlook()
    assert retention.is_none


def test_the_newest_ledger_stays_at_any_age() -> None:
    for ledgers in ([], [closed(1)]):
        assert about_to_drop(ledgers, 0, (), HOUR, now_ms=NOW_MS, ahead_ms=AHEAD_MS) == Outlook()
    both = [closed(2), closed(1)]
    assert about_to_drop(both, 0, (), HOUR, now_ms=NOW_MS, ahead_ms=AHEAD_MS).ids == (1,)


def test_an_offloaded_ledger_is_marked_with_its_upload() -> None:
    info = ManagedLedgerInfo(
        (
            LedgerInfo(ledger_id=1, entries=10, offload=OFFLOAD),
            LedgerInfo(ledger_id=2, entries=10, offload=FREED),
            LedgerInfo(ledger_id=3, entries=10),
        )
    )
    marks = marks_for(info, (1, 2))
    assert marks.ledgers == {1}, "the copy in BookKeeper of the second is not the list's any more"
    assert set(marks.uploads) == {(1, UUID), (2, UUID)}
    assert marks_for(info, ()) == Marks()


def test_ledgers_that_are_marked_already_need_no_question() -> None:
    info = ManagedLedgerInfo(
        (
            LedgerInfo(ledger_id=1, entries=10, offload=OFFLOAD),
            LedgerInfo(ledger_id=2, entries=10),
            LedgerInfo(ledger_id=3),
        )
    )
    assert has_unmarked(info, Marks())
    assert has_unmarked(info, Marks(frozenset({1, 2})))
    assert not has_unmarked(info, marks_for(info, (1, 2)))
    assert not has_unmarked(ManagedLedgerInfo((LedgerInfo(ledger_id=3),)), Marks())


def test_only_marks_of_ledgers_that_are_no_longer_listed_are_processed() -> None:
    uploads = marks_for(ManagedLedgerInfo((LedgerInfo(ledger_id=1, entries=10, offload=OFFLOAD),)), (1,)).uploads
    marked = MarkedTopic({"a": Marks(frozenset({1})), "b": Marks(frozenset(), uploads)})
    assert not no_longer_listed(marked, [1, 2], [(1, UUID)])
    assert no_longer_listed(marked, [2], [(1, UUID)])
    assert no_longer_listed(marked, [1, 2], [])
    assert not no_longer_listed(MarkedTopic({}), [], [])


def topic(*ledgers: int) -> bytes:
    return serialize_managed_ledger(
        ManagedLedgerInfo(tuple(LedgerInfo(ledger_id=ledger_id, entries=10) for ledger_id in ledgers))
    )


def cursor(ledger_id: int) -> bytes:
    return serialize_cursor(ManagedCursorInfo(cursors_ledger_id=ledger_id))


TOPIC_AT, CURSOR_AT, SCHEMA_AT = managed_ledger_path(TOPIC), cursor_path(TOPIC, CURSOR), schema_path(SCHEMA)


@pytest.mark.parametrize(
    ("path", "before", "after", "sign"),
    [
        pytest.param(TOPIC_AT, topic(1), topic(1, 2), Sign.LOADED, id="a ledger was started"),
        pytest.param(TOPIC_AT, topic(1, 2), topic(2), Sign.LOADED, id="one was dropped"),
        pytest.param(TOPIC_AT, topic(1, 2), topic(1, 2), None, id="properties change no name"),
        pytest.param(CURSOR_AT, cursor(5), cursor(6), Sign.LOADED, id="a cursor took a new ledger"),
        pytest.param(CURSOR_AT, cursor(-1), cursor(6), Sign.LOADED, id="a cursor started a ledger"),
        pytest.param(CURSOR_AT, cursor(5), cursor(-1), Sign.CLOSED, id="a cursor gave its ledger up"),
        pytest.param(CURSOR_AT, cursor(-1), cursor(-1), None, id="a cursor without a ledger"),
        pytest.param(SCHEMA_AT, locator_znode(1), locator_znode(2), None, id="schemas reveal nothing"),
    ],
)
def test_a_changed_znode_reveals_whether_the_topic_is_loaded(
    path: str, before: bytes, after: bytes, sign: Sign | None
) -> None:
    kind = kind_of(path)
    assert kind is not None
    assert sign_of(kind, names_in(path, before), names_in(path, after)) is sign
