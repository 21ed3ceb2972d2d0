"""Creates and moves guards beside the service, in a thread of its own and without Spark; [snapshots] configures it."""

import logging
import threading

from streaming.audit.audit_options import FindingFilters
from streaming.beside import Beside, Work, logged
from streaming.config.settings import Settings
from streaming.snapshots.guard.guards import guard_all

log = logging.getLogger("ledger-reaper")

_LEAVE_S = 3.0  # a stop waits no longer: the next run repeats an interrupted guard


def guarding(settings: Settings) -> Beside:
    """Return the work that creates and moves guards; its first run is immediate."""
    stop = threading.Event()

    def run() -> None:
        for guarded in guard_all(settings, FindingFilters()):
            if stop.is_set():
                return
            log_line = log.error if guarded.error else log.info if guarded.is_new or guarded.moved_from else log.debug
            log_line("snapshots: %s", guarded.describe())

    every_s = settings.snapshots.guard_every_seconds
    on_failure = logged("guard of snapshots", every_s)
    return Beside(Work(name="guard", run=run, every_s=every_s, leave_s=_LEAVE_S, on_failure=on_failure), stop)
