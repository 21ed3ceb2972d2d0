"""The rate of requests: unlimited until the store throttles, then a share of the observed rate."""

import pytest

from streaming.adapters.s3.adaptive_pace import AdaptivePace


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


def test_there_is_no_limit_before_the_store_throttles(pace: AdaptivePace, time: Time) -> None:
    for _ in range(1_000):
        pace.take(1_000)
    assert (time.now_s, pace.rate) == (100.0, None)


def test_after_throttling_the_rate_is_a_share_of_the_observed_rate(pace: AdaptivePace, time: Time) -> None:
    for _ in range(10):
        pace.take(400)
        time.now_s += 0.1
    pace.slow_down()

    assert pace.rate == pytest.approx(0.7 * 4_000)
    begun_s = time.now_s
    for _ in range(8):
        pace.take(700)
    assert time.now_s - begun_s == pytest.approx(7 * 700 / 2_800, rel=0.1)


def test_throttling_within_the_window_counts_once(pace: AdaptivePace, time: Time) -> None:
    pace.take(1_000)
    for _ in range(20):
        pace.slow_down()
    assert pace.rate == pytest.approx(700)

    time.now_s += 1.1
    pace.take(1_000)
    pace.slow_down()
    assert pace.rate == pytest.approx(0.7 * 700, rel=0.1)


def test_the_rate_grows_slowly_at_first(pace: AdaptivePace, time: Time) -> None:
    pace.take(1_000)
    pace.slow_down()
    begun_s = time.now_s
    while time.now_s - begun_s < 7:
        pace.take(70)

    assert pace.rate == pytest.approx(1_000, rel=0.05)


def test_the_rate_grows_fast_without_further_throttling(pace: AdaptivePace, time: Time) -> None:
    pace.take(10)
    pace.slow_down()
    begun_s = time.now_s
    while time.now_s - begun_s < 18:
        pace.take(100)

    assert pace.rate is not None
    assert pace.rate > 3_500


def test_the_rate_never_falls_below_the_floor(pace: AdaptivePace, time: Time) -> None:
    for _ in range(100):
        pace.take(1)
        pace.slow_down()
        time.now_s += 2
    assert pace.rate == 100
