"""Tenants share a broker's threads: each has a request in flight before another tenant has its second."""

import threading
import time

import pytest

from streaming.adapters.pulsar.admin_api.threads import AskingThreads
from streaming.adapters.pulsar.silence import silence

WAIT_S = 60.0  # longer than the test takes


def test_hanging_requests_of_a_tenant_leave_a_thread_to_others() -> None:
    ended = threading.Event()

    def hangs() -> str:
        ended.wait(WAIT_S)
        return "late"

    threads = AskingThreads(2)
    calls = {f"noisy/{number}": ("noisy", hangs) for number in range(8)}
    calls |= {f"honest/{number}": ("honest", lambda: "answer") for number in range(8)}
    asked = threads.ask("b", calls, time.monotonic() + WAIT_S)

    answers = [one.result("") for name, one in asked.items() if name.startswith("honest")]

    assert answers == ["answer"] * 8
    assert not asked["noisy/7"].future.done()
    ended.set()
    assert [one.result("") for name, one in asked.items() if name.startswith("noisy")] == ["late"] * 8
    threads.close()


@pytest.mark.parametrize("hides", [True, False])
def test_a_blocked_thread_counts_as_a_timeout_unless_the_call_hides_it(hides: bool) -> None:
    ended, was_asked = threading.Event(), threading.Semaphore(0)

    def hangs() -> str:
        was_asked.release()
        ended.wait(WAIT_S)
        return "late"

    threads = AskingThreads(2)
    calls = {str(number): ("noisy", hangs) for number in range(2)}
    asked = threads.ask("hides" if hides else "shows", calls, time.monotonic(), hides=hides)
    for _ in calls:
        assert was_asked.acquire(timeout=WAIT_S)

    assert [one.result("none") for one in asked.values()] == ["none"] * 2
    assert silence.is_due("hides" if hides else "shows", "noisy") is hides
    ended.set()
    threads.close()
    silence.drop("shows")
