"""Errors that come back as text: ours are recognised by what to do about them, whatever subclass was raised."""

import pytest

from streaming.errors import FencedError, ReaperError, StopRequestedError, UnavailableError
from streaming.spark.failures import translated


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("x\nstreaming.errors.UnavailableError: no broker\n  at", UnavailableError, id="by its own name"),
        pytest.param(
            "streaming.adapters.zookeeper.session.ConnectionLostError: lost", UnavailableError, id="a subclass of it"
        ),
        pytest.param("streaming.errors.FencedError: another", FencedError, id="fenced before refused"),
        pytest.param("streaming.errors.ReaperError: a fault", None, id="a fault of ours stays what it is"),
        pytest.param("java.lang.IllegalStateException: UnavailableError: no", None, id="somebody else's"),
    ],
)
def test_an_executors_error_is_known_by_its_text(text: str, kind: type[ReaperError] | None) -> None:
    error = RuntimeError(text)
    found = translated(error)
    assert found is error if kind is None else type(found) is kind


def test_a_stop_is_not_mistaken_for_a_fault() -> None:
    stop = StopRequestedError()
    assert translated(stop) is stop
