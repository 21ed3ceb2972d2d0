"""Limits, each on both sides of its boundary, and what they remember: deletes of an hour, interruptions, resumes."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.blast_radius import (
    BlastState,
    Chunk,
    Committed,
    Doubted,
    DryRun,
    Event,
    Held,
    Interrupted,
    Judged,
    Limits,
    Moment,
    Planned,
    Recalled,
    Resumed,
    apply,
    exceeded,
    needs_journal,
)
from udfs.units import HOUR_MS

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
def test_a_limit_is_exceeded_by_one_more_delete_than_it_allows(
    limits: Limits, planned: dict[tuple[str, str], int], hour: dict[tuple[str, str], int], key: str | None
) -> None:
    why = exceeded(limits, planned, hour, batch=0, existing=100)
    assert (why is None) if key is None else (why is not None and key in why)


def test_a_chunk_without_deletes_exceeds_no_limit_after_any_number_of_deletes() -> None:
    assert exceeded(replace(WIDE, per_hour=10), {A: 0}, {B: 50}, batch=0, existing=100) is None


NOW = Moment(10 * HOUR_MS, existing=1_000)
SUBJECT = "requests 9 of 10 owners"


def _after(*events: Event, limits: Limits = WIDE, state: BlastState | None = None) -> BlastState:
    state = state or BlastState()
    for event in events:
        state, _why = apply(limits, state, event)
    return state


def _committed(deleted: Planned, *, journaled: Planned | None = None, is_doubtful: bool = False) -> Committed:
    return Committed(deleted, is_doubtful, journaled or {}, NOW.ms)


def _judged(asked: Planned, *, since_ms: int = 0, batch_id: int = 1) -> Judged:
    return Judged(Chunk("requests", batch_id, since_ms), asked, NOW)


def test_deletes_are_remembered_for_an_hour() -> None:
    state = _after(_judged({A: 3}), _committed({A: 3}))
    assert state.last_hour(now_ms=NOW.ms + HOUR_MS - 1) == Counter({A: 3})
    assert not state.last_hour(now_ms=NOW.ms + HOUR_MS)
    later = _after(replace(_committed({}), at_ms=NOW.ms + HOUR_MS), state=state)
    assert later.deleted == ()


@pytest.mark.parametrize(
    ("at_ms", "granted_ms", "counts"),
    [
        pytest.param(NOW.ms - HOUR_MS + 1, 0, True, id="within the hour"),
        pytest.param(NOW.ms - HOUR_MS, 0, False, id="an hour ago"),
        pytest.param(NOW.ms - 1_000, NOW.ms - 1_001, True, id="after an operator resumed"),
        pytest.param(NOW.ms - 1_000, NOW.ms - 1_000, False, id="when an operator resumed"),
    ],
)
def test_a_start_remembers_the_deletes_of_the_last_hour_since_the_last_resume(
    at_ms: int, granted_ms: int, *, counts: bool
) -> None:
    state = _after(Recalled([(at_ms, *A), (at_ms, *B), (at_ms, *A)], SUBJECT, granted_ms, NOW.ms))
    assert state.last_hour(now_ms=NOW.ms) == (Counter({A: 2, B: 1}) if counts else Counter())
    assert state.granted == SUBJECT


def test_a_resume_by_a_clock_that_is_ahead_forgets_no_delete_of_the_last_hour() -> None:
    state = _after(Recalled([(NOW.ms - 1, *A)], "", NOW.ms + 366 * 24 * HOUR_MS, NOW.ms))
    assert state.last_hour(now_ms=NOW.ms) == Counter({A: 1})


def test_a_delete_dated_in_the_future_counts_for_an_hour_from_the_start() -> None:
    state = _after(Recalled([(NOW.ms + 366 * 24 * HOUR_MS, *A)], "", 0, NOW.ms))
    assert state.last_hour(now_ms=NOW.ms) == Counter({A: 1})
    assert state.last_hour(now_ms=NOW.ms + HOUR_MS) == Counter()


def test_a_clock_that_goes_back_hides_no_try_of_a_chunk_from_the_journal() -> None:
    state = _after(_judged({A: 4}, since_ms=500), Interrupted(), _judged({A: 4}, since_ms=20), Interrupted())
    assert _after(_judged({A: 4}, since_ms=900), state=state).since_ms == 20


@pytest.mark.parametrize(
    ("event", "is_needed"),
    [
        pytest.param(DryRun({A: 1}, {}, NOW), True, id="a chunk that broke off would delete something"),
        pytest.param(DryRun({A: 0}, {}, NOW), False, id="it would delete nothing"),
        pytest.param(_committed({}), True, id="it is over"),
    ],
)
def test_the_journal_is_needed_only_after_an_interruption(event: DryRun | Committed, *, is_needed: bool) -> None:
    begun = _after(_judged({A: 5}))
    assert not needs_journal(begun, event)
    assert needs_journal(_after(Interrupted(), state=begun), event) is is_needed


def test_the_journal_is_needed_if_a_task_may_have_run_twice() -> None:
    assert needs_journal(BlastState(), _committed({}, is_doubtful=True))


@pytest.mark.parametrize(
    ("journaled", "coming", "is_held"),
    [
        pytest.param(6, 4, False, id="together with earlier deletes, as many as allowed"),
        pytest.param(6, 5, True, id="one more"),
        pytest.param(50, 0, False, id="nothing is left to delete"),
    ],
)
def test_deletes_of_an_interrupted_chunk_are_judged_with_the_rest(
    journaled: int, coming: int, *, is_held: bool
) -> None:
    limits = replace(WIDE, per_hour=10)
    state = _after(_judged({A: 100}), Interrupted(), _judged({A: 100}), limits=limits)
    _state, why = apply(limits, state, DryRun({A: coming}, {A: journaled}, NOW))
    assert (why is not None) is is_held


def test_the_journal_counts_up_to_the_requested_deletes_and_receipts_count_in_full() -> None:
    state = _after(_judged({A: 4}), Interrupted(), _committed({A: 2, B: 1}, journaled={A: 9}))
    assert state.last_hour(now_ms=NOW.ms) == {A: 4, B: 1}
    assert not state.is_unfinished


def test_the_journal_counts_from_the_first_try_of_a_chunk() -> None:
    state = _after(_judged({A: 4}, since_ms=500), Interrupted(), _judged({A: 4}, since_ms=900))
    assert state.since_ms == 500
    assert _after(_committed({A: 1}), _judged({A: 4}, since_ms=1_100), state=state).since_ms == 1_100


def test_deletes_of_a_batch_add_up_and_the_next_batch_starts_at_zero() -> None:
    state = _after(_judged({A: 6}), _committed({A: 6}), _judged({A: 5}), _committed({A: 5}))
    assert state.deleted_of_batch() == 11
    assert _after(_judged({A: 1}, batch_id=2), state=state).deleted_of_batch() == 0


def test_a_resume_forgets_earlier_deletes_only_if_the_breaker_had_tripped() -> None:
    state = _after(_judged({A: 6}), _committed({A: 6}), _judged({A: 5}, since_ms=900), Interrupted())
    assert _after(Resumed(SUBJECT), state=state) == state
    resumed = _after(Held(), Resumed(SUBJECT), state=state)
    assert (resumed.deleted, resumed.batches, resumed.is_unfinished, resumed.was_held) == ((), {}, False, False)
    assert (resumed.granted, resumed.since_ms) == (SUBJECT, 900)


@pytest.mark.parametrize(
    ("query", "deleted", "is_left"),
    [
        pytest.param("retry", {}, True, id="another query deleted nothing"),
        pytest.param("retry", {A: 1}, False, id="another query deleted something"),
        pytest.param("requests", {}, False, id="the chunk itself has gone by"),
        pytest.param("requests-1a2b3c4d", {}, True, id="a query whose name has the same prefix"),
    ],
)
def test_a_resume_is_valid_until_something_else_is_deleted(query: str, deleted: Planned, *, is_left: bool) -> None:
    state = _after(Recalled([], SUBJECT, 0, NOW.ms), Judged(Chunk(query, 1, 0), deleted, NOW), _committed(deleted))
    assert (state.granted == SUBJECT) is is_left


def test_a_resumed_plan_or_doubt_passes_once_and_only_unchanged() -> None:
    state = _after(Recalled([], SUBJECT, 0, NOW.ms))
    for other in (Doubted("requests", "10 of 10 owners"), Doubted("retry", "9 of 10 owners")):
        assert apply(WIDE, state, other) == (state, other.why)
    passed, why = apply(WIDE, state, Doubted("requests", "9 of 10 owners"))
    assert (passed.granted, why) == ("", None)
    assert apply(WIDE, passed, Doubted("requests", "9 of 10 owners"))[1] is not None


OWNERS = st.sampled_from([A, B, OTHER])
DELETES = st.dictionaries(OWNERS, st.integers(0, 6), max_size=3)
TRIES = st.lists(st.tuples(DELETES, st.booleans()), min_size=1, max_size=3)


@given(st.lists(TRIES, max_size=8), st.integers(1, 15), st.integers(1, 15))
def test_no_history_deletes_more_than_the_limits_allow_before_an_operator_resumes(
    chunks: list[list[tuple[Planned, bool]]], per_batch: int, per_hour: int
) -> None:
    """Each chunk has tries; each try deletes all of its plan, and may be interrupted before its receipts."""
    limits, state = replace(WIDE, per_batch=per_batch, per_hour=per_hour), BlastState()
    deleted: Counter[tuple[str, str]] = Counter()
    for tries in chunks:
        journaled: Counter[tuple[str, str]] = Counter()
        for planned, breaks_off in tries:
            state = _after(_judged({A: 100, B: 100, OTHER: 100}), limits=limits, state=state)
            state, why = apply(limits, state, DryRun(planned, dict(journaled), NOW))
            if why is not None:
                assert deleted.total() <= min(per_batch, per_hour)
                return
            journaled.update(planned)
            deleted.update(planned)
            if not breaks_off:
                break
            state = _after(Interrupted(), state=state)
        # deletes of earlier tries were gone already for the last try, so its receipts do not contain them
        state = _after(_committed(planned, journaled=journaled), state=state)
        assert state.last_hour(now_ms=NOW.ms) == +deleted
    assert deleted.total() <= min(per_batch, per_hour)
