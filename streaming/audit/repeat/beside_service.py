"""Audits beside the running service, as [audit] configures them: on its Spark session, in a thread of their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.audit import history
from streaming.audit.command import AuditCommand, AuditRequest
from streaming.audit.options import AuditOptions
from streaming.audit.place import Place, place_of
from streaming.audit.repeat.schedule import Schedule
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings

_LEAVE_SECONDS = 3.0  # whatever takes longer ends when Spark is stopped next


@contextmanager
def auditing(spark: SparkSession, settings: Settings) -> Iterator[Schedule]:
    """Audit again and again until the block is left."""
    place = place_of(settings, None)
    request = AuditRequest(
        AuditOptions(settings.safety.min_age_seconds),
        config="F",
        publish=settings.audit.publish,
        is_quiet=True,
        repeats=True,
    )
    first_after_seconds = due_in_seconds(place, settings.audit.every_seconds, SystemClock())
    stop = threading.Event()
    command = AuditCommand(spark, settings, request, place, stop)
    schedule = Schedule(command.run, settings.audit.every_seconds, first_after_seconds, stop)

    def repeat() -> None:
        # in a pool of its own: in the service's pool, its deletions would wait behind an audit's jobs
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "audit")
        schedule.repeat()

    thread = threading.Thread(target=inheritable_thread_target(repeat), name="audit", daemon=True)
    thread.start()
    try:
        yield schedule
    finally:
        schedule.stop()
        thread.join(_LEAVE_SECONDS)


def due_in_seconds(place: Place, every_seconds: int, clock: Clock) -> float:
    """Return the seconds until the next audit; the last one counts, also across restarts. Raises UnavailableError."""
    past = history.read(place)
    return past[-1].at_ms / 1000 + every_seconds - clock.now_ms() / 1000 if past else 0.0
