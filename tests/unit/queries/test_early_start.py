"""A session that starts in parallel is ready when it is used, and is stopped if the start fails."""

import threading
from dataclasses import dataclass, field

import pytest

from streaming.errors import ConfigError, SafetyError
from streaming.queries.early_start import in_parallel


@dataclass
class PaperSession:
    """Records whether it was stopped."""

    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.stopped.set()


class Slow:
    """Starts a session once it is released."""

    def __init__(self) -> None:
        self.session = PaperSession()
        self.begins, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> PaperSession:
        self.begins.set()
        assert self.may_end.wait(10)
        return self.session


def test_spark_starts_during_the_block_and_its_user_stops_it() -> None:
    slow = Slow()

    with in_parallel(slow) as take:
        assert slow.begins.wait(10)
        slow.may_end.set()
        assert take() is slow.session

    assert not slow.session.stopped.is_set()


def test_a_start_that_fails_in_between_raises_its_error_and_leaves_no_session() -> None:
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


def test_an_error_of_sparks_start_is_raised_where_the_session_is_used() -> None:
    def asks() -> None:
        with in_parallel(_fails) as take:
            rest.append("goes on until then")
            take()

    rest: list[str] = []
    with pytest.raises(ConfigError, match="no such master"):
        asks()

    assert rest


def test_if_both_fail_the_error_of_the_rest_of_the_start_is_raised() -> None:
    with pytest.raises(SafetyError, match="already runs"), in_parallel(_fails):
        raise SafetyError("already runs")
