"""Audits next to the running service, as [audit] configures them: in a separate thread, with processes of their own."""

import threading

from streaming.audit import history
from streaming.audit.audit_options import AuditOptions
from streaming.audit.command import AuditRequest, run_again
from streaming.audit.output import Output, output_of
from streaming.audit.repeat.faults_log import FaultsLog
from streaming.beside import Beside, Work
from streaming.clock import Clock, SystemClock
from streaming.config.settings import Settings

_LEAVE_S = 3.0  # a run that takes longer ends with the process


def auditing(settings: Settings) -> Beside:
    """Return the repeated audits; the caller starts them. Raises UnavailableError."""
    output = output_of(settings, None)
    request = AuditRequest(
        options=AuditOptions(recheck_seconds=settings.safety.min_age_seconds),
        config="F",
        publish=settings.audit.publish,
        is_quiet=True,
        repeats=True,
    )
    every_s = settings.audit.every_seconds
    stop, faults = threading.Event(), FaultsLog(every_s, SystemClock())

    def run() -> None:
        run_again(settings, request, output, stop, is_beside_service=True)
        faults.passed()

    work = Work(
        name="audit",
        run=run,
        every_s=every_s,
        first_after_s=due_in_seconds(output, every_s, SystemClock()),
        leave_s=_LEAVE_S,
        keeps_from_ending=True,
        on_failure=faults.failed,
    )
    return Beside(work, stop)


def due_in_seconds(output: Output, every_seconds: int, clock: Clock) -> float:
    """Return the seconds until the next audit, also if the last was before a restart. Raises UnavailableError."""
    past = history.read(output)
    return past[-1].at_ms / 1000 + every_seconds - clock.now_ms() / 1000 if past else 0.0
