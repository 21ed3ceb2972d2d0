"""Limits: each on both sides of its boundary, and the hour that they look back."""

from collections import Counter
from dataclasses import replace

import pytest

from streaming.adapters.memory import MemoryStore
from streaming.breaker import BlastRadius, Breaker, Plan
from streaming.clock import ManualClock
from udfs.blast_radius import HOUR_MS, Limits, Usage, exceeded

WIDE = Limits(
    per_batch=10**9,
    per_hour=10**9,
    per_hour_per_tenant=10**9,
    per_hour_per_owner=10**9,
    share_per_hour=1.0,
    share_applies_above=0,
)
A, B, OTHER = ("shop", "data:a"), ("shop", "data:b"), ("bank", "data:c")


@pytest.mark.parametrize(
    ("limits", "planned", "hour", "key"),
    [
        pytest.param(replace(WIDE, per_batch=10), {A: 10}, {}, None, id="batch: as many as allowed"),
        pytest.param(replace(WIDE, per_batch=10), {A: 11}, {}, "max_deletes_per_batch", id="batch: one more"),
        pytest.param(replace(WIDE, per_hour=10), {A: 4}, {B: 6}, None, id="hour: as many as allowed"),
        pytest.param(replace(WIDE, per_hour=10), {A: 5}, {B: 6}, "max_deletes_per_hour is", id="hour: one more"),
        pytest.param(replace(WIDE, per_hour_per_tenant=9), {A: 4}, {B: 5}, None, id="tenant: as many as allowed"),
        pytest.param(replace(WIDE, per_hour_per_tenant=9), {A: 5}, {B: 5}, "tenant shop", id="tenant: one more"),
        pytest.param(replace(WIDE, per_hour_per_tenant=9), {OTHER: 5}, {B: 50}, None, id="tenant: another's past"),
        pytest.param(replace(WIDE, per_hour_per_owner=9), {A: 4}, {A: 5}, None, id="owner: as many as allowed"),
        pytest.param(replace(WIDE, per_hour_per_owner=9), {A: 5}, {A: 5}, "of data:a", id="owner: one more"),
        pytest.param(replace(WIDE, per_hour_per_owner=9), {A: 5}, {B: 50}, None, id="owner: another's past"),
        pytest.param(replace(WIDE, share_per_hour=0.1), {A: 10}, {}, None, id="share: as many as allowed"),
        pytest.param(replace(WIDE, share_per_hour=0.1), {A: 11}, {}, "max_share_per_hour", id="share: one more"),
        pytest.param(
            replace(WIDE, share_per_hour=0.1, share_applies_above=100),
            {A: 11},
            {},
            None,
            id="share: too small a cluster",
        ),
    ],
)
def test_a_limit_is_broken_by_one_delete_more_than_it_says(
    limits: Limits, planned: dict[tuple[str, str], int], hour: dict[tuple[str, str], int], key: str | None
) -> None:
    why = exceeded(limits, planned, hour, batch=0, existing=100)
    assert (why is None) if key is None else (why is not None and key in why)


def test_what_deletes_nothing_breaks_no_limit_however_much_went_before() -> None:
    assert exceeded(replace(WIDE, per_hour=10), {A: 0}, {B: 50}, batch=0, existing=100) is None


def test_deletes_are_remembered_for_an_hour() -> None:
    usage = Usage()
    usage.add({A: 3}, at_ms=0)
    assert usage.last_hour(now_ms=HOUR_MS - 1) == Counter({A: 3})
    assert not usage.last_hour(now_ms=HOUR_MS)


def _radius(limits: Limits, clock: ManualClock) -> BlastRadius:
    return BlastRadius(limits, Breaker(MemoryStore(), "/lr/breaker"), lambda: 100, clock)


def test_requests_that_can_do_no_harm_need_no_dry_run() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))

    def never() -> Plan:
        raise AssertionError("a dry run was made")

    assert radius.judge(("requests", 1), {A: 10}, never) == (None, None)


def test_a_flood_of_requests_is_judged_by_what_it_would_delete_and_bound_to_that() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))
    assert radius.judge(("requests", 1), {A: 10**6}, lambda: Plan({A: 2}, (2, 0))) == (None, (2, 0))
    why, _ = radius.judge(("requests", 1), {A: 10**6}, lambda: Plan({A: 11}, (11, 0)))
    assert why is not None


def test_chunks_of_one_batch_add_up_until_a_person_grants_more() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))
    batch = ("requests", 1)
    assert radius.judge(batch, {A: 6}, lambda: Plan({A: 6}, (6,)))[0] is None
    radius.count({A: 6})
    assert radius.judge(batch, {A: 6}, lambda: Plan({A: 6}, (6,)))[0] is not None
    radius.grant()
    assert radius.judge(batch, {A: 6}, lambda: Plan({A: 6}, (6,)))[0] is None


def test_what_was_deleted_before_a_restart_still_counts_unless_it_was_granted() -> None:
    clock = ManualClock(10 * HOUR_MS)
    limits = replace(WIDE, per_hour=10)
    radius = _radius(limits, clock)
    radius.recall([(clock.now_ms() - 1000, *A)] * 8)
    assert radius.judge(("requests", 1), {A: 3}, lambda: Plan({A: 3}, (3,)))[0] is not None

    radius.breaker.trip("too much")
    assert radius.breaker.reason() == "too much"
    assert radius.breaker.clear(now_ms=clock.now_ms())
    assert radius.breaker.reason() == ""
    again = BlastRadius(limits, radius.breaker, lambda: 100, clock)
    again.recall([(clock.now_ms() - 1000, *A)] * 8)
    assert again.judge(("requests", 1), {A: 3}, lambda: Plan({A: 3}, (3,)))[0] is None
