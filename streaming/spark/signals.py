"""Turns SIGTERM and SIGINT into a call of ours in the JVM, as streaming/signals.py does in Python."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


class _SignalHandler:
    """A sun.misc.SignalHandler that calls Python for each signal that the JVM gets."""

    class Java:
        implements: tuple[str, ...] = ("sun.misc.SignalHandler",)

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told

    def handle(self, received: Any) -> None:
        self._told(received.getNumber())


@contextlib.contextmanager
def jvm_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Call told(number), in another thread, when the JVM gets SIGTERM or SIGINT, so that the JVM does not end.

    The process of spark-submit is the JVM, and systemd stops a service by a signal to all of its processes.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        raise RuntimeError("no Spark session was started")
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    names = [signal.Signals(number).name.removeprefix("SIG") for number in (signal.SIGTERM, signal.SIGINT)]
    signals = gateway.jvm.sun.misc.Signal
    handler = _SignalHandler(told)
    before = {name: signals.handle(signals(name), handler) for name in names}
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the JVM may have ended
            for name, old in before.items():
                signals.handle(signals(name), old)
