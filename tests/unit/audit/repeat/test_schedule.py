"""An audit that repeats itself: what an error and a stop do to it."""

import threading

import pytest

from streaming.audit.repeat.schedule import Schedule
from streaming.errors import UnavailableError


class Work:
    """Takes turns until the third, which stops; each ends as told."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.taken = 0
        self.schedule = Schedule(self, 0, 0, threading.Event())
        self.was_busy: list[bool] = []

    def __call__(self) -> None:
        self.taken += 1
        self.was_busy.append(self.schedule.is_busy)
        error = self.errors.pop(0)
        if not self.errors:
            self.schedule.stop()
        if error is not None:
            raise error


@pytest.mark.parametrize(
    "error", [UnavailableError("no ZooKeeper"), RuntimeError("Spark is broken")], ids=["ours", "anybody's"]
)
def test_an_audit_that_fails_is_tried_again_at_the_next_turn(error: Exception) -> None:
    work = Work(error, error, None)

    work.schedule.repeat()

    assert work.taken == 3
    assert work.was_busy == [True] * 3
    assert not work.schedule.is_busy


def test_after_a_stop_no_turn_begins() -> None:
    work = Work(None)
    work.schedule.stop()

    work.schedule.repeat()

    assert work.taken == 0


def test_a_stop_ends_the_pause_between_two_turns() -> None:
    begun = threading.Event()
    schedule = Schedule(begun.set, 3_600, 0, threading.Event())
    thread = threading.Thread(target=schedule.repeat)
    thread.start()
    assert begun.wait(10)

    schedule.stop()
    thread.join(10)

    assert not thread.is_alive()
