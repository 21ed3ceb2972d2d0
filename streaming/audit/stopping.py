"""Lets SIGTERM and Ctrl-C end an audit cleanly.

A call of PySpark's into the JVM can't be interrupted, so the audit runs in a thread of its own and the main thread
waits for signals.
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.errors import StoppedBySignalError
from streaming.signals import on_signals

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.2
_NOTHING = "nothing was changed"
_LEAVE_SECONDS = 20.0  # for what runs between two Spark jobs; whatever takes longer ends when Spark is stopped next


class StoppedError(Exception):
    """Somebody asked the audit to stop before its end, so there are no new findings."""


def run_until_signal(
    spark: SparkSession, work: Callable[[], None], stop: threading.Event, left: str = _NOTHING
) -> int | None:
    """Run the work. SIGTERM and SIGINT set stop and cancel Spark's jobs.

    Returns the signal that came while the work was ending, too late to stop it.

    Raises what the work raised; StoppedBySignalError, with what is left then, where a signal stopped the work before
    its end, or came before its start. Call it in the main thread.
    """
    if stop.is_set():
        raise StoppedBySignalError(signal.SIGTERM, left)  # which of the two signals it was is not known here
    failures: list[Exception] = []
    ended: list[bool] = []
    numbers: list[int] = []

    def run() -> None:
        try:
            work()
            ended.append(True)
        except Exception as failure:
            failures.append(failure)

    def on_signal(number: int) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        numbers.append(number)
        stop.set()

    thread = threading.Thread(target=inheritable_thread_target(run), name="audit", daemon=True)
    with on_signals(on_signal):
        thread.start()
        _wait(spark, thread, stop)
    if numbers and not ended:
        raise StoppedBySignalError(numbers[0], left)
    if failures and not stop.is_set():
        raise failures[0]
    return next(iter(numbers), None)


def _wait(spark: SparkSession, thread: threading.Thread, stop: threading.Event) -> None:
    while thread.is_alive() and not stop.is_set():
        thread.join(_POLL_SECONDS)
    if stop.is_set():
        _cancel(spark, thread)


def _cancel(spark: SparkSession, thread: threading.Thread) -> None:
    """Cancel Spark's jobs until the thread has ended, without the stack of Java's that each failed job would log."""
    with contextlib.suppress(Exception):
        spark.sparkContext.setLogLevel("OFF")
    leaves_s = time.monotonic() + _LEAVE_SECONDS
    while thread.is_alive() and time.monotonic() < leaves_s:
        spark.sparkContext.cancelAllJobs()
        thread.join(_POLL_SECONDS)
