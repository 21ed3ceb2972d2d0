"""Reports the progress of a job: the share that is done, the rate, and the time left."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streaming.clock import Clock

Say = Callable[[str], None]
_EVERY_SECONDS = 2.0


def line(done: int, total: int, elapsed_ms: int, noun: str = "units") -> str:
    """Format a line of progress. The time left assumes the rate so far."""
    share = f"{100 * done // total if total else 100} %"
    if not done or elapsed_ms <= 0:
        return f"{share} of {total:,} {noun}"
    rate = done * 1000 / elapsed_ms
    left = (total - done) / rate
    return f"{share} of {total:,} {noun}, {rate:,.0f} a second, {seconds(left)} left"


def seconds(count: float) -> str:
    """Format a duration."""
    rounded = round(count)
    if rounded < 120:
        return f"{rounded} s"
    return f"{rounded // 60} min" if rounded < 7200 else f"{rounded / 3600:.1f} h"


@contextmanager
def progress_of(say: Say, done: Callable[[], int], total: int, clock: Clock, noun: str = "units") -> Iterator[None]:
    """Report the progress every other second until the block ends; if it did not raise, report that all is done."""
    ended, started_ms = threading.Event(), clock.now_ms()

    def report() -> None:
        last = -1
        while not ended.wait(_EVERY_SECONDS):
            now = done()
            if now != last:
                say(line(now, total, clock.now_ms() - started_ms, noun))
            last = now

    reporter = threading.Thread(target=report, name="rocketmq-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
    say(line(total, total, clock.now_ms() - started_ms, noun))
