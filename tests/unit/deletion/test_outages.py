"""Outages are waited for with growing pauses; any other failure is raised at once, and some stop the service."""

import threading

import pytest

from streaming.deletion.gate import Outages
from streaming.errors import (
    FencedError,
    RefusedError,
    SafetyError,
    StopRequestedError,
    UnavailableError,
    WorkersLostError,
)
from streaming.metrics import Metrics
from udfs.backoff import Backoff


class Stop(threading.Event):
    """An event that never waits, and is set after this number of waits."""

    def __init__(self, after: int = 100) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._after = after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return len(self.waits) >= self._after


def _outages(stop: Stop) -> Outages:
    return Outages(stop=stop, metrics=Metrics(), log=lambda _text: None, backoff=Backoff((1, 2)))


def test_a_step_is_tried_until_no_service_is_away() -> None:
    stop, left = Stop(), [UnavailableError("away")] * 2 + [RuntimeError("streaming.errors.UnavailableError: in a task")]

    def step() -> None:
        if left:
            raise left.pop()

    outages = _outages(stop)
    outages.wait_through(step)
    assert stop.waits == [1, 2, 2]
    assert outages.metrics.registry.get_sample_value("ledger_deletion_outages_waited_total") == 3
    assert not stop.is_set()


def test_a_stop_is_not_kept_waiting_by_an_outage() -> None:
    def step() -> None:
        raise UnavailableError("away")

    with pytest.raises(StopRequestedError):
        _outages(Stop(after=2)).wait_through(step)


def test_lost_executors_are_waited_for_but_not_for_ever_should_the_step_itself_end_them() -> None:
    stop, left = Stop(), [WorkersLostError("gone"), UnavailableError("away")] * 2 + [WorkersLostError("gone")] * 2

    def step() -> None:
        if left:
            raise left.pop(0)

    _outages(stop).wait_through(step)
    assert len(stop.waits) == 6

    def ends_them() -> None:
        raise WorkersLostError("gone")

    stop = Stop()
    with pytest.raises(WorkersLostError):
        _outages(stop).wait_through(ends_them)
    assert stop.waits == [1, 2]
    assert not stop.is_set()


@pytest.mark.parametrize(
    ("failure", "raised", "is_fatal"),
    [
        pytest.param(SafetyError("look"), SafetyError, True, id="an operator has to act"),
        pytest.param(RuntimeError("streaming.errors.FencedError: another"), FencedError, True, id="told by a task"),
        pytest.param(RefusedError("no rights"), RefusedError, False, id="the service said no"),
        pytest.param(StopRequestedError(), StopRequestedError, False, id="a stop"),
        pytest.param(ValueError("a bug"), ValueError, False, id="a bug"),
    ],
)
def test_any_other_failure_is_raised_at_once_and_those_of_safety_stop_the_service(
    failure: Exception, raised: type[Exception], *, is_fatal: bool
) -> None:
    def step() -> None:
        raise failure

    stop = Stop()
    outages = _outages(stop)
    with pytest.raises(raised):
        outages.wait_through(step)
    assert stop.waits == []
    assert stop.is_set() is is_fatal
    assert [type(each) for each in outages.fatal] == ([raised] if is_fatal else [])
