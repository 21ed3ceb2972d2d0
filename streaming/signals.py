"""Turns SIGTERM and SIGINT into a call, instead of the end of the process."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call handle(number) when this process gets SIGTERM or SIGINT; the previous handlers return at the end.

    In another thread than the main thread, this does nothing.
    """
    # Python lets only the main thread set handlers
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _frame: object) -> None:
        handle(number)

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
