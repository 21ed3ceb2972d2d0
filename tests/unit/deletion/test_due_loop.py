"""The loop over waiting retries: a pass when something is due, none before, and it ends when told or when one fails."""

import threading
import time
from collections.abc import Callable
from typing import cast

from streaming.clock import ManualClock, SystemClock
from streaming.deletion.retries import DueLoop
from streaming.state.waiting import Waiting


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


def test_each_is_worked_off_when_it_is_due_and_what_arrives_wakes_the_loop() -> None:
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


def test_a_pass_that_fails_ends_the_loop_and_is_not_forgotten() -> None:
    def fails() -> None:
        raise ValueError("no disk")

    loop, _stop = _loop(Table(1), fails)
    loop.start()
    _wait(lambda: not loop.is_alive)
    assert isinstance(loop.failure, ValueError)
    assert not loop.is_empty()


def test_pruning_is_not_put_off_by_a_load_that_never_ends() -> None:
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
