"""Audits that repeat: when the first is due, and what an error, a stop and a restart do to them."""

import threading
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from streaming.audit import history
from streaming.audit.history import Past
from streaming.audit.place import Place
from streaming.audit.repeat.beside_service import due_in_seconds
from streaming.audit.repeat.schedule import Turns
from streaming.clock import ManualClock
from streaming.errors import UnavailableError

NOW_MS = 1_700_000_000_000


class Work:
    """Takes turns until the third, which stops; each ends as told."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.taken = 0
        self.turns = Turns(self, 0, 0, threading.Event())
        self.was_busy: list[bool] = []

    def __call__(self) -> None:
        self.taken += 1
        self.was_busy.append(self.turns.is_busy)
        error = self.errors.pop(0)
        if not self.errors:
            self.turns.stop()
        if error is not None:
            raise error


@pytest.mark.parametrize(
    "error", [UnavailableError("no ZooKeeper"), RuntimeError("Spark is broken")], ids=["ours", "anybody's"]
)
def test_an_audit_that_fails_is_tried_again_at_the_next_turn(error: Exception) -> None:
    work = Work(error, error, None)

    work.turns.repeat()

    assert work.taken == 3
    assert work.was_busy == [True] * 3
    assert not work.turns.is_busy


def test_after_a_stop_no_turn_begins() -> None:
    work = Work(None)
    work.turns.stop()

    work.turns.repeat()

    assert work.taken == 0


def test_a_stop_ends_the_pause_between_two_turns() -> None:
    begun = threading.Event()
    turns = Turns(begun.set, 3_600, 0, threading.Event())
    thread = threading.Thread(target=turns.repeat)
    thread.start()
    assert begun.wait(10)

    turns.stop()
    thread.join(10)

    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("ages_s", "due_s"),
    [
        pytest.param([], 0, id="never audited"),
        pytest.param([50], 50, id="in the middle"),
        pytest.param([500, 10], 90, id="the last one counts"),
        pytest.param([100], 0, id="just due"),
        pytest.param([130], -30, id="overdue"),
    ],
)
def test_a_restart_does_not_make_an_audit_due_that_was_made(tmp_path: Path, ages_s: list[int], due_s: int) -> None:
    place = Place(str(tmp_path), pafs.LocalFileSystem(), str(tmp_path))
    for age_s in ages_s:
        history.add(place, Past(NOW_MS - age_s * 1000, True, 0, 0, 0, 0))

    assert due_in_seconds(place, 100, ManualClock(NOW_MS)) == due_s
