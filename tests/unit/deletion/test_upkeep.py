"""What is done beside the work: one at a time, not waited for at a stop, and what goes wrong is not lost."""

import threading

import pytest

from streaming.deletion.upkeep import BackgroundCall


def test_one_call_at_a_time_and_the_last_one_after_what_still_runs() -> None:
    beside, going, order = BackgroundCall(threading.Event()), threading.Event(), []

    def first() -> None:
        assert going.wait(10)
        order.append("first")

    assert beside.begin(first)
    assert not beside.begin(lambda: order.append("never"))
    going.set()
    beside.finish(lambda: order.append("last"))
    assert order == ["first", "last"]


def test_a_stop_waits_for_no_call() -> None:
    stop, going = threading.Event(), threading.Event()
    beside = BackgroundCall(stop)
    try:
        assert beside.begin(lambda: going.wait(30))
        threading.Timer(0.1, stop.set).start()
        beside.finish(lambda: None)
        assert stop.is_set()
        assert not beside.join(0)
    finally:
        going.set()
    assert beside.join(10)


def test_what_a_call_raised_is_raised_once_by_the_next() -> None:
    beside = BackgroundCall(threading.Event())

    def fails() -> None:
        raise ValueError("a bug")

    assert beside.begin(fails)
    assert beside.join(10)
    with pytest.raises(ValueError, match="a bug"):
        beside.begin(lambda: None)
    assert beside.begin(lambda: None)
    with pytest.raises(ValueError, match="a bug"):
        beside.finish(fails)
    beside.check()
