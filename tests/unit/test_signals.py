import os
import signal
import threading

import pytest

from streaming.signals import on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_becomes_a_call_and_the_handler_from_before_returns(number: signal.Signals) -> None:
    told: list[int] = []
    before = signal.getsignal(number)
    with on_signals(told.append):
        os.kill(os.getpid(), number)
        assert told == [number]
    assert signal.getsignal(number) is before


def test_in_another_thread_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def look() -> None:
        with on_signals(lambda _number: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
