"""Guards next to the running service, as [snapshots] configures them, in a thread of their own and without Spark."""

import logging
import threading

from streaming.audit.options import FindingFilters
from streaming.beside import Beside, Work, logged
from streaming.config.settings import Settings
from streaming.snapshots.guard.guards import guard_all

log = logging.getLogger("ledger-reaper")

_LEAVE_S = 3.0  # the next run repeats a guard that was interrupted


def guarding(settings: Settings) -> Beside:
    """Return the creating and moving of guards, to be started; the first run is at once."""
    stop = threading.Event()

    def run() -> None:
        for each in guard_all(settings, FindingFilters()):
            if stop.is_set():
                return
            told = log.error if each.error else log.info if each.is_new or each.moved_from else log.debug
            told("snapshots: %s", each.in_words())

    every_s = settings.snapshots.guard_every_seconds
    on_failure = logged("guard of snapshots", every_s)
    return Beside(Work(name="guard", run=run, every_s=every_s, leave_s=_LEAVE_S, on_failure=on_failure), stop)
