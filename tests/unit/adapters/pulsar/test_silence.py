"""What hangs is remembered: after two timeouts in a row it is tried now and then, at first for a short time only."""

import pytest

from streaming.adapters.pulsar.silence import TRY_SECONDS, Silence
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
    with pytest.raises(UnavailableError, match="tried again now and then"):
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
    with pytest.raises(UnavailableError, match="was not asked"):
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
