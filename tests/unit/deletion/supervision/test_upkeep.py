"""The periodic duties: each at its interval, none of them stops the work, and no gap is forgotten."""

from collections.abc import Callable

import pytest

from streaming.deletion.supervision.upkeep import Upkeep
from streaming.errors import UnavailableError
from streaming.metrics import Metrics
from streaming.reconcile.gaps import Reconciliation


class World:
    """Duties on a clock of their own. results: of the checks, in turn; the last one repeats."""

    def __init__(self, *results: Reconciliation | Exception) -> None:
        self.now_s = 0.0
        self.results = list(results)
        self.done: list[tuple[str, float]] = []
        self.upkeep = Upkeep(self._noting("tidy"), self._reconcile, Metrics(), lambda: self.now_s)

    def _noting(self, duty: str) -> Callable[[], None]:
        return lambda: self.done.append((duty, self.now_s))

    def _reconcile(self) -> Reconciliation:
        self._noting("reconcile")()
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def times_of(self, duty: str) -> list[float]:
        return [at_s for name, at_s in self.done if name == duty]

    def run(self, seconds: int) -> None:
        for second in range(seconds + 1):
            self.now_s = float(second)
            self.upkeep.do_what_is_due()


def _found(*lost: str) -> Reconciliation:
    return Reconciliation(partitions=(), delayed=0, lost=lost)


def test_each_duty_comes_at_its_interval_and_the_accounts_are_checked_at_once() -> None:
    world = World(_found())
    world.run(7200)
    assert world.times_of("reconcile") == [float(at_s) for at_s in range(0, 7201, 300)]
    assert world.times_of("tidy") == [3600, 7200]


def test_a_check_that_fails_finds_no_gap_and_the_next_one_comes_at_its_time(caplog: pytest.LogCaptureFixture) -> None:
    world = World(UnavailableError("no broker answers"), _found())
    assert world.upkeep.find_gaps() == []
    assert "has a receipt, trying again later: no broker answers" in caplog.text


def test_a_gap_raises_the_alarm_and_stays_known_when_later_checks_find_none(caplog: pytest.LogCaptureFixture) -> None:
    world = World(_found("request 7"), _found(), UnavailableError("no broker answers"))
    gaps = world.upkeep.find_gaps()
    assert len(gaps) == 1
    assert f"ALARM, not accounted for: {gaps[0]}" in caplog.text
    assert world.upkeep.find_gaps() == world.upkeep.find_gaps() == gaps
    assert caplog.text.count("ALARM") == 1
