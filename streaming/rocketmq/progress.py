"""Tells how far a job is: how many units of how many, how many a second, and how long the rest will take."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streaming.clock import Clock

Say = Callable[[str], None]
_EVERY_SECONDS = 2.0


def line(done: int, total: int, elapsed_ms: int, what: str = "units") -> str:
    """One line of progress. What is left is taken to go at the rate so far."""
    share = f"{100 * done // total if total else 100} %"
    if not done or elapsed_ms <= 0:
        return f"{share} of {total:,} {what}"
    rate = done * 1000 / elapsed_ms
    left = (total - done) / rate
    return f"{share} of {total:,} {what}, {rate:,.0f} a second, {seconds(left)} left"


def seconds(count: float) -> str:
    """A duration for people."""
    whole = round(count)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole / 3600:.1f} h"


@contextmanager
def told(say: Say, done: Callable[[], int], total: int, clock: Clock, what: str = "units") -> Iterator[None]:
    """Say how far it is, every other second, until the with block ends. If it did not raise, say that all is done."""
    ended, began_ms = threading.Event(), clock.now_ms()

    def repeat() -> None:
        last = -1
        while not ended.wait(_EVERY_SECONDS):
            now = done()
            if now != last:
                say(line(now, total, clock.now_ms() - began_ms, what))
            last = now

    teller = threading.Thread(target=repeat, name="rocketmq-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
    say(line(total, total, clock.now_ms() - began_ms, what))
