import pytest

from streaming.rocketmq.progress import line, progress_of, seconds
from tests.unit.rocketmq.converted import CLOCK


@pytest.mark.parametrize(
    ("done", "total", "elapsed_ms", "expected"),
    [
        (0, 1000, 0, "0 % of 1,000 units"),
        (500, 1000, 1000, "50 % of 1,000 units, 500 a second, 1 s left"),
        (1, 3_600_001, 1000, "0 % of 3,600,001 units, 1 a second, 1000.0 h left"),
        (0, 0, 0, "100 % of 0 units"),
    ],
)
def test_a_line_shows_the_rate_and_the_time_left(done: int, total: int, elapsed_ms: int, expected: str) -> None:
    assert line(done, total, elapsed_ms) == expected


@pytest.mark.parametrize(("count", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2.0 h")])
def test_durations_are_for_people(count: float, text: str) -> None:
    assert seconds(count) == text


def test_a_job_that_ends_at_once_has_done_all_of_it() -> None:
    """What was said last was `0 % of N units`."""
    said = list[str]()
    with progress_of(said.append, lambda: 0, 10, CLOCK, "queues"):
        pass
    assert said == ["100 % of 10 queues"]


def test_a_failed_job_does_not_report_that_all_is_done() -> None:
    said = list[str]()
    with pytest.raises(ZeroDivisionError), progress_of(said.append, lambda: 0, 10, CLOCK):
        raise ZeroDivisionError
    assert said == []
