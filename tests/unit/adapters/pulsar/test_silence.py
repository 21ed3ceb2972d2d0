"""What hangs is remembered: after two timeouts in a row it is tried now and then, at first for a short time only."""

import pytest

from streaming.adapters.pulsar.silence import _MOST, TRY_SECONDS, Silence
from streaming.errors import UnavailableError

HOST = "http://b:8080"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def silence(clock: Clock) -> Silence:
    return Silence(clock)


def test_one_timeout_changes_nothing(silence: Silence) -> None:
    silence.timed_out(HOST)

    assert silence.is_due(HOST)
    assert silence.patience(HOST, 30.0) == 30.0


def test_after_two_in_a_row_it_is_not_asked_for_ten_seconds_and_others_are(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)

    clock.now_s += 9.9
    assert not silence.is_due(HOST)
    with pytest.raises(UnavailableError, match="a short attempt is made"):
        silence.patience(HOST, 30.0)
    assert silence.patience("http://c:8080", 30.0) == 30.0


def test_then_one_tries_it_for_a_short_time_and_nobody_beside(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)

    clock.now_s += 10.0
    assert silence.is_due(HOST)
    assert silence.patience(HOST, 30.0) == TRY_SECONDS
    assert not silence.is_due(HOST)
    with pytest.raises(UnavailableError):
        silence.patience(HOST, 30.0)


def test_an_answer_ends_it(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)
    clock.now_s += 10.0
    silence.patience(HOST, 30.0)

    silence.answered(HOST)

    assert silence.patience(HOST, 30.0) == 30.0
    silence.timed_out(HOST)
    assert silence.is_due(HOST), "two in a row, not two in all"


def test_without_time_nothing_is_asked(silence: Silence) -> None:
    with pytest.raises(UnavailableError, match="got no request"):
        silence.patience(HOST, 0.0)


def test_a_host_that_answers_slowly_gets_more_patience_with_each_try_and_rests_longer(
    silence: Silence, clock: Clock
) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)
    given = []
    for rest_s in (10.0, 10.0, 20.0, 40.0, 80.0, 160.0, 160.0):
        clock.now_s += rest_s - 0.1
        assert not silence.is_due(HOST)
        clock.now_s += 0.1
        given.append(silence.patience(HOST, 30.0))
        silence.timed_out(HOST)
    assert given == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]

    clock.now_s += 160.0
    silence.patience(HOST, 30.0)
    silence.answered(HOST)
    silence.timed_out(HOST)
    silence.timed_out(HOST)
    clock.now_s += 10.0
    assert silence.patience(HOST, 30.0) == TRY_SECONDS


def _slow(silence: Silence, *tenants: str) -> None:
    for tenant in (*tenants, *tenants):
        silence.timed_out(HOST, tenant)


def test_a_tenant_whose_questions_hang_silences_no_host(silence: Silence, clock: Clock) -> None:
    for _ in range(8):
        silence.timed_out(HOST, "noisy")

    assert not silence.is_due(HOST, "noisy")
    assert silence.patience(HOST, 30.0, "honest") == 30.0
    assert silence.patience(HOST, 30.0) == 30.0
    clock.now_s += 10.0
    assert silence.patience(HOST, 30.0, "noisy") == TRY_SECONDS


def test_a_host_that_hangs_for_two_tenants_is_tried_at_once_for_a_third_and_then_rests(
    silence: Silence, clock: Clock
) -> None:
    silence.timed_out(HOST, "a")
    silence.timed_out(HOST, "b")

    assert not silence.is_due(HOST, "a"), "it must not use up the try of the others"
    assert silence.patience(HOST, 30.0, "c") == TRY_SECONDS
    for tenant in ("a", "b", "c", "d"):
        assert not silence.is_due(HOST, tenant)
    silence.timed_out(HOST, "c")
    clock.now_s += 10.0
    assert silence.patience(HOST, 30.0, "d") == 2 * TRY_SECONDS


def test_an_answer_to_a_third_tenant_ends_it_for_all_but_the_slow_ones(silence: Silence) -> None:
    _slow(silence, "a", "b")
    silence.patience(HOST, 30.0, "c")

    silence.answered(HOST, "c")

    assert silence.patience(HOST, 30.0, "d") == 30.0
    assert not silence.is_due(HOST, "a")
    assert not silence.is_due(HOST, "b")


def test_all_slow_tenants_of_a_host_share_one_try(silence: Silence, clock: Clock) -> None:
    _slow(silence, "a", "b", "c")
    clock.now_s += 10.0

    assert silence.tries(HOST, "a") == silence.tries(HOST, "b") != ""
    assert silence.patience(HOST, 30.0, "a") == TRY_SECONDS
    assert not silence.is_due(HOST, "b")


def test_a_slow_tenant_that_gets_an_answer_is_slow_no_more_and_the_next_one_is_tried(
    silence: Silence, clock: Clock
) -> None:
    _slow(silence, "a", "b")
    clock.now_s += 10.0
    silence.patience(HOST, 30.0, "a")

    silence.answered(HOST, "a")

    assert silence.patience(HOST, 30.0, "a") == 30.0
    assert silence.patience(HOST, 30.0, "b") == TRY_SECONDS


def test_slow_tenants_do_not_silence_a_host_that_has_answered_since(silence: Silence) -> None:
    _slow(silence, "a", "b")
    silence.answered(HOST, "c")

    _slow(silence, "a", "b")

    assert silence.patience(HOST, 30.0, "c") == 30.0


def test_two_timeouts_while_no_tenant_is_asked_about_silence_a_host_for_all(silence: Silence) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)

    assert not silence.is_due(HOST, "honest")


def test_a_host_that_runs_no_more_is_forgotten_and_no_other(silence: Silence) -> None:
    for what in (HOST, f"{HOST}0", f"{HOST}/admin", f"{HOST} (5xx)"):
        silence.timed_out(what)
        silence.timed_out(what)
    _slow(silence, "a")

    silence.drop(HOST)

    for what in (HOST, f"{HOST}/admin", f"{HOST} (5xx)"):
        assert silence.is_due(what)
    assert silence.patience(HOST, 30.0, "a") == 30.0
    assert not silence.is_due(f"{HOST}0")


def test_states_of_tenants_and_namespaces_that_come_and_go_are_bounded(silence: Silence) -> None:
    for number in range(_MOST + 1):
        silence.timed_out(f"{HOST}/tenant/namespace-{number}")
    for number in range(_MOST + 1):
        silence.timed_out(HOST, f"tenant-{number}")

    assert len(silence._known) == _MOST
    assert len(silence._known[HOST].tenants) <= _MOST
