"""SIGTERM and SIGINT as a call instead of an end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def signals_told(told: Callable[[int], None]) -> Iterator[None]:
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
