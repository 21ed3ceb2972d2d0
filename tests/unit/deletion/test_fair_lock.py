"""Turns are taken in the order of asking, so that nobody who has just had one takes the next before others."""

import threading

import pytest

from streaming.deletion.fair_lock import FairLock
from streaming.errors import StopRequestedError


def test_who_has_just_had_a_turn_waits_for_those_who_asked_before() -> None:
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


def test_one_at_a_time_and_everybody_in_the_end() -> None:
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


def test_an_error_gives_the_turn_back() -> None:
    turn = FairLock()
    try:
        with turn:
            raise ValueError
    except ValueError:
        pass
    with turn:
        assert not turn._waiting


def test_who_waits_gives_up_when_the_service_stops_and_leaves_the_turn_to_whoever_has_it() -> None:
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


def test_a_turn_that_is_handed_to_one_who_gives_up_goes_to_the_next() -> None:
    turn, late, next_one = FairLock(), threading.Event(), threading.Event()
    turn.__enter__()
    turn._waiting.extend([late, next_one])
    turn.__exit__()
    assert late.is_set()
    turn._leave(late)
    assert next_one.is_set()
    turn.__exit__()
    assert not turn._taken


def test_nobody_begins_after_a_stop() -> None:
    stop = threading.Event()
    turn = FairLock(stop)
    stop.set()
    with pytest.raises(StopRequestedError), turn:
        pass
    assert not turn._taken
