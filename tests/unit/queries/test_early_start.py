"""What begins beside the rest of a start is there when it is asked for, and goes where the start fails."""

import threading
from dataclasses import dataclass, field

import pytest

from streaming.errors import ConfigError, SafetyError
from streaming.queries.early_start import in_parallel


@dataclass
class PaperSession:
    """Says whether somebody has stopped it."""

    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.stopped.set()


class Slow:
    """Begins a session when it is told to go on."""

    def __init__(self) -> None:
        self.session = PaperSession()
        self.begins, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> PaperSession:
        self.begins.set()
        assert self.may_end.wait(10)
        return self.session


def test_spark_begins_while_the_block_does_something_else_and_whoever_took_it_stops_it() -> None:
    slow = Slow()

    with in_parallel(slow) as take:
        assert slow.begins.wait(10)
        slow.may_end.set()
        assert take() is slow.session

    assert not slow.session.stopped.is_set()


def test_a_start_that_is_refused_meanwhile_says_why_and_leaves_no_session_behind() -> None:
    slow = Slow()

    def begin() -> PaperSession:
        try:
            return slow()
        finally:
            assert not slow.session.stopped.is_set()

    def refused() -> None:
        with in_parallel(begin):
            assert slow.begins.wait(10)
            threading.Timer(0.1, slow.may_end.set).start()  # it is not there yet when the block ends
            raise SafetyError("already runs")

    with pytest.raises(SafetyError, match="already runs"):
        refused()

    assert slow.session.stopped.is_set()


def _fails() -> PaperSession:
    raise ConfigError("no such master")


def test_what_keeps_spark_from_beginning_is_raised_where_it_is_asked_for() -> None:
    def asks() -> None:
        with in_parallel(_fails) as take:
            rest.append("goes on until then")
            take()

    rest: list[str] = []
    with pytest.raises(ConfigError, match="no such master"):
        asks()

    assert rest


def test_where_both_fail_the_rest_of_the_start_says_why() -> None:
    with pytest.raises(SafetyError, match="already runs"), in_parallel(_fails):
        raise SafetyError("already runs")
