"""After two timeouts in a row a target gets short attempts from time to time."""

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


def test_after_two_timeouts_a_target_gets_no_requests_for_ten_seconds(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)

    clock.now_s += 9.9
    assert not silence.is_due(HOST)
    with pytest.raises(UnavailableError, match="a short attempt is made"):
        silence.patience(HOST, 30.0)
    assert silence.patience("http://c:8080", 30.0) == 30.0


def test_after_the_pause_a_single_short_attempt_is_granted(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)

    clock.now_s += 10.0
    assert silence.is_due(HOST)
    assert silence.patience(HOST, 30.0) == TRY_SECONDS
    assert not silence.is_due(HOST)
    with pytest.raises(UnavailableError):
        silence.patience(HOST, 30.0)


def test_an_answer_resets_the_target(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)
    clock.now_s += 10.0
    silence.patience(HOST, 30.0)

    silence.answered(HOST)

    assert silence.patience(HOST, 30.0) == 30.0
    silence.timed_out(HOST)
    assert silence.is_due(HOST), "two in a row, not two in all"


def test_without_time_no_request_is_granted(silence: Silence) -> None:
    with pytest.raises(UnavailableError, match="got no request"):
        silence.patience(HOST, 0.0)


def test_each_failed_attempt_doubles_the_timeout_and_the_pause(silence: Silence, clock: Clock) -> None:
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


def test_a_single_tenants_timeouts_do_not_count_for_the_host(silence: Silence, clock: Clock) -> None:
    for _ in range(8):
        silence.timed_out(HOST, "noisy")

    assert not silence.is_due(HOST, "noisy")
    assert silence.patience(HOST, 30.0, "honest") == 30.0
    assert silence.patience(HOST, 30.0) == 30.0
    clock.now_s += 10.0
    assert silence.patience(HOST, 30.0, "noisy") == TRY_SECONDS


def test_after_timeouts_of_two_tenants_a_third_gets_an_attempt_at_once(silence: Silence, clock: Clock) -> None:
    silence.timed_out(HOST, "a")
    silence.timed_out(HOST, "b")

    assert not silence.is_due(HOST, "a"), "it must not use up the try of the others"
    assert silence.patience(HOST, 30.0, "c") == TRY_SECONDS
    for tenant in ("a", "b", "c", "d"):
        assert not silence.is_due(HOST, tenant)
    silence.timed_out(HOST, "c")
    clock.now_s += 10.0
    assert silence.patience(HOST, 30.0, "d") == 2 * TRY_SECONDS


def test_an_answer_to_a_third_tenant_resets_the_host_but_not_the_slow_tenants(silence: Silence) -> None:
    _slow(silence, "a", "b")
    silence.patience(HOST, 30.0, "c")

    silence.answered(HOST, "c")

    assert silence.patience(HOST, 30.0, "d") == 30.0
    assert not silence.is_due(HOST, "a")
    assert not silence.is_due(HOST, "b")


def test_all_slow_tenants_of_a_host_share_one_attempt(silence: Silence, clock: Clock) -> None:
    _slow(silence, "a", "b", "c")
    clock.now_s += 10.0

    assert silence.tries(HOST, "a") == silence.tries(HOST, "b") != ""
    assert silence.patience(HOST, 30.0, "a") == TRY_SECONDS
    assert not silence.is_due(HOST, "b")


def test_an_answer_to_a_slow_tenant_ends_its_slowness_and_the_next_is_due(silence: Silence, clock: Clock) -> None:
    _slow(silence, "a", "b")
    clock.now_s += 10.0
    silence.patience(HOST, 30.0, "a")

    silence.answered(HOST, "a")

    assert silence.patience(HOST, 30.0, "a") == 30.0
    assert silence.patience(HOST, 30.0, "b") == TRY_SECONDS


def test_slow_tenants_do_not_count_for_a_host_that_has_answered_since(silence: Silence) -> None:
    _slow(silence, "a", "b")
    silence.answered(HOST, "c")

    _slow(silence, "a", "b")

    assert silence.patience(HOST, 30.0, "c") == 30.0


def test_two_timeouts_without_a_tenant_count_for_the_host(silence: Silence) -> None:
    silence.timed_out(HOST)
    silence.timed_out(HOST)

    assert not silence.is_due(HOST, "honest")


def test_only_the_dropped_host_is_forgotten(silence: Silence) -> None:
    for what in (HOST, f"{HOST}0", f"{HOST}/admin", f"{HOST} (5xx)"):
        silence.timed_out(what)
        silence.timed_out(what)
    _slow(silence, "a")

    silence.drop(HOST)

    for what in (HOST, f"{HOST}/admin", f"{HOST} (5xx)"):
        assert silence.is_due(what)
    assert silence.patience(HOST, 30.0, "a") == 30.0
    assert not silence.is_due(f"{HOST}0")


def test_a_host_that_keeps_hanging_is_remembered_however_many_namespaces_time_out(silence: Silence) -> None:
    for number in range(_MOST + 1):
        if number % 1000 == 0:
            silence.timed_out(HOST)
        silence.timed_out(f"{HOST} policies of n{number}")
    assert silence.at_most(HOST, 30.0) < 30.0


def test_the_memory_of_short_lived_tenants_and_namespaces_is_bounded(silence: Silence) -> None:
    for number in range(_MOST + 1):
        silence.timed_out(f"{HOST}/tenant/namespace-{number}")
    for number in range(_MOST + 1):
        silence.timed_out(HOST, f"tenant-{number}")

    assert len(silence._known) == _MOST
    assert len(silence._known[HOST].tenants) <= _MOST
