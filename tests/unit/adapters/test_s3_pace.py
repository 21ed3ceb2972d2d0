"""How fast a store is asked: without limit until it says SlowDown, then by what it bore."""

import pytest

from streaming.adapters.s3.pace import AdaptivePace


class Time:
    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def pace(time: Time) -> AdaptivePace:
    return AdaptivePace(monotonic=lambda: time.now_s, sleep=time.sleep)


def test_nobody_waits_before_the_store_complains(pace: AdaptivePace, time: Time) -> None:
    for _ in range(1_000):
        pace.take(1_000)
    assert (time.now_s, pace.rate) == (100.0, None)


def test_after_a_complaint_a_share_of_what_it_bore_goes_on(pace: AdaptivePace, time: Time) -> None:
    for _ in range(10):
        pace.take(400)
        time.now_s += 0.1
    pace.slow_down()

    assert pace.rate == pytest.approx(0.7 * 4_000)
    begun_s = time.now_s
    for _ in range(8):
        pace.take(700)
    assert time.now_s - begun_s == pytest.approx(7 * 700 / 2_800, rel=0.1)


def test_complaints_of_one_moment_count_once_and_later_ones_again(pace: AdaptivePace, time: Time) -> None:
    pace.take(1_000)
    for _ in range(20):
        pace.slow_down()
    assert pace.rate == pytest.approx(700)

    time.now_s += 1.1
    pace.take(1_000)
    pace.slow_down()
    assert pace.rate == pytest.approx(0.7 * 700, rel=0.1)


def test_it_comes_back_slowly_to_where_the_limit_was(pace: AdaptivePace, time: Time) -> None:
    pace.take(1_000)
    pace.slow_down()
    begun_s = time.now_s
    while time.now_s - begun_s < 7:
        pace.take(70)

    assert pace.rate == pytest.approx(1_000, rel=0.05)


def test_it_soon_forgets_a_complaint_that_is_not_repeated(pace: AdaptivePace, time: Time) -> None:
    pace.take(10)
    pace.slow_down()
    begun_s = time.now_s
    while time.now_s - begun_s < 18:
        pace.take(100)

    assert pace.rate is not None
    assert pace.rate > 3_500


def test_a_storm_never_brings_it_to_a_stop(pace: AdaptivePace, time: Time) -> None:
    for _ in range(100):
        pace.take(1)
        pace.slow_down()
        time.now_s += 2
    assert pace.rate == 100
