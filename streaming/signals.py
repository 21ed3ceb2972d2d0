"""Turns SIGTERM and SIGINT into a call of ours, instead of the end of the process."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_signals(told: Callable[[int], None]) -> Iterator[None]:
    """Call told(number) when this process gets SIGTERM or SIGINT; the handlers from before return at the end.

    Only the main thread can set handlers; in another thread nothing changes.
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
