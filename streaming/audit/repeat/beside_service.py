"""Audits beside the service: on its Spark session, in a thread of their own, and not for every restart."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.audit import history
from streaming.audit.command import AuditCommand, AuditRequest
from streaming.audit.options import AuditOptions
from streaming.audit.place import Place, place_of
from streaming.audit.repeat.schedule import Turns
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings

_LEAVE_SECONDS = 3.0  # Spark, which is stopped next, cuts short what runs longer


@contextmanager
def auditing(spark: SparkSession, settings: Settings) -> Iterator[Turns]:
    """Audit as [audit] says until the block is left, on the service's own Spark session."""
    place = place_of(settings, None)
    wanted = AuditRequest(
        AuditOptions(settings.safety.min_age_seconds),
        config="F",
        publish=settings.audit.publish,
        is_quiet=True,
        repeats=True,
    )
    first_after_seconds = due_in_seconds(place, settings.audit.every_seconds, SystemClock())
    stop = threading.Event()
    command = AuditCommand(spark, settings, wanted, place, stop)
    turns = Turns(command.run, settings.audit.every_seconds, first_after_seconds, stop)

    def repeat() -> None:
        # in the service's own pool its chunks would wait behind an audit's jobs
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "audit")
        turns.repeat()

    thread = threading.Thread(target=inheritable_thread_target(repeat), name="audit", daemon=True)
    thread.start()
    try:
        yield turns
    finally:
        turns.stop()
        thread.join(_LEAVE_SECONDS)


def due_in_seconds(place: Place, every_seconds: int, clock: Clock) -> float:
    """Seconds until the next audit is due: a restart of the service is no reason for one. Raises UnavailableError."""
    past = history.read(place)
    return past[-1].at_ms / 1000 + every_seconds - clock.now_ms() / 1000 if past else 0.0
