"""Growth is measured from about a day ago, or from the first run."""

from tests.unit.space.reports import AT_MS, DAY_MS, EMPTY, REPORT
from udfs.space.causes import Cause
from udfs.space.growth_by_cause import PastRun, growth, run_of

HOUR_MS = 3_600_000


def run(hours_ago: float, **stored: int) -> PastRun:
    causes = {Cause(name): (size // 2, size) for name, size in stored.items()}
    at_ms = AT_MS - int(hours_ago * HOUR_MS)
    return PastRun(at_ms=at_ms, cluster="east", complete=True, one_copy=0, stored=0, causes=causes)


def test_the_first_run_has_no_growth() -> None:
    assert growth([], run(0)) is None
    assert growth([run(0), run(-1)], run(0)) is None


def test_the_last_run_that_is_a_day_old_is_compared() -> None:
    found = growth([run(1), run(100), run(23), run(48)], run(0))
    assert found is not None
    assert (found.since_ms, found.seconds) == (AT_MS - 23 * HOUR_MS, 23 * 3600)


def test_the_first_run_is_compared_before_a_day_has_passed() -> None:
    found = growth([run(1), run(5)], run(0))
    assert found is not None
    assert found.since_ms == AT_MS - 5 * HOUR_MS


def test_causes_that_came_and_went_count_the_largest_change_first() -> None:
    found = growth([run(30, backlog=100, cursors=7)], run(0, backlog=90, retention=50))
    assert found is not None
    assert found.rows == (
        (Cause.RETENTION, 0, 50),
        (Cause.BACKLOG, 100, 90),
        (Cause.CURSORS, 7, 0),
    )


def test_a_run_has_the_sums_of_its_report() -> None:
    now = run_of(REPORT)
    assert (now.at_ms, now.cluster, now.complete) == (AT_MS, "east", True)
    assert now.stored == sum(stored for _one, stored in now.causes.values())
    assert run_of(EMPTY).causes == {}
    assert DAY_MS == 24 * HOUR_MS
