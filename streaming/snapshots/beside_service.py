"""Guards beside the running service, as [snapshots] configures them, in a thread of their own and without Spark."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streaming.audit.options import FindingFilters
from streaming.audit.repeat.schedule import Schedule
from streaming.config.settings import Settings
from streaming.snapshots.guard import guard_all

log = logging.getLogger("ledger-reaper")

_LEAVE_SECONDS = 3.0  # a guard that is half done is done again by the next run


@contextmanager
def guarding(settings: Settings) -> Iterator[Schedule]:
    """Make and move guards again and again until the block is left; the first time at once."""
    stop = threading.Event()

    def run() -> None:
        for each in guard_all(settings, FindingFilters()):
            if stop.is_set():
                return
            told = log.error if each.error else log.info if each.is_new or each.moved_from else log.debug
            told("snapshots: %s", each.in_words())

    schedule = Schedule(run, settings.snapshots.guard_every_seconds, 0, stop, "guard of snapshots")
    thread = threading.Thread(target=schedule.repeat, name="guard", daemon=True)
    thread.start()
    try:
        yield schedule
    finally:
        schedule.stop()
        thread.join(_LEAVE_SECONDS)
