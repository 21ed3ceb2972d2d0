"""The lock serves threads in the order of their requests, so that its last holder can't overtake others."""

import threading

import pytest

from streaming.deletion.fair_lock import FairLock
from streaming.errors import StopRequestedError


def test_a_holder_of_the_lock_waits_for_those_that_asked_earlier() -> None:
    turn, order, asked = FairLock(), [], threading.Event()

    def other() -> None:
        asked.set()
        with turn:
            order.append("other")

    with turn:
        thread = threading.Thread(target=other)
        thread.start()
        assert asked.wait(5)
        while not turn._waiting:
            pass
        order.append("first")
    with turn:
        order.append("first again")
    thread.join(5)
    assert order == ["first", "other", "first again"]


def test_the_lock_has_one_holder_at_a_time_and_serves_all() -> None:
    turn, inside, most, count = FairLock(), [0], [0], [0]

    def work() -> None:
        for _ in range(200):
            with turn:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                count[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most[0], count[0]) == (1, 1600)


def test_an_error_releases_the_lock() -> None:
    turn = FairLock()
    try:
        with turn:
            raise ValueError
    except ValueError:
        pass
    with turn:
        assert not turn._waiting


def test_waiting_for_the_lock_ends_when_the_service_stops_and_the_holder_keeps_it() -> None:
    stop = threading.Event()
    turn, ended = FairLock(stop), []

    def wait() -> None:
        try:
            with turn:
                ended.append("had a turn")
        except StopRequestedError:
            ended.append("gave up")

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(3)]
    with turn:
        for thread in threads:
            thread.start()
        while len(turn._waiting) < 3:
            pass
        stop.set()
        for thread in threads:
            thread.join(10)
        assert ended == ["gave up"] * 3
        assert not turn._waiting
    assert not turn._taken


def test_a_lock_that_is_passed_to_a_thread_that_gives_up_goes_to_the_next() -> None:
    turn, late, next_one = FairLock(), threading.Event(), threading.Event()
    turn.__enter__()
    turn._waiting.extend([late, next_one])
    turn.__exit__()
    assert late.is_set()
    turn._leave(late)
    assert next_one.is_set()
    turn.__exit__()
    assert not turn._taken


def test_no_thread_gets_the_lock_after_a_stop() -> None:
    stop = threading.Event()
    turn = FairLock(stop)
    stop.set()
    with pytest.raises(StopRequestedError), turn:
        pass
    assert not turn._taken
