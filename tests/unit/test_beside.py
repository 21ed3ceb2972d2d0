"""Work next to the service: what a failure and a stop do to it, and how long the end waits for it."""

import threading

import pytest

from streaming.beside import Beside, Work, logged
from streaming.errors import UnavailableError


class Repeated:
    """Runs until the last error was raised; None: a run without an error."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.runs = 0
        self.beside = Beside(Work(name="audit", run=self, every_s=0, on_failure=logged("audit", 5)))
        self.was_busy: list[bool] = []

    def __call__(self) -> None:
        self.runs += 1
        self.was_busy.append(self.beside.is_busy)
        error = self.errors.pop(0)
        if not self.errors:
            self.beside.stop()
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(UnavailableError("no ZooKeeper"), "audit: no ZooKeeper", id="an error of this program"),
        pytest.param(RuntimeError("Spark is broken"), "audit failed; the next one is in 5 s", id="any other error"),
    ],
)
def test_a_failure_ends_one_run_and_is_logged(error: Exception, text: str, caplog: pytest.LogCaptureFixture) -> None:
    work = Repeated(error, error, None)

    work.beside.repeat()

    assert work.runs == 3
    assert work.was_busy == [True] * 3
    assert not work.beside.is_busy
    assert caplog.text.count(text) == 2


def test_a_failure_during_a_stop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    work = Repeated(RuntimeError("Spark is being stopped"))

    work.beside.repeat()

    assert caplog.text == ""


def test_after_a_stop_no_run_starts() -> None:
    work = Repeated(None)
    work.beside.stop()

    work.beside.repeat()

    assert work.runs == 0


@pytest.mark.parametrize(("first_after_s", "is_busy"), [(-5.0, True), (0.0, True), (0.1, False)])
def test_work_whose_first_run_is_due_is_busy_before_it_starts(first_after_s: float, is_busy: bool) -> None:
    assert Beside(Work(name="audit", run=lambda: None, first_after_s=first_after_s)).is_busy is is_busy


def test_a_stop_ends_the_pause_between_two_runs() -> None:
    started = threading.Event()
    with Beside(Work(name="audit", run=started.set, every_s=3_600, leave_s=10)) as beside:
        assert started.wait(10)

    assert not beside.is_alive


def test_the_end_of_the_block_waits_for_a_run_only_for_its_time() -> None:
    running, may_end = threading.Event(), threading.Event()

    def run() -> None:
        running.set()
        may_end.wait(30)

    try:
        with Beside(Work(name="guard", run=run, every_s=0, leave_s=0.05)) as beside:
            assert running.wait(10)
        assert beside.is_alive
    finally:
        may_end.set()
    assert beside.join(10)


def test_work_that_runs_once_ends_by_itself() -> None:
    runs: list[int] = []
    beside = Beside(Work(name="watch", run=lambda: runs.append(1)))
    beside.start()
    assert beside.join(10)
    assert runs == [1]


def _fails() -> None:
    raise ValueError("a bug")


def test_a_failure_without_an_on_failure_ends_the_work_and_is_raised_once() -> None:
    beside = Beside(Work(name="upkeep", run=_fails, every_s=0))
    beside.start()
    assert beside.join(10)
    with pytest.raises(ValueError, match="a bug"):
        beside.check()
    beside.check()


def test_the_last_call_comes_after_the_run_that_is_under_way() -> None:
    running, may_end, order = threading.Event(), threading.Event(), list[str]()

    def run() -> None:
        running.set()
        assert may_end.wait(10)
        order.append("run")

    beside = Beside(Work(name="upkeep", run=run, every_s=0))
    beside.start()
    assert running.wait(10)
    threading.Timer(0.1, may_end.set).start()
    beside.finish(lambda: order.append("last"), threading.Event())
    assert order == ["run", "last"]


def test_the_last_call_is_made_though_the_work_was_never_started() -> None:
    order: list[str] = []
    Beside(Work(name="upkeep", run=lambda: order.append("run"), every_s=0)).finish(
        lambda: order.append("last"), threading.Event()
    )
    assert order == ["last"]


def test_a_stop_of_the_service_waits_for_no_last_call() -> None:
    stop, may_end = threading.Event(), threading.Event()
    beside = Beside(Work(name="upkeep", run=lambda: None, every_s=0))
    try:
        threading.Timer(0.1, stop.set).start()
        beside.finish(lambda: _wait(may_end), stop)
        assert stop.is_set()
        assert not beside.join(0)
    finally:
        may_end.set()
    assert beside.join(10)


def _wait(event: threading.Event) -> None:
    event.wait(30)


def test_a_failure_of_the_last_call_is_raised() -> None:
    with pytest.raises(ValueError, match="a bug"):
        Beside(Work(name="upkeep", run=lambda: None, every_s=0)).finish(_fails, threading.Event())


def test_after_a_run_that_failed_there_is_no_last_call() -> None:
    order: list[str] = []
    beside = Beside(Work(name="upkeep", run=_fails, every_s=0))
    beside.start()
    assert beside.join(10)
    with pytest.raises(ValueError, match="a bug"):
        beside.finish(lambda: order.append("last"), threading.Event())
    assert order == []
