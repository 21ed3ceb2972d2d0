"""SIGTERM and SIGINT as a call instead of an end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


class _SignalHandler:
    """A sun.misc.SignalHandler: what the JVM gets is handed on to Python."""

    class Java:
        implements: tuple[str, ...] = ("sun.misc.SignalHandler",)

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told

    def handle(self, received: Any) -> None:
        self._told(received.getNumber())


@contextlib.contextmanager
def jvm_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Hand the JVM's SIGTERM and SIGINT to told(number), from another thread, instead of ending the JVM under us.

    spark-submit's process is the JVM, and systemd stops a service by a signal to all its processes.
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
        with contextlib.suppress(Py4JError, OSError):  # there may be no JVM any more
            for name, old in before.items():
                signals.handle(signals(name), old)


@contextlib.contextmanager
def on_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Call told(number) for each; whoever handled them before does so again afterwards.

    Only the main thread can do that; in any other nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: object) -> None:
        told(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
