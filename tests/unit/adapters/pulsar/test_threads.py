"""Tenants share the threads that ask a broker: each has a question under way before another one has its second."""

import threading
import time

from streaming.adapters.pulsar.threads import AskingThreads

WAIT_S = 60.0  # longer than the test takes


def test_questions_of_one_tenant_that_hang_leave_a_thread_to_another_until_it_has_no_question_left() -> None:
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
