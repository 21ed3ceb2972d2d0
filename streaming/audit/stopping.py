"""Lets SIGTERM and Ctrl-C end an audit cleanly.

A call of PySpark's into the JVM can't be interrupted, so the audit runs in a thread of its own and the main thread
waits for signals.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.signals import on_signals

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 20.0  # for what runs between two Spark jobs; whatever takes longer ends when Spark is stopped next


class StoppedError(Exception):
    """Somebody asked the audit to stop before its end, so there are no new findings."""


def run_until_signal(spark: SparkSession, work: Callable[[], None], stop: threading.Event) -> bool:
    """Run the work, and return whether it came to its end. SIGTERM and SIGINT set stop and cancel Spark's jobs.

    Raises what the work raised, unless a signal stopped it. Call it in the main thread.
    """
    failures: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as failure:
            failures.append(failure)

    def on_signal(number: int) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    thread = threading.Thread(target=inheritable_thread_target(run), name="audit", daemon=True)
    with on_signals(on_signal):
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
