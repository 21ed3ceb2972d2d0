"""A task deletes at its share of the rate, less while ZooKeeper is slow, and at most a second's deletes at once."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

import pytest

from streaming.errors import UnavailableError
from streaming.sweep.pace import Capped, Pace, Pausable


class Time:
    """A clock that advances by sleeping."""

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


def test_every_group_waits_for_its_time_before_it_is_sent(time: Time) -> None:
    pace = pace_of(time, 100)
    for deletes in (100, 50, 10):
        send(pace, time, deletes)
    assert time.slept == [pytest.approx(1.0), pytest.approx(0.5), pytest.approx(0.1)]


def test_time_spent_on_other_work_counts_but_is_not_saved_up(time: Time) -> None:
    pace = pace_of(time, 100)
    time.now_s += 60
    send(pace, time, 100)
    time.now_s += 0.4
    send(pace, time, 100)
    assert time.slept == [pytest.approx(0.6)]


def test_a_thousand_groups_take_as_long_as_the_rate_says(time: Time) -> None:
    pace = pace_of(time, 250)
    for _ in range(1_000):
        send(pace, time, 25)
    assert time.now_s - 100 == pytest.approx(1_000 * 25 / 250)


def chunks(limit: float, tasks: int, deletes: int, *, group: int) -> Iterator[tuple[float, int]]:
    """Yield (time, deletes) of thirty successive chunks, each in so many parallel tasks."""
    began_s = 0.0
    for _ in range(30):
        ends_s = []
        for _task in range(tasks):
            time = Time()
            time.now_s = began_s
            pace = pace_of(time, limit / tasks)
            time.now_s += 0.05  # it reads and judges
            for start in range(0, deletes, group):
                send(pace, time, min(group, deletes - start), takes_s=0.001)
                yield time.now_s, min(group, deletes - start)
            ends_s.append(time.now_s)
        began_s = max(ends_s) + 0.1  # the driver commits


@pytest.mark.parametrize("tasks", [1, 2, 4, 64])
@pytest.mark.parametrize(("deletes", "group"), [(1, 1), (30, 30), (100, 100), (250, 100), (1_000, 100)])
def test_all_executors_together_keep_to_the_limit_however_small_the_chunks_are(
    tasks: int, deletes: int, group: int
) -> None:
    limit = 100.0
    sent = sorted(chunks(limit, tasks, deletes, group=group))
    times_s = [at_s for at_s, _ in sent]
    before = [0, *accumulate(n for _, n in sent)]  # deletes before the n-th time
    a_burst = tasks * group  # each task's last group before, and its first group within
    for begin_s in range(0, int(times_s[-1]) + 1, 5):
        for length_s in (1, 10, 60):
            within = before[bisect_left(times_s, begin_s + length_s)] - before[bisect_left(times_s, begin_s)]
            assert within <= limit * length_s + a_burst
    assert before[-1] <= limit * times_s[-1] * 1.01


def test_without_a_rate_nothing_waits(time: Time) -> None:
    pace = pace_of(time, 0)
    for _ in range(10):
        send(pace, time, 1_000_000)
    assert time.slept == []
    assert pace.at_once >= 10_000


@pytest.mark.parametrize(("rate", "at_once"), [(1_000, 1_000), (2.5, 2), (0.25, 1)])
def test_at_most_one_second_of_deletes_is_sent_at_once(time: Time, rate: float, at_once: int) -> None:
    assert pace_of(time, rate).at_once == at_once


@pytest.mark.parametrize(
    ("takes_s", "at_once"),
    [pytest.param(0.35, 1_000, id="slow enough to notice, not to care"), pytest.param(0.351, 500, id="too slow")],
)
def test_a_slow_answer_halves_the_rate(time: Time, takes_s: float, at_once: int) -> None:
    pace = pace_of(time, 1_000)
    send(pace, time, 100, takes_s=takes_s)
    assert pace.at_once == at_once


def test_the_rate_never_falls_to_zero_and_recovers_with_fast_answers(time: Time) -> None:
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
    pace.wait_for(125)
    assert time.slept[-1] == pytest.approx(125 / 62.5)


class TestCapped:
    """The deletes that were planned within the limits, and no more."""

    def test_allows_exactly_the_planned_deletes(self, time: Time) -> None:
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
    """A pause stops a chunk within a second, before the next delete."""

    def test_stops_before_the_next_delete(self, time: Time) -> None:
        why = [""]
        pausable = Pausable(pace_of(time, 0), lambda: why[0], monotonic=lambda: time.now_s)
        pausable.wait_for(1)
        why[0] = "somebody looks"
        time.now_s += 0.999
        pausable.wait_for(1)
        time.now_s += 0.001
        with pytest.raises(UnavailableError, match="somebody looks"):
            pausable.wait_for(1)

    def test_checks_at_once_if_it_was_paused_before_the_start(self, time: Time) -> None:
        with pytest.raises(UnavailableError):
            Pausable(pace_of(time, 0), lambda: "paused", monotonic=lambda: time.now_s).wait_for(1)

    def test_checks_after_it_has_waited(self, time: Time) -> None:
        asked_at_s: list[float] = []

        def paused() -> str:
            asked_at_s.append(time.now_s)
            return ""

        pausable = Pausable(pace_of(time, 1), paused, monotonic=lambda: time.now_s)
        pausable.wait_for(1)
        pausable.wait_for(10)
        assert asked_at_s[1] - asked_at_s[0] == pytest.approx(10)
