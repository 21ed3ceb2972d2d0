"""The table of a query's life: the next phase and the action for each event, at both sides of each boundary."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.query_life import (
    FALLBACK_S,
    PLANS_S,
    RESTART_S,
    SOON,
    Action,
    BatchCommitted,
    CannotPlan,
    Checked,
    Ended,
    Event,
    FallbackFailed,
    FallbackReturned,
    FallbackStopped,
    Phase,
    Planning,
    QueryLife,
    Rules,
    StartFailed,
    apply,
)

RULES = Rules(patience_s=90)
NOW_S = 1000.0
HELD = QueryLife(phase=Phase.HELD, held_since_s=NOW_S - 90, due_s=NOW_S)
DUE = QueryLife(phase=Phase.FALLBACK_DUE, is_parked=True, failures=2, due_s=NOW_S)
FALLBACK = QueryLife(phase=Phase.FALLBACK_RUNS, is_parked=True, failures=2)
START = QueryLife(phase=Phase.START_DUE, is_parked=True, failures=2, due_s=NOW_S)
PROVES = QueryLife(phase=Phase.PROVES, is_parked=True, failures=2)
RUNS_HELD = QueryLife(held_since_s=NOW_S - 90)


def _planning(since_s: float) -> QueryLife:
    return QueryLife(planning_since_s=since_s)


@pytest.mark.parametrize(
    ("life", "event", "phase", "action"),
    [
        pytest.param(
            QueryLife(), BatchCommitted(), Phase.RUNS, Action.NOTHING, id="a batch of a running query is no news"
        ),
        pytest.param(PROVES, BatchCommitted(), Phase.RUNS, Action.RECOVER, id="a batch ends the parking"),
        pytest.param(
            RUNS_HELD, BatchCommitted(), Phase.RUNS, Action.RECOVER, id="a batch ends the wait for the holder"
        ),
        pytest.param(QueryLife(), Ended(NOW_S), Phase.FALLBACK_DUE, Action.PARK, id="a failure parks"),
        pytest.param(PROVES, Ended(NOW_S), Phase.FALLBACK_DUE, Action.PARK, id="a second failure parks again"),
        pytest.param(
            PROVES, Ended(NOW_S, is_held=True), Phase.FALLBACK_DUE, Action.PARK, id="a parked query waits for no holder"
        ),
        pytest.param(
            QueryLife(), Ended(NOW_S, is_held=True), Phase.HELD, Action.WAIT_FOR_HOLDER, id="its subscription is held"
        ),
        pytest.param(
            RUNS_HELD, Ended(NOW_S, is_held=True), Phase.HELD, Action.WAIT_FOR_HOLDER, id="held for 90 s: still waits"
        ),
        pytest.param(
            RUNS_HELD,
            Ended(NOW_S + 0.1, is_held=True),
            Phase.FALLBACK_DUE,
            Action.PARK_AS_HELD,
            id="held for more than 90 s, found after a restart",
        ),
        pytest.param(HELD, Checked(NOW_S - 0.1), Phase.HELD, Action.NOTHING, id="the restart is not due"),
        pytest.param(HELD, Checked(NOW_S), Phase.RUNS, Action.START, id="the restart is due"),
        pytest.param(HELD, Checked(NOW_S + 0.1), Phase.FALLBACK_DUE, Action.PARK_AS_HELD, id="held for more than 90 s"),
        pytest.param(RUNS_HELD, StartFailed(NOW_S), Phase.FALLBACK_DUE, Action.PARK, id="a restart that fails parks"),
        pytest.param(PROVES, StartFailed(NOW_S), Phase.FALLBACK_DUE, Action.PARK, id="a start that fails parks again"),
        pytest.param(DUE, Checked(NOW_S - 0.1), Phase.FALLBACK_DUE, Action.NOTHING, id="the fallback is not due"),
        pytest.param(DUE, Checked(NOW_S), Phase.FALLBACK_RUNS, Action.RUN_FALLBACK, id="the fallback is due"),
        pytest.param(
            FALLBACK,
            FallbackReturned(NOW_S, has_news=False, may_start=True),
            Phase.START_DUE,
            Action.SHOW,
            id="the query may start",
        ),
        pytest.param(
            FALLBACK,
            FallbackReturned(NOW_S, has_news=False, may_start=False),
            Phase.FALLBACK_DUE,
            Action.SHOW,
            id="no batch can be planned",
        ),
        pytest.param(
            FALLBACK,
            FallbackFailed(NOW_S, is_outage=False),
            Phase.START_DUE,
            Action.REPORT_FALLBACK,
            id="the query is tried where the fallback fails",
        ),
        pytest.param(FALLBACK, FallbackStopped(), Phase.FALLBACK_DUE, Action.NOTHING, id="a stop is no failure"),
        pytest.param(START, Checked(NOW_S - 0.1), Phase.START_DUE, Action.NOTHING, id="the start is not due"),
        pytest.param(START, Checked(NOW_S), Phase.PROVES, Action.START, id="the start is due"),
        pytest.param(
            _planning(NOW_S - PLANS_S + 0.1), Planning(NOW_S, True), Phase.RUNS, Action.NOTHING, id="it may plan"
        ),
        pytest.param(_planning(NOW_S - PLANS_S), Planning(NOW_S, True), Phase.RUNS, Action.ASK_BROKER, id="for 8 s"),
        pytest.param(
            _planning(NOW_S - PLANS_S), Planning(NOW_S, False), Phase.RUNS, Action.NOTHING, id="it does not plan now"
        ),
        pytest.param(QueryLife(), CannotPlan(), Phase.STOPS, Action.STOP, id="it can't plan"),
        pytest.param(
            QueryLife(phase=Phase.STOPS),
            Ended(NOW_S),
            Phase.FALLBACK_DUE,
            Action.PARK,
            id="then it is parked",
        ),
    ],
)
def test_an_event_leads_to_the_next_phase_and_its_action(
    life: QueryLife, event: Event, phase: Phase, action: Action
) -> None:
    after, done = apply(life, event, RULES)
    assert (after.phase, done) == (phase, action)


def test_a_batch_forgets_failures_and_the_holder() -> None:
    assert apply(PROVES, BatchCommitted(), RULES)[0] == QueryLife()
    assert apply(RUNS_HELD, BatchCommitted(), RULES)[0] == QueryLife()


def test_the_wait_for_the_holder_counts_from_its_first_failure_and_restarts_come_at_intervals() -> None:
    first, _ = apply(QueryLife(), Ended(NOW_S, is_held=True), RULES)
    assert (first.held_since_s, first.due_s) == (NOW_S, NOW_S + RESTART_S)
    again, _ = apply(RUNS_HELD, Ended(NOW_S, is_held=True), RULES)
    assert (again.held_since_s, again.due_s) == (NOW_S - 90, NOW_S + RESTART_S)


@pytest.mark.parametrize(
    ("failures", "is_read", "pause_s"),
    [
        pytest.param(5, False, 0, id="at once after a fallback that failed"),
        pytest.param(0, True, 0, id="at once after the first failure"),
        pytest.param(1, True, 2, id="after 2 s for the second in a row"),
        pytest.param(9, True, 30, id="after 30 s at most"),
    ],
)
def test_the_fallback_waits_longer_the_more_often_it_found_nothing(
    failures: int, is_read: bool, pause_s: float
) -> None:
    life = QueryLife(phase=Phase.PROVES, is_parked=True, failures=failures, is_read=is_read)
    after, _ = apply(life, Ended(NOW_S), RULES)
    assert (after.failures, after.is_read, after.due_s) == (failures + 1, is_read, NOW_S + pause_s)


@pytest.mark.parametrize(
    ("failures", "is_outage", "pause_s"),
    [
        pytest.param(1, False, 5, id="the first fallback that fails"),
        pytest.param(2, False, 15, id="the second failure in a row"),
        pytest.param(6, False, 300, id="the sixth"),
        pytest.param(6, True, 60, id="an outage waits no longer than a minute"),
        pytest.param(99, False, 600, id="ten minutes at most"),
    ],
)
def test_after_a_fallback_that_fails_the_start_waits_longer_each_time(
    failures: int, is_outage: bool, pause_s: float
) -> None:
    life = QueryLife(phase=Phase.FALLBACK_RUNS, is_parked=True, failures=failures, is_read=True)
    after, _ = apply(life, FallbackFailed(NOW_S, is_outage), RULES)
    assert (after.failures, after.is_read, after.due_s) == (failures + 1, False, NOW_S + pause_s)


@pytest.mark.parametrize(
    ("has_news", "may_start", "failures", "due_s"),
    [(True, True, 0, NOW_S), (True, False, 0, NOW_S + FALLBACK_S), (False, True, 2, NOW_S)],
)
def test_a_fallback_with_news_forgets_the_failures(
    has_news: bool, may_start: bool, failures: int, due_s: float
) -> None:
    after, _ = apply(FALLBACK, FallbackReturned(NOW_S, has_news, may_start), RULES)
    assert (after.failures, after.is_read, after.due_s) == (failures, True, due_s)


@pytest.mark.parametrize("life", [DUE, START])
@pytest.mark.parametrize(("most", "is_given_up"), [(None, False), (2, False), (1, True)])
def test_a_query_with_more_failures_than_allowed_is_not_tried_again(
    life: QueryLife, most: int | None, is_given_up: bool
) -> None:
    rules = Rules(patience_s=90, most_failures=most)
    assert life.is_given_up(rules) is is_given_up
    assert (apply(life, Checked(NOW_S), rules)[1] is Action.NOTHING) is is_given_up


EVENTS: tuple[Callable[[float], Event], ...] = (
    Checked,
    Ended,
    StartFailed,
    lambda now_s: Ended(now_s, is_held=True),
    lambda now_s: Planning(now_s, is_planning=True),
    lambda now_s: Planning(now_s, is_planning=False),
    lambda _now_s: CannotPlan(),
    lambda _now_s: BatchCommitted(),
    lambda now_s: FallbackReturned(now_s, has_news=True, may_start=True),
    lambda now_s: FallbackReturned(now_s, has_news=False, may_start=False),
    lambda now_s: FallbackFailed(now_s, is_outage=False),
    lambda now_s: FallbackFailed(now_s, is_outage=True),
    lambda _now_s: FallbackStopped(),
)


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from([0.0, 0.5, 2.0, 30.0])), max_size=60))
def test_a_query_never_runs_beside_its_fallback_and_rests_only_while_it_is_parked(
    events: list[tuple[Callable[[float], Event], float]],
) -> None:
    life, now_s = QueryLife(), 0.0
    for make, seconds in events:
        now_s += seconds
        before = life
        try:
            life, action = apply(life, make(now_s), RULES)
        except KeyError:
            continue  # it can't happen in this phase
        if action is Action.START:
            assert before.phase in (Phase.HELD, Phase.START_DUE)
        if action is Action.RUN_FALLBACK:
            assert before.phase is Phase.FALLBACK_DUE
        if life.phase is Phase.FALLBACK_RUNS:
            assert Phase.FALLBACK_RUNS is before.phase or action is Action.RUN_FALLBACK
        assert not life.rests or life.is_parked
        assert life.failures == 0 or life.is_parked
        assert life.due_s - now_s <= 600


@pytest.mark.parametrize("failures", [0, 1, 9])
def test_without_a_fallback_a_parked_query_starts_again_after_a_pause(failures: int) -> None:
    rules = Rules(patience_s=90, has_fallback=False)
    parked, action = apply(replace(PROVES, failures=failures), Ended(NOW_S), rules)
    pause_s = SOON.pause_s(failures + 1)
    assert action is Action.PARK
    assert parked == QueryLife(phase=Phase.START_DUE, is_parked=True, failures=failures + 1, due_s=NOW_S + pause_s)
    assert apply(parked, Checked(NOW_S + pause_s - 0.1), rules) == (parked, Action.NOTHING) or pause_s == 0
    assert apply(parked, Checked(NOW_S + pause_s), rules)[1] is Action.START
