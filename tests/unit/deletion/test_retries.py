"""Retries: the checks before a retry is kept, the retries that a pass leaves out, and the time of a pass."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming.clock import ManualClock, SystemClock
from streaming.deletion.retries import DueLoop, Retries
from streaming.errors import FencedError, SafetyError, StopRequestedError, UnavailableError
from streaming.schemas import RETRY
from streaming.state.waiting import Waiting
from tests.services import service_of


class _Rows(list[int]):
    """Entries instead of the service's DataFrame."""

    def persist(self) -> "_Rows":
        return self

    def unpersist(self) -> None:
        pass


class _Waiting:
    def __init__(self) -> None:
        self.said: list[object] = []
        self.may_have_receipts = False
        self.due = _Rows([1, 2])
        self.appends_fail = 0

    def take_over(self, still_mine: Any, _without_done: Any) -> None:
        self.said.append("take over" if still_mine() else "refused")

    def without_held(self, rows: _Rows) -> _Rows:
        return _Rows(entry for entry in rows if entry != 3)

    def append(self, rows: _Rows) -> None:
        self.said.append(list(rows))
        if self.appends_fail:
            self.appends_fail -= 1
            raise UnavailableError("the disk is away")

    def start_pass(self, _now_ms: int) -> _Rows:
        self.said.append("begin")
        return self.due

    def end_pass(self) -> None:
        self.said.append("end")

    def abandon_pass(self) -> None:
        self.said.append("give back")

    def count(self) -> int:
        return 0


def _retries(waiting: _Waiting, *, is_mine: bool = True) -> Retries:
    return service_of(
        coordination=SimpleNamespace(still_mine=lambda: is_mine),
        receipts=SimpleNamespace(without_done=lambda rows: _Rows(entry for entry in rows if entry != 2)),
        waiting=waiting,
    ).retries


class _WorkOff:
    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, query: str, batch_id: int, rows: Any) -> None:
        assert (query, batch_id) == (RETRY, 1)
        self.seen.append(list(rows))


def test_a_run_takes_the_table_over_before_it_reads_and_before_it_writes() -> None:
    waiting = _Waiting()
    retries = _retries(waiting)
    retries.keep(cast("Any", _Rows([1, 2, 3])), 0)
    retries.keep(cast("Any", _Rows([1, 2, 3])), 1)
    retries.process_due(_WorkOff())
    assert waiting.said == ["take over", [1], "take over", [1, 2, 3], "take over", "begin", "end"]


def test_a_batch_that_may_be_stored_is_searched_before_it_is_written_again() -> None:
    waiting = _Waiting()
    retries = _retries(waiting)
    retries.keep(cast("Any", _Rows([1])), 0)
    waiting.said.clear()
    waiting.appends_fail = 1
    retries.keep(cast("Any", _Rows([1, 2, 3])), 1)
    assert [each for each in waiting.said if isinstance(each, list)] == [[1, 2, 3], [1]]


def test_an_outdated_or_stopped_run_writes_nothing() -> None:
    waiting = _Waiting()
    with pytest.raises(FencedError):
        _retries(waiting, is_mine=False).keep(cast("Any", _Rows([1])), 0)
    retries = _retries(waiting)
    retries.gate.stop.set()
    with pytest.raises(StopRequestedError):
        retries.keep(cast("Any", _Rows([1])), 0)
    assert waiting.said == []


def test_a_stop_together_with_the_lock_keeps_nothing() -> None:
    waiting = _Waiting()
    retries = _retries(waiting)
    retries.describe = lambda *_: retries.gate.stop.set()
    with pytest.raises(StopRequestedError):
        retries.keep(cast("Any", _Rows([1])), 0)
    assert waiting.said == []


@pytest.mark.parametrize(("may_have_receipts", "expected"), [(True, [1]), (False, [1, 2])])
def test_retries_that_earlier_runs_may_have_processed_are_left_out(
    *, may_have_receipts: bool, expected: list[int]
) -> None:
    waiting = _Waiting()
    waiting.may_have_receipts = may_have_receipts
    retries = _retries(waiting)
    work_off = _WorkOff()
    retries.process_due(work_off)
    assert work_off.seen == [expected]


def test_a_query_that_is_started_again_keeps_nothing_twice() -> None:
    waiting = _Waiting()
    retries = _retries(waiting)
    retries.keep(cast("Any", _Rows([1])), 0)
    retries.restart()
    retries.keep(cast("Any", _Rows([1, 2, 3])), 0)
    assert [each for each in waiting.said if isinstance(each, list)] == [[1], [1]]


class Table:
    """Due times as streaming.state.waiting keeps them, in a list."""

    def __init__(self, *due_ms: int) -> None:
        self.due_ms = list(due_ms)
        self.worked_off: list[tuple[int, int]] = []

    def next_ms(self) -> int | None:
        return min(self.due_ms, default=None)

    def pass_over(self) -> None:
        now_ms = SystemClock().now_ms()
        self.worked_off += [(ms, now_ms) for ms in self.due_ms if ms <= now_ms]
        self.due_ms = [ms for ms in self.due_ms if ms > now_ms]


def _loop(table: Table, work_off: Callable[[], None] | None = None) -> tuple[DueLoop, threading.Event]:
    stop = threading.Event()
    return DueLoop(cast("Waiting", table), work_off or table.pass_over, lambda: None, SystemClock(), stop), stop


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_retry_is_processed_when_it_is_due_and_new_retries_wake_the_loop() -> None:
    now_ms = SystemClock().now_ms()
    table = Table(now_ms + 300, now_ms - 5, now_ms + 3_600_000)
    loop, stop = _loop(table)
    loop.start()
    _wait(lambda: len(table.worked_off) == 2)
    sooner_ms = SystemClock().now_ms() + 50
    table.due_ms.append(sooner_ms)
    loop.wake()
    _wait(lambda: len(table.worked_off) == 3)
    stop.set()
    assert loop.join(5)
    assert [ms for ms, _ in table.worked_off] == [now_ms - 5, now_ms + 300, sooner_ms]
    assert all(0 <= at_ms - ms < 2_000 for ms, at_ms in table.worked_off)
    assert loop.failure is None
    assert loop.passes == 3


def test_it_is_empty_only_when_nothing_waits_and_no_pass_runs() -> None:
    table, going = Table(1), threading.Event()
    seen: list[bool] = []

    def work_off() -> None:
        table.due_ms.clear()
        seen.append(loop.is_empty())
        going.set()

    loop, stop = _loop(table, work_off)
    assert not loop.is_empty()
    loop.start()
    assert going.wait(5)
    _wait(loop.is_empty)
    stop.set()
    assert loop.join(5)
    assert seen == [False]


def test_a_failed_pass_is_repeated_with_the_same_retries() -> None:
    waiting = _Waiting()
    retries = _retries(waiting)

    def fails(_query: str, _batch_id: int, _rows: Any) -> None:
        raise ValueError("no disk")

    with pytest.raises(ValueError, match="no disk"):
        retries.process_due(fails)
    assert waiting.said == ["take over", "begin", "give back"]


class Unhurried:
    """An event whose wait returns at once."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, _timeout: float | None = None) -> bool:
        return self._event.is_set()


class Pauses(threading.Event):
    """An event that does not wait, and is set after this number of pauses."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.waited_s: list[float | None] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout)
        if len(self.waited_s) == self._most:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("failure", [SafetyError("look"), StopRequestedError()])
def test_only_a_stop_and_what_concerns_safety_end_the_loop(failure: Exception) -> None:
    def fails() -> None:
        raise failure

    loop, _stop = _loop(Table(1), fails)
    loop.start()
    _wait(lambda: not loop.is_alive)
    assert loop.failure is failure
    assert not loop.is_empty()


def test_a_pass_that_fails_is_tried_again_after_pauses_that_grow() -> None:
    def fails() -> None:
        raise ValueError("no disk")

    told: list[tuple[str, int]] = []
    pauses = Pauses(9)
    loop = DueLoop(cast("Waiting", Table(1)), fails, lambda: None, SystemClock(), pauses)
    loop.show = lambda why, failures: told.append((str(why), failures))
    loop.start()
    assert loop.join(10)
    assert pauses.waited_s == [5, 15, 30, 60, 120, 300, 600, 600, 600]
    assert told == [("no disk", number) for number in range(1, 10)]
    assert loop.failure is None


def test_a_pass_that_a_stop_has_cut_short_is_no_failure_and_is_named_as_unfinished() -> None:
    def is_cancelled() -> None:
        stop.set()
        raise ValueError("Job 740 cancelled as part of cancellation of all jobs")

    told: list[Exception | None] = []
    loop, stop = _loop(Table(1), is_cancelled)
    loop.show = lambda why, _failures: told.append(why)
    loop.start()
    assert loop.join(10)
    assert (told, loop.failure, loop.was_cut_short) == ([], None, True)


def test_repeated_failures_of_passes_are_reported_and_a_run_until_idle_gives_up() -> None:
    left = [ValueError("no disk")] * 2
    told: list[tuple[bool, int]] = []
    table = Table(1)

    def fails_twice() -> None:
        if left:
            raise left.pop()
        table.pass_over()

    loop = DueLoop(cast("Waiting", table), fails_twice, lambda: None, SystemClock(), Pauses(50))
    loop.show = lambda why, failures: told.append((why is None, failures))
    loop.start()
    _wait(lambda: len(told) == 3)
    assert told == [(False, 1), (False, 2), (True, 0)]

    def fails() -> None:
        raise ValueError("no disk")

    loop = DueLoop(cast("Waiting", Table(1)), fails, lambda: None, SystemClock(), Pauses(50))
    loop.most_failures = 4
    loop.start()
    assert loop.join(10)
    assert isinstance(loop.failure, ValueError)


def test_pruning_is_not_delayed_by_permanent_load() -> None:
    clock, stop, pruned_ms = ManualClock(), threading.Event(), []

    def work_off() -> None:
        clock.advance(1_000)
        if clock.now_ms() - began_ms > 3_600_000:
            stop.set()

    began_ms = clock.now_ms()
    table = Table(0)  # which stays due
    loop = DueLoop(cast("Waiting", table), work_off, lambda: pruned_ms.append(clock.now_ms()), clock, stop)
    loop.start()
    assert loop.join(10)
    assert loop.failure is None
    assert len(pruned_ms) in (5, 6)


def test_pruning_that_fails_keeps_no_retry_waiting() -> None:
    clock, stop, passes = ManualClock(), threading.Event(), []

    def work_off() -> None:
        clock.advance(60_000)
        passes.append(clock.now_ms())
        if len(passes) == 30:
            stop.set()

    def prune() -> None:
        raise OSError("no room")

    loop = DueLoop(cast("Waiting", Table(0)), work_off, prune, clock, cast("threading.Event", Unhurried(stop)))
    loop.start()
    assert loop.join(10)
    assert len(passes) == 30


def test_it_is_asleep_only_when_nothing_is_due_and_no_pass_runs() -> None:
    now_ms = SystemClock().now_ms()
    table = Table(now_ms - 5, now_ms + 3_600_000)
    seen: list[bool] = []

    def work_off() -> None:
        table.pass_over()
        seen.append(loop.is_asleep())

    loop, stop = _loop(table, work_off)
    assert not loop.is_asleep()
    loop.start()
    _wait(loop.is_asleep)
    assert not loop.is_empty()
    stop.set()
    assert loop.join(5)
    assert seen == [False]
