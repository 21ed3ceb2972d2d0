"""A task's waits, the durations of its deletes and the refusals of its stores are measured, and added up."""

import pytest

from streaming.errors import UnavailableError
from streaming.sweep.measured import Measured, Measures, MeasuresParam
from streaming.sweep.pace import Capped, Pace


class Time:
    s = 100.0

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


def test_waits_and_answers_are_measured_and_the_pace_is_kept() -> None:
    time, refusals = Time(), [4]
    pace = Pace(100, monotonic=time.now_s, sleep=time.sleep)
    measured = Measured(pace, pace, lambda: refusals[0], time.now_s)
    assert measured.at_once == pace.at_once == 100
    for takes_s in (0.25, 3.0):
        measured.wait_for(50)
        time.s += takes_s
        measured.done()
    refusals[0] += 2
    measures = measured.measures()
    assert measures.delete_s == pytest.approx((0.25, 3.0))
    assert measures.waited_s == pytest.approx(0.5 + 0.25)
    assert measures.deletes_per_second == pace.deletes_per_second == 50, "halved after a slow answer"
    assert (measures.throttled, measures.tasks) == (2, 1)


def test_a_refused_wait_counts_as_a_wait_and_stays_refused() -> None:
    time = Time()
    pace = Pace(100, monotonic=time.now_s, sleep=time.sleep)
    measured = Measured(Capped(pace, 5), pace, lambda: 0, time.now_s)
    with pytest.raises(UnavailableError, match="planned within the limits"):
        measured.wait_for(6)
    assert measured.measures() == Measures((), 0.0, 100.0, 0, tasks=1)


def test_measures_add_up_within_bounds() -> None:
    param = MeasuresParam()
    total = param.zero(Measures(tasks=7))
    assert total == Measures()
    for _task in range(3):
        total = param.addInPlace(total, Measures((0.1,) * 60_000, 1.0, 2.0, 3, tasks=1))
    assert (len(total.delete_s), total.waited_s, total.deletes_per_second, total.throttled, total.tasks) == (
        100_000,
        3,
        6,
        9,
        3,
    )
