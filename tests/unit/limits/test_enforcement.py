"""Limits in force: when a dry run is made, what counts as deleted, and what a person's resume lets go on."""

from dataclasses import replace

import pytest

from streaming.adapters.memory.store import MemoryStore
from streaming.clock import ManualClock
from streaming.limits.breaker import Breaker
from streaming.limits.enforcement import BlastRadius
from udfs.blast_radius import Chunk, DryRunPlan, Limits
from udfs.units import HOUR_MS

WIDE = Limits(
    per_batch=10**9,
    per_hour=10**9,
    per_hour_per_tenant=10**9,
    per_hour_per_owner=10**9,
    share_per_hour=1.0,
    share_applies_above=0,
)
CHUNK = Chunk("requests", 1, since_ms=500)
A, B = ("shop", "data:a"), ("shop", "data:b")


def _radius(limits: Limits, clock: ManualClock, journaled: dict[tuple[str, str], int] | None = None) -> BlastRadius:
    begun = journaled or {}
    return BlastRadius(
        limits=limits,
        breaker=Breaker(MemoryStore(), "/lr/breaker"),
        census=lambda: 100,
        clock=clock,
        journaled=lambda *_: begun,
    )


def _resume(radius: BlastRadius) -> None:
    radius.trip("too much", "requests")
    assert radius.breaker.clear(now_ms=radius.clock.now_ms())
    assert not radius.held()
    radius.go_on()


def test_requests_that_can_do_no_harm_need_no_dry_run() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))

    def never() -> DryRunPlan:
        raise AssertionError("a dry run was made")

    assert radius.judge(CHUNK, {A: 10}, never) == (None, None)


def test_a_flood_of_requests_is_judged_by_what_it_would_delete_and_bound_to_that() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))
    assert radius.judge(CHUNK, {A: 10**6}, lambda: DryRunPlan({A: 2}, (2, 0))) == (None, (2, 0))
    why, _ = radius.judge(CHUNK, {A: 10**6}, lambda: DryRunPlan({A: 11}, (11, 0)))
    assert why is not None


def test_chunks_of_one_batch_add_up_until_a_person_grants_more() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))
    assert radius.judge(CHUNK, {A: 6}, lambda: DryRunPlan({A: 6}, (6,)))[0] is None
    radius.count({A: 6}, is_doubtful=False)
    assert radius.judge(CHUNK, {A: 6}, lambda: DryRunPlan({A: 6}, (6,)))[0] is not None
    _resume(radius)
    assert radius.judge(CHUNK, {A: 6}, lambda: DryRunPlan({A: 6}, (6,)))[0] is None


def test_what_was_deleted_before_a_restart_still_counts_unless_it_was_granted() -> None:
    clock = ManualClock(10 * HOUR_MS)
    limits = replace(WIDE, per_hour=10)
    radius = _radius(limits, clock)
    radius.recall([(clock.now_ms() - 1000, *A)] * 8)
    assert radius.judge(CHUNK, {A: 3}, lambda: DryRunPlan({A: 3}, (3,)))[0] is not None

    radius.breaker.trip("too much")
    assert radius.breaker.reason() == "too much"
    assert radius.breaker.clear(now_ms=clock.now_ms())
    assert radius.breaker.reason() == ""
    again = BlastRadius(limits=limits, breaker=radius.breaker, census=lambda: 100, clock=clock, journaled=lambda *_: {})
    again.recall([(clock.now_ms() - 1000, *A)] * 8)
    assert again.judge(CHUNK, {A: 3}, lambda: DryRunPlan({A: 3}, (3,)))[0] is None


def test_a_resume_given_after_the_start_and_before_the_first_chunk_waits_is_used() -> None:
    clock = ManualClock(10 * HOUR_MS)
    limits = replace(WIDE, per_hour=10)
    radius = _radius(limits, clock)
    why, _ = radius.judge(CHUNK, {A: 60}, lambda: DryRunPlan({A: 60}, (60,)))
    assert why is not None
    radius.trip(why, CHUNK.query)

    again = BlastRadius(limits=limits, breaker=radius.breaker, census=lambda: 100, clock=clock, journaled=lambda *_: {})
    again.recall([])
    assert again.breaker.clear(now_ms=clock.now_ms())
    assert not again.held()
    again.go_on()
    assert again.judge(CHUNK, {A: 60}, lambda: DryRunPlan({A: 60}, (60,)))[0] is None


def _allows(radius: BlastRadius, more: int, *, chunk: Chunk = CHUNK, asked: int = 10**6) -> bool:
    return radius.judge(chunk, {A: asked}, lambda: DryRunPlan({A: more}, (more,)))[0] is None


def test_what_a_chunk_deleted_before_it_broke_off_counts_when_it_is_tried_again_and_afterwards() -> None:
    journaled = {A: 8}
    radius = _radius(replace(WIDE, per_hour=10), ManualClock(HOUR_MS), journaled)
    assert _allows(radius, 8)
    radius.interrupted()
    assert _allows(radius, 2)
    assert not _allows(radius, 3)
    radius.count({A: 0}, is_doubtful=True)  # what went before is gone when it is looked for
    assert _allows(radius, 2)
    assert not _allows(radius, 3)


def test_a_chunk_that_broke_off_counts_no_more_than_it_was_asked_for() -> None:
    radius = _radius(replace(WIDE, per_hour=10), ManualClock(HOUR_MS), {A: 10})
    assert _allows(radius, 10, asked=10)
    radius.interrupted()
    assert _allows(radius, 9, asked=10)
    radius.count({A: 9}, is_doubtful=False)
    assert not _allows(radius, 1)
    assert radius.state.last_hour(now_ms=HOUR_MS) == {A: 10}


def test_owners_that_were_worked_off_before_a_chunk_broke_off_are_not_counted_twice_when_it_is_tried_again() -> None:
    radius = _radius(replace(WIDE, per_hour=9), ManualClock(HOUR_MS), {A: 5})
    asked = {A: 5, B: 10}
    for _ in range(2):
        assert radius.judge(CHUNK, asked, lambda: DryRunPlan({A: 5}, (5,)))[0] is None
        radius.interrupted()
    radius.count({A: 5}, is_doubtful=False)
    assert radius.state.last_hour(now_ms=HOUR_MS) == {A: 5}


def test_a_task_that_was_run_twice_counts_as_journaled_and_an_orderly_chunk_as_its_receipts_say() -> None:
    radius = _radius(replace(WIDE, per_hour=10), ManualClock(HOUR_MS), {A: 8})
    assert _allows(radius, 8)
    radius.count({A: 5}, is_doubtful=False)
    assert radius.state.last_hour(now_ms=HOUR_MS) == {A: 5}
    assert _allows(radius, 5)
    radius.count({A: 1}, is_doubtful=True)
    assert radius.state.last_hour(now_ms=HOUR_MS) == {A: 13}


def test_the_journal_is_asked_since_the_first_try_of_a_chunk_or_the_one_that_was_granted() -> None:
    asked: list[tuple[str, int, int]] = []

    def journaled(query: str, batch_id: int, since_ms: int) -> dict[tuple[str, str], int]:
        asked.append((query, batch_id, since_ms))
        return {}

    breaker = Breaker(MemoryStore(), "/lr/breaker")
    radius = BlastRadius(
        limits=replace(WIDE, per_hour=1),
        breaker=breaker,
        census=lambda: 100,
        clock=ManualClock(HOUR_MS),
        journaled=journaled,
    )
    for since_ms in (500, 700, 900):
        _allows(radius, 2, chunk=replace(CHUNK, since_ms=since_ms))
        radius.interrupted()
    assert asked == [("requests", 1, 500)] * 2
    _resume(radius)
    radius.interrupted()
    _allows(radius, 2, chunk=replace(CHUNK, since_ms=1_100))
    assert asked[2:] == [("requests", 1, 900)]


def test_batches_of_several_queries_that_take_turns_each_add_up() -> None:
    radius = _radius(replace(WIDE, per_batch=10), ManualClock(HOUR_MS))
    other = Chunk("requests-1a2b3c4d", 1, since_ms=500)
    for chunk in (CHUNK, other):
        assert _allows(radius, 6, chunk=chunk)
        radius.count({A: 6}, is_doubtful=False)
    assert not _allows(radius, 6)
    assert not _allows(radius, 6, chunk=other)
    assert _allows(radius, 6, chunk=replace(CHUNK, batch_id=2))


@pytest.mark.parametrize("data", [b"{", b"[1]", b"7", b'"text"', b"\xff"])
def test_a_breaker_that_can_not_be_parsed_holds_all_deletes_and_can_be_resumed(data: bytes) -> None:
    store = MemoryStore()
    breaker = Breaker(store, "/lr/breaker")
    breaker.trip("any")
    store.set_data("/lr/breaker", data)
    assert "can't be parsed" in breaker.reason()
    assert breaker.clear(now_ms=1)
    assert breaker.reason() == ""
