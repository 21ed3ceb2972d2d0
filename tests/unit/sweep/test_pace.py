"""How fast a task deletes: its share of the rate, less while ZooKeeper is slow, never a burst of more than a second."""

import pytest

from streaming.errors import UnavailableError
from streaming.sweep.pace import Capped, Pace, Pausable


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def pace_of(time: Time, rate: float) -> Pace:
    return Pace(rate, monotonic=time.monotonic, sleep=time.sleep)


def send(pace: Pace, time: Time, deletes: int, *, takes_s: float = 0.0) -> None:
    pace.wait_for(deletes)
    time.now_s += takes_s
    pace.done()


def test_the_first_group_goes_at_once(time: Time) -> None:
    pace_of(time, 100).wait_for(1_000)
    assert time.slept == []


def test_every_group_pays_for_the_one_before(time: Time) -> None:
    pace = pace_of(time, 100)
    for deletes in (100, 50, 10):
        send(pace, time, deletes)
    assert time.slept == [pytest.approx(1.0), pytest.approx(0.5)]


def test_time_spent_elsewhere_counts_but_is_not_saved_up(time: Time) -> None:
    pace = pace_of(time, 100)
    send(pace, time, 100)
    time.now_s += 60
    send(pace, time, 100)
    send(pace, time, 100)
    assert time.slept == [pytest.approx(1.0)]


def test_a_thousand_groups_take_as_long_as_the_rate_says(time: Time) -> None:
    pace = pace_of(time, 250)
    for _ in range(1_000):
        send(pace, time, 25)
    assert time.now_s - 100 == pytest.approx(999 * 25 / 250)


def test_without_a_rate_nobody_waits(time: Time) -> None:
    pace = pace_of(time, 0)
    for _ in range(10):
        send(pace, time, 1_000_000)
    assert time.slept == []
    assert pace.at_once >= 10_000


@pytest.mark.parametrize(("rate", "at_once"), [(1_000, 1_000), (2.5, 2), (0.25, 1)])
def test_at_most_a_seconds_allowance_goes_at_once(time: Time, rate: float, at_once: int) -> None:
    assert pace_of(time, rate).at_once == at_once


@pytest.mark.parametrize(
    ("takes_s", "at_once"),
    [pytest.param(0.35, 1_000, id="slow enough to notice, not to care"), pytest.param(0.351, 500, id="too slow")],
)
def test_a_slow_answer_halves_the_rate(time: Time, takes_s: float, at_once: int) -> None:
    pace = pace_of(time, 1_000)
    send(pace, time, 100, takes_s=takes_s)
    assert pace.at_once == at_once


def test_the_rate_never_falls_to_nothing_and_comes_back_with_good_answers(time: Time) -> None:
    pace = pace_of(time, 1_000)
    for _ in range(20):
        send(pace, time, 100, takes_s=5)
    assert pace.at_once == 62
    for _ in range(7):
        send(pace, time, 1)
    assert pace.at_once < 1_000
    send(pace, time, 1)
    assert pace.at_once == 1_000


def test_a_lower_rate_means_longer_waits(time: Time) -> None:
    pace = pace_of(time, 100)
    send(pace, time, 100, takes_s=10)
    send(pace, time, 100)
    pace.wait_for(1)
    assert time.slept[-1] == pytest.approx(2.0)


class TestCapped:
    """What was planned within the limits, and not one delete more."""

    def test_lets_exactly_what_was_planned_go(self, time: Time) -> None:
        capped = Capped(pace_of(time, 0), 10)
        capped.wait_for(4)
        capped.wait_for(6)
        with pytest.raises(UnavailableError, match="planning again"):
            capped.wait_for(1)

    def test_refuses_a_group_that_is_too_large_as_a_whole(self, time: Time) -> None:
        capped = Capped(pace_of(time, 0), 10)
        with pytest.raises(UnavailableError):
            capped.wait_for(11)
        capped.wait_for(10)

    def test_is_as_slow_as_its_pace(self, time: Time) -> None:
        capped = Capped(pace_of(time, 100), 1_000)
        for _ in range(2):
            capped.wait_for(100)
            time.now_s += 10
            capped.done()
        assert capped.at_once == 25


class TestPausable:
    """Who pauses the service stops a chunk within a second, before the next delete."""

    def test_stops_before_what_comes_next(self, time: Time) -> None:
        why = [""]
        pausable = Pausable(pace_of(time, 0), lambda: why[0], monotonic=lambda: time.now_s)
        pausable.wait_for(1)
        why[0] = "somebody looks"
        time.now_s += 0.999
        pausable.wait_for(1)
        time.now_s += 0.001
        with pytest.raises(UnavailableError, match="somebody looks"):
            pausable.wait_for(1)

    def test_looks_at_once_where_it_was_paused_before_it_began(self, time: Time) -> None:
        with pytest.raises(UnavailableError):
            Pausable(pace_of(time, 0), lambda: "paused", monotonic=lambda: time.now_s).wait_for(1)

    def test_looks_after_it_has_waited(self, time: Time) -> None:
        asked_at_s: list[float] = []

        def paused() -> str:
            asked_at_s.append(time.now_s)
            return ""

        pausable = Pausable(pace_of(time, 1), paused, monotonic=lambda: time.now_s)
        pausable.wait_for(10)
        pausable.wait_for(1)
        assert asked_at_s[1] - asked_at_s[0] == pytest.approx(10)
