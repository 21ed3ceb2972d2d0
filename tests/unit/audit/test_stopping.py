"""A signal that comes as a step ends stops the next step, and the exit code shows it."""

import os
import signal
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from streaming.audit.stopping import run_once, run_until_signal
from streaming.errors import SafetyError, StoppedBySignalError


def test_work_does_not_start_after_a_signal() -> None:
    stop, done = threading.Event(), list[str]()
    stop.set()
    with pytest.raises(StoppedBySignalError, match="left over"):
        run_until_signal(lambda: done.append("work"), stop, "left over")
    assert done == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_at_the_end_of_the_search_stops_the_audit_before_its_publication(number: int, exit_code: int) -> None:
    class Command:
        stop = threading.Event()

        def search(self) -> str:
            os.kill(os.getpid(), number)
            self.stop.wait()
            return "found"

        def ask(self, findings: str) -> None:
            pytest.fail(f"asked about {findings}")

        def conclude(self, findings: str) -> None:
            pytest.fail(f"published {findings}")

    with pytest.raises(StoppedBySignalError, match="nothing was published") as raised:
        run_once(Command(), "left over")
    assert raised.value.exit_code == exit_code


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_nothing_is_published_before_the_answer_is_yes(answer: str) -> None:
    done: list[str] = []

    class Command:
        stop = threading.Event()

        def search(self) -> str:
            done.append("search")
            return "found"

        def ask(self, findings: str) -> None:
            done.append(f"ask about {findings}")
            if answer == "no":
                raise SafetyError("nothing was done")

        def conclude(self, findings: str) -> None:
            done.append(f"publish {findings}")

    with nullcontext() if answer == "yes" else pytest.raises(SafetyError):
        run_once(Command(), "left over")
    assert done == ["search", "ask about found", "publish found"][: 3 if answer == "yes" else 2]


def test_an_audit_whose_output_nobody_reads_ends_without_a_traceback() -> None:
    def search() -> None:
        raise SystemExit(1)  # as rich does when the pipe is closed

    steps = SimpleNamespace(stop=threading.Event(), search=search)
    with pytest.raises(SystemExit):
        run_once(steps, "left over")
