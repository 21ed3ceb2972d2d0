"""The split of a topic's list, compared with a naive model that follows the rules ledger by ledger."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import DAY_MS, NOW_MS
from udfs.formats.managed_ledger import AcknowledgedRange
from udfs.phase_one.trim_forecast import Retention
from udfs.space.causes import Cause
from udfs.space.space_report import Subscription
from udfs.space.topic_split import Cursor, CursorHold, ListedLedger, Place, StoredTopic, divide
from udfs.units import MIB, MINUTE_MS

TOPIC = "persistent://public/default/orders"
FOREVER, NONE = Retention(-1, -1), Retention(0, 0)


def ledger(
    ledger_id: int, place: Place = Place.BOOKKEEPER, *, length: int = 1_000, age_ms: int = DAY_MS
) -> ListedLedger:
    stored = 2 * length if place is Place.BOOKKEEPER else 0
    return ListedLedger(ledger_id, place, length, 10, NOW_MS - age_ms, stored=stored)


def facts(
    ledgers: Sequence[ListedLedger], cursors: Sequence[Cursor] = (), *, is_loaded: bool | None = False
) -> StoredTopic:
    return StoredTopic(
        topic=TOPIC, namespace="public/default", is_loaded=is_loaded, ledgers=ledgers, cursors=cursors, detail="stale"
    )


def causes(topic: StoredTopic, retention: Retention | str = NONE) -> dict[Cause, int]:
    divided = divide(topic, CursorHold(topic), retention, now_ms=NOW_MS)
    sums: dict[Cause, int] = {}
    for share in divided.shares:
        sums[share.cause] = sums.get(share.cause, 0) + share.one_copy
    return sums


def subscriptions(topic: StoredTopic, retention: Retention | str = NONE) -> dict[str, Subscription]:
    divided = divide(topic, CursorHold(topic), retention, now_ms=NOW_MS)
    return {each.name: each for each in divided.subscriptions}


def test_a_cursor_that_read_a_whole_ledger_holds_the_next() -> None:
    ledgers = [ledger(1), ledger(5), ledger(9)]
    for position, held in [
        ((1, 8), 1),
        ((1, 9), 5),
        ((1, 12), 5),
        ((3, -1), 3),
        ((9, 9), 9),
        ((12, 0), 9),
        ((-1, -1), -1),
    ]:
        topic = facts(ledgers, [Cursor(name="s", position=position)])
        assert CursorHold(topic).consumed_end == held, position


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        pytest.param(NONE, 0, id="none"),
        pytest.param(FOREVER, 4, id="forever"),
        pytest.param(Retention(60, -1), 2, id="by time"),
        pytest.param(Retention(-1, 3), 2, id="by size"),
        pytest.param(Retention(60, 2), 1, id="either one deletes"),
        pytest.param(Retention(-1, 0), 0, id="no size"),
        pytest.param(Retention(0, -1), 0, id="no time"),
        pytest.param(Retention(3 * 24 * 60, -1), 4, id="nothing has expired"),
    ],
)
def test_retention(retention: Retention, kept: int) -> None:
    """Four consumed ledgers of 1 MiB, two of them older than an hour, and an open one of 1 MiB."""
    ages = [2 * DAY_MS, DAY_MS, MINUTE_MS, MINUTE_MS, 0]
    ledgers = [ledger(number, length=MIB, age_ms=age) for number, age in enumerate(ages)]
    found = causes(facts(ledgers), retention)
    assert found.get(Cause.RETENTION, 0) == kept * MIB
    assert found.get(Cause.TRIMMABLE, 0) == (4 - kept) * MIB


def test_the_walk_stops_at_the_first_ledger_that_stays() -> None:
    ages = [2 * DAY_MS, MINUTE_MS, 2 * DAY_MS, 0]
    ledgers = [ledger(number, age_ms=age) for number, age in enumerate(ages)]
    assert causes(facts(ledgers), Retention(60, -1)) == {
        Cause.TRIMMABLE: 1_000,
        Cause.RETENTION: 2_000,
        Cause.OPEN_IDLE: 1_000,
    }


def test_tiered_ledgers_count_for_the_size() -> None:
    ledgers = [ledger(1, Place.TIERED_ONLY, length=MIB), ledger(2, length=MIB), ledger(3, length=MIB)]
    assert causes(facts(ledgers), Retention(-1, 2))[Cause.RETENTION] == MIB
    assert Cause.RETENTION not in causes(facts(ledgers), Retention(-1, 1))


def test_only_the_slowest_subscription_frees_ledgers() -> None:
    ledgers = [ledger(1), ledger(2), ledger(3), ledger(4)]
    cursors = [Cursor(name="slow", position=(1, 2)), Cursor(name="fast", position=(3, -1))]
    found = subscriptions(facts(ledgers, cursors))
    assert {name: each.frees for name, each in found.items()} == {"slow": 2_000, "fast": 0}
    assert {name: each.backlog for name, each in found.items()} == {"slow": 3_700, "fast": 2_000}
    assert {each.frees for each in subscriptions(facts(ledgers, cursors), FOREVER).values()} == {0}
    both = [Cursor(name="a", position=(1, 2)), Cursor(name="b", position=(1, 2))]
    assert {each.frees for each in subscriptions(facts(ledgers, both)).values()} == {0}


def test_what_could_be_trimmed_already_is_not_freed_by_a_subscription() -> None:
    ledgers = [ledger(1), ledger(2), ledger(3)]
    (only,) = subscriptions(facts(ledgers, [Cursor(name="s", position=(2, 0))])).values()
    assert only.frees == 1_000


def test_a_cursor_of_unknown_position_makes_nothing_free_and_nothing_trimmable() -> None:
    ledgers = [ledger(1), ledger(2), ledger(3)]
    cursors = [Cursor(name="stale", position=(1, 9), is_known=False), Cursor(name="exact", position=(2, -1))]
    found = subscriptions(facts(ledgers, cursors))
    assert {each.frees for each in found.values()} == {None}
    cursors[1] = Cursor(name="exact", position=(3, -1))
    topic = facts(ledgers, cursors)
    assert causes(topic) == {Cause.TRIMMABLE: 1_000, Cause.HELD_OR_RETAINED: 1_000, Cause.OPEN_IDLE: 1_000}
    (unknown,) = divide(topic, CursorHold(topic), NONE, now_ms=NOW_MS).unknown
    assert (unknown.detail, unknown.at_least, unknown.at_most) == ("stale", 0, 1_000)


def test_ranges_over_several_ledgers_and_before_the_position() -> None:
    ledgers = [ledger(1), ledger(2), ledger(3), ledger(4)]
    acknowledged = [
        AcknowledgedRange((1, 2), (1, 6)),
        AcknowledgedRange((1, 8), (3, 4)),
        AcknowledgedRange((9, 0), (9, 4)),
    ]
    topic = facts(ledgers, [Cursor(name="s", position=(1, 4), acknowledged=acknowledged)])
    assert causes(topic) == {
        Cause.PARTLY_READ: 500,
        Cause.ACKNOWLEDGED_BEHIND_GAP: 200 + 100 + 1_000 + 500,
        Cause.BACKLOG: 200 + 500,
        Cause.OPEN_IDLE: 1_000,
    }


PLACES = st.sampled_from([Place.BOOKKEEPER] * 5 + [Place.MISSING, Place.TIERED_ONLY, Place.UNCOUNTED])


@st.composite
def topics(draw: st.DrawFn) -> StoredTopic:
    ids = sorted(draw(st.sets(st.integers(0, 12), max_size=7)))
    ledgers = []
    for ledger_id in ids:
        place, length = draw(PLACES), draw(st.integers(0, 3 * MIB))
        entries = draw(st.integers(0, 4)) if length else 0
        stored = length * 2 + entries * 80 if place is Place.BOOKKEEPER else 0
        is_offloaded = place is Place.BOOKKEEPER and ledger_id != ids[-1] and draw(st.booleans())
        closed_ms = NOW_MS - draw(st.integers(0, 3)) * MINUTE_MS
        ledgers.append(ListedLedger(ledger_id, place, length, entries, closed_ms, stored, is_offloaded))
    names = draw(st.sets(st.sampled_from("abcd"), max_size=3))
    positions = st.tuples(st.integers(-1, 13), st.integers(-1, 4))
    cursors = [
        Cursor(
            name=name,
            position=draw(positions),
            is_known=draw(st.sampled_from([True, True, False])),
            is_of_broker=name == "a",
        )
        for name in sorted(names)
    ]
    return facts(ledgers, cursors, is_loaded=draw(st.sampled_from([True, False, None])))


RETENTIONS = st.builds(Retention, st.sampled_from([-1, 0, 1, 2]), st.sampled_from([-1, 0, 1, 4, 9]))


def naive_cause(topic: StoredTopic, at: int, retention: Retention) -> Cause:
    """Return the cause that has most of a ledger, by the text of the rules."""
    if at == len(topic.ledgers) - 1:
        return {True: Cause.OPEN_ACTIVE, False: Cause.OPEN_IDLE, None: Cause.HELD_OR_RETAINED}[topic.is_loaded]
    if topic.ledgers[at].is_offloaded:
        return Cause.OFFLOADED_AND_KEPT
    holders = [cursor for cursor in topic.cursors if is_held(topic.ledgers[at], cursor)]
    if any(each.is_known and not each.is_of_broker for each in holders):
        return Cause.BACKLOG
    if any(not each.is_known for each in holders):
        return Cause.HELD_OR_RETAINED
    if holders:
        return Cause.BROKER_CURSOR
    return Cause.RETENTION if is_retained(topic.ledgers, at, retention) else Cause.TRIMMABLE


def is_held(ledger: ListedLedger, cursor: Cursor) -> bool:
    at, entry = cursor.position
    return ledger.ledger_id > at or (ledger.ledger_id == at and ledger.entries > entry + 1)


def is_retained(ledgers: Sequence[ListedLedger], at: int, retention: Retention) -> bool:
    total = sum(each.length for each in ledgers)
    for end in range(1, at + 2):
        left = total - sum(each.length for each in ledgers[:end])
        has_expired = retention.minutes != -1 and NOW_MS - ledgers[end - 1].closed_ms > retention.minutes * MINUTE_MS
        if not has_expired and (retention.megabytes == -1 or left < retention.megabytes * MIB):
            return True
    return False


@settings(max_examples=500, deadline=None)
@given(topic=topics(), retention=RETENTIONS)
def test_the_split_agrees_with_the_rules_and_counts_every_byte_once(topic: StoredTopic, retention: Retention) -> None:
    expected: dict[Cause, int] = {}
    for at, each in enumerate(topic.ledgers):
        found = []
        if each.place is Place.MISSING:
            found.append(Cause.MISSING)
        if each.place is Place.TIERED_ONLY or each.is_offloaded:
            found.append(Cause.TIERED)
        if each.place is Place.BOOKKEEPER:
            found.append(naive_cause(topic, at, retention))
        for cause in found:
            expected[cause] = expected.get(cause, 0) + each.length
    divided = divide(topic, CursorHold(topic), retention, now_ms=NOW_MS)
    actual: dict[Cause, int] = {}
    for share in divided.shares:
        cause = Cause.BACKLOG if share.cause is Cause.PARTLY_READ else share.cause
        actual[cause] = actual.get(cause, 0) + share.one_copy
    assert actual == expected
    stored = [each for each in topic.ledgers if each.place is Place.BOOKKEEPER]
    beside = (Cause.MISSING, Cause.TIERED)
    assert sum(share.one_copy for share in divided.shares if share.cause not in beside) == sum(e.length for e in stored)
    assert sum(share.stored for share in divided.shares) == sum(each.stored for each in stored)
    if any(not cursor.is_known for cursor in topic.cursors):
        assert all(each.frees is None for each in divided.subscriptions)


@settings(max_examples=300, deadline=None)
@given(topic=topics(), retention=RETENTIONS)
def test_what_a_subscription_frees_is_what_becomes_trimmable_without_it(
    topic: StoredTopic, retention: Retention
) -> None:
    known = [Cursor(name=each.name, position=each.position) for each in topic.cursors]
    before = facts(topic.ledgers, known)
    now = causes(before, retention).get(Cause.TRIMMABLE, 0)
    for name, found in subscriptions(before, retention).items():
        moved = facts(topic.ledgers, [each for each in known if each.name != name])
        # an offloaded ledger has a cause of its own, and a broker drops it like any other
        plain = [each._replace(is_offloaded=False) for each in topic.ledgers]
        after = causes(facts(plain, moved.cursors), retention).get(Cause.TRIMMABLE, 0)
        assert found.frees == after - causes(facts(plain, known), retention).get(Cause.TRIMMABLE, 0)
    assert now >= 0


@settings(max_examples=200, deadline=None)
@given(topic=topics(), retention=RETENTIONS)
def test_retention_is_needed_wherever_it_changes_a_result(topic: StoredTopic, retention: Retention) -> None:
    hold = CursorHold(topic)
    if not hold.needs_retention:
        without, with_it = (divide(topic, hold, each, now_ms=NOW_MS) for each in ("not read", retention))
        assert without == with_it
