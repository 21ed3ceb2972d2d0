"""Lets a signal end an audit cleanly: PySpark's calls to the JVM can't be interrupted, so the work has a thread."""

import logging
import signal
import threading
import time
from collections.abc import Callable

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.spark.signals import on_signals

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 20.0  # what is between two Spark jobs then; Spark, which is stopped next, cuts short what runs longer


class StoppedError(Exception):
    """The audit was asked to stop before its end: there are no new findings."""


def run_until_signal(spark: SparkSession, work: Callable[[], None], stop: threading.Event) -> bool:
    """Run the work; SIGTERM and SIGINT set stop, and Spark's jobs are cancelled. False if it was cut short.

    Raises what the work raised, unless it was stopped. Call it in the main thread.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as failure:
            failures.append(failure)

    def told(number: int) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    thread = threading.Thread(target=inheritable_thread_target(run), name="audit", daemon=True)
    with on_signals(told):
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
