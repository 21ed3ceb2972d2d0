"""Audits next to the running service, as [audit] configures them: on its Spark session, in a thread of their own."""

import threading

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from streaming.audit import history
from streaming.audit.command import AuditCommand, AuditRequest
from streaming.audit.options import AuditOptions
from streaming.audit.place import Place, place_of
from streaming.beside import Beside, Work, logged
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings

_LEAVE_S = 3.0  # a run that takes longer ends when Spark is stopped next


def auditing(spark: SparkSession, settings: Settings) -> Beside:
    """Return the audits, to be started. Raises UnavailableError."""
    place = place_of(settings, None)
    request = AuditRequest(
        AuditOptions(settings.safety.min_age_seconds),
        config="F",
        publish=settings.audit.publish,
        is_quiet=True,
        repeats=True,
    )
    every_s = settings.audit.every_seconds
    stop = threading.Event()
    command = AuditCommand(spark, settings, request, place, stop)

    def run() -> None:
        # in a pool of its own: in the service's pool, deletions would wait for an audit's jobs
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "audit")
        command.run()

    work = Work(
        name="audit",
        run=inheritable_thread_target(run),
        every_s=every_s,
        first_after_s=due_in_seconds(place, every_s, SystemClock()),
        leave_s=_LEAVE_S,
        keeps_from_ending=True,
        on_failure=logged("audit", every_s),
    )
    return Beside(work, stop)


def due_in_seconds(place: Place, every_seconds: int, clock: Clock) -> float:
    """Return the seconds until the next audit; the last one counts, also across restarts. Raises UnavailableError."""
    past = history.read(place)
    return past[-1].at_ms / 1000 + every_seconds - clock.now_ms() / 1000 if past else 0.0
