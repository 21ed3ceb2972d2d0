"""Lets a signal end an audit cleanly: PySpark's calls to the JVM can't be interrupted, so the work has a thread."""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 20.0  # what is between two Spark jobs then; Spark, which is stopped next, cuts short what runs longer


class StoppedError(Exception):
    """The audit was asked to stop before its end: there are no new findings."""


def run_until_signal(spark: SparkSession, work: Callable[[], None], stop: threading.Event) -> bool:
    """Run the work; SIGTERM and SIGINT set stop, and Spark's jobs are cancelled. False if it was cut short.

    Raises what the work raised, unless it was stopped. Call it in the main thread, once Spark has set its handlers.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as failure:
            failures.append(failure)

    thread = threading.Thread(target=inheritable_thread_target(run), name="audit", daemon=True)
    with _signals(stop):
        thread.start()
        while thread.is_alive() and not stop.is_set():
            thread.join(_POLL_SECONDS)
        leaves_s = time.monotonic() + _LEAVE_SECONDS
        while thread.is_alive() and time.monotonic() < leaves_s:
            spark.sparkContext.cancelAllJobs()
            thread.join(_POLL_SECONDS)
    if failures and not stop.is_set():
        raise failures[0]
    return not failures and not thread.is_alive()


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    def handle(number: int, _frame: object) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
