"""Turns SIGTERM and SIGINT that the JVM receives into a Python call, as streaming/signals.py does for Python."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


class _SignalHandler:
    """A sun.misc.SignalHandler that calls Python for each signal that the JVM receives."""

    class Java:
        implements: tuple[str, ...] = ("sun.misc.SignalHandler",)

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal

    def handle(self, received: Any) -> None:
        self._on_signal(received.getNumber())


@contextlib.contextmanager
def jvm_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call on_signal(number), in another thread, when the JVM gets SIGTERM or SIGINT, so that the JVM does not end.

    The process of spark-submit is the JVM, and systemd stops a service by a signal to all of its processes.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        raise RuntimeError("no Spark session was started")
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    names = [signal.Signals(number).name.removeprefix("SIG") for number in (signal.SIGTERM, signal.SIGINT)]
    signals = gateway.jvm.sun.misc.Signal
    handler = _SignalHandler(on_signal)
    before = {name: signals.handle(signals(name), handler) for name in names}
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the JVM may have ended
            for name, old in before.items():
                signals.handle(signals(name), old)
