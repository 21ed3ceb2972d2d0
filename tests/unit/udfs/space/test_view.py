"""Filters, and sums that agree in every view."""

from dataclasses import replace

import pytest

from tests.unit.space.reports import (
    AT_MS,
    BOOKIES,
    CARTS,
    CARTS_0,
    CLICKS,
    EMPTY,
    LOGS,
    MIB,
    REPORT,
    SHARES,
    SUBSCRIPTIONS,
    share,
)
from udfs.space.causes import Cause
from udfs.space.space_report import BookieSpace
from udfs.space.view import (
    Filters,
    View,
    added,
    disks_of,
    idle_longest,
    largest_subscriptions,
    partitioned_name,
    rows_by,
    selected,
    total,
)

VIEWS = [View.CAUSE, View.TENANT, View.NAMESPACE, View.TOPIC]
FILTERS = [
    pytest.param(Filters(), 13, 5, id="all"),
    pytest.param(Filters(tenant="shop"), 9, 3, id="tenant"),
    pytest.param(Filters(namespace="shop/prod"), 5, 3, id="namespace"),
    pytest.param(Filters(topic=CARTS), 4, 3, id="partitioned topic"),
    pytest.param(Filters(topic=CARTS_0), 2, 2, id="partition"),
    pytest.param(Filters(topic=LOGS, tenant="ops"), 3, 2, id="topic"),
    pytest.param(Filters(tenant="sho"), 0, 0, id="no tenant"),
    pytest.param(Filters(topic="persistent://shop/prod/cart"), 0, 0, id="no topic"),
]


@pytest.mark.parametrize(("filters", "shares", "subscriptions"), FILTERS)
def test_filters_apply_to_rows_and_totals(filters: Filters, shares: int, subscriptions: int) -> None:
    report = selected(REPORT, filters)
    assert (len(report.shares), len(report.subscriptions)) == (shares, subscriptions)
    assert report.bookies == BOOKIES
    for view in VIEWS:
        rows = rows_by(view, report.shares)
        assert added(row.amount for row in rows) == total(report.shares)
        assert all(sum(row.causes.values()) == row.amount.stored for row in rows)


def test_policies_are_filtered_too() -> None:
    assert set(selected(REPORT, Filters(tenant="shop")).policies) == {CLICKS}


def test_rows_are_sorted_by_stored_bytes() -> None:
    stored = [row.amount.stored for row in rows_by(View.TOPIC, SHARES)]
    assert stored == sorted(stored, reverse=True)
    assert rows_by(View.CAUSE, SHARES)[0].largest_cause is Cause.BACKLOG


def test_a_total_separates_what_is_not_on_bookies() -> None:
    amount = total(SHARES)
    assert (amount.tiered, amount.missing) == (50 * MIB, 4 * MIB)
    assert amount.in_bookkeeper == amount.one_copy - 54 * MIB
    assert amount.stored == 2 * amount.in_bookkeeper
    assert not amount.is_exact
    assert total(EMPTY.shares) == added([])


def test_shares_without_a_topic_are_one_row() -> None:
    (row,) = [row for row in rows_by(View.TOPIC, SHARES) if not row.name]
    assert row.amount.ledgers == 9
    assert {row.name for row in rows_by(View.TENANT, SHARES)} == {"shop", "ops", ""}


def test_names_that_no_topic_can_have_are_left_alone() -> None:
    odd = share(Cause.BACKLOG, "persistent://a/b/c/../d\n", namespace="a/b")
    assert partitioned_name("nonsense") == "nonsense"
    assert selected(replace(REPORT, shares=(odd,)), Filters(tenant="a")).shares == (odd,)
    assert selected(replace(REPORT, shares=(odd,)), Filters(topic=CARTS)).shares == ()


def test_the_subscription_that_frees_the_most_is_first_and_those_without_backlog_are_left_out() -> None:
    names = [(row.topic, row.name) for row in largest_subscriptions(SUBSCRIPTIONS)]
    assert names[0] == (CARTS_0, "billing")
    assert (LOGS, "done") not in names


def test_the_subscription_idle_longest_has_no_consumer_and_is_not_the_brokers_own() -> None:
    idle = idle_longest(SUBSCRIPTIONS)
    assert idle is SUBSCRIPTIONS[0]
    assert idle_longest([replace(SUBSCRIPTIONS[0], is_connected=True), replace(SUBSCRIPTIONS[0], backlog=0)]) is None
    older = replace(SUBSCRIPTIONS[0], last_active_ms=AT_MS - 10**10, is_connected=None)
    assert idle_longest([*SUBSCRIPTIONS, older]) is older
    assert idle_longest([SUBSCRIPTIONS[0], SUBSCRIPTIONS[0]]) is SUBSCRIPTIONS[0], "a tie"


def test_disks_are_compared_only_with_bookies_that_answered() -> None:
    disks = disks_of(BOOKIES)
    assert (disks.bookies, disks.live_bookies, disks.disk_bookies) == (3, 1, 1)
    assert (disks.live_reported - disks.live_expected, disks.disk_used) == (-2 * MIB, 700 * MIB)
    assert (disks_of([]).live_bookies, disks_of(BOOKIES[1:]).disk_bookies) == (0, 0)


def test_bookies_of_one_host_share_a_file_system_of_the_same_size() -> None:
    def bookie(name: str, size: int) -> BookieSpace:
        return BookieSpace(bookie_id=name, ledgers=0, live=MIB, disk_total=size, disk_free=1)

    disks = disks_of([bookie("a:1", 100), bookie("a:2", 100), bookie("a:3", 200), bookie("b:1", 100)])
    assert (disks.disk_bookies, disks.shared, disks.disk_used) == (4, 1, 99 + 199 + 99)
