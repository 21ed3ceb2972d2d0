"""The start of the service: a JVM that a signal ended with it is a stop and no failure."""

import threading

import pytest

from streaming.app import _on_signal, _taken
from streaming.errors import ConfigError, StopRequestedError


def _fails() -> None:
    raise ConfigError("no such master")


def test_a_start_of_spark_that_fails_is_a_failure() -> None:
    with pytest.raises(ConfigError, match="no such master"):
        _taken(_fails, threading.Event())  # type: ignore[arg-type]


def test_a_start_of_spark_that_fails_after_a_signal_is_a_stop() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequestedError):
        _taken(_fails, stop)  # type: ignore[arg-type]


def test_a_signal_requests_a_stop_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stop = threading.Event()
    for _ in range(2):
        _on_signal(stop, 15)
    assert stop.is_set()
    assert caplog.text.count("SIGTERM: stopping") == 1
