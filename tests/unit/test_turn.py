"""Turns are taken in the order of asking, so that nobody who has just had one takes the next before others."""

import threading

from streaming.turn import Turn


def test_who_has_just_had_a_turn_waits_for_those_who_asked_before() -> None:
    turn, order, asked = Turn(), [], threading.Event()

    def other() -> None:
        asked.set()
        with turn:
            order.append("other")

    with turn:
        thread = threading.Thread(target=other)
        thread.start()
        assert asked.wait(5)
        while not turn.is_asked_for:
            pass
        order.append("first")
    with turn:
        order.append("first again")
    thread.join(5)
    assert order == ["first", "other", "first again"]


def test_one_at_a_time_and_everybody_in_the_end() -> None:
    turn, inside, most, count = Turn(), [0], [0], [0]

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
    turn = Turn()
    try:
        with turn:
            raise ValueError
    except ValueError:
        pass
    with turn:
        assert not turn.is_asked_for
