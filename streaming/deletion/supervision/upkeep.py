"""Runs the service's periodic duties: it removes old data, and checks whether every message is accounted for.

A message that was read is accounted for if it has a receipt, or waits as a retry (streaming.reconcile).
"""

import logging
import time
from collections.abc import Callable

from streaming.clock import Clock
from streaming.config.settings import Settings
from streaming.deletion.fair_lock import FairLock
from streaming.dlq.expiry import expire
from streaming.errors import ReaperError, StopRequestedError
from streaming.metrics import Metrics
from streaming.ports import Pulsar
from streaming.reconcile.gaps import Reconciliation
from streaming.state import journal, receipts
from streaming.state.receipts import Receipts
from udfs.units import DAY_MS

log = logging.getLogger("ledger-reaper")

_TIDY_S = 3600.0
_RECONCILE_S = 300.0


class Upkeep:
    """The service's periodic duties.

    Args:
        tidy: removes data that is older than the configuration keeps it.
        reconcile: checks whether all messages are accounted for.
    """

    def __init__(
        self,
        tidy: Callable[[], None],
        reconcile: Callable[[], Reconciliation],
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tidy = tidy
        self._reconcile = reconcile
        self._metrics = metrics
        self._monotonic = monotonic
        self._gaps: dict[tuple[str, str], str] = {}
        self._tidied_s = monotonic()
        self._reconciled_s = monotonic() - _RECONCILE_S  # check at once: messages may have gone since the last run

    def do_what_is_due(self) -> None:
        """Run each duty that is due. It may be called at any rate."""
        if self._monotonic() - self._reconciled_s >= _RECONCILE_S:
            self.find_gaps()
            self._reconciled_s = self._monotonic()
        if self._monotonic() - self._tidied_s >= _TIDY_S:
            self._tidy()
            self._tidied_s = self._monotonic()

    def find_gaps(self) -> list[str]:
        """Check now, and raise the alarm for gaps. Returns the gaps of this and all earlier checks.

        A check that fails finds no gap, and is repeated.
        """
        try:
            result = self._reconcile()
        except ReaperError as error:
            log.warning("could not check whether every message has a receipt, trying again later: %s", error)
            return list(self._gaps.values())
        self._metrics.unaccounted(result)
        if result.doubt:
            log.warning("checked only in part whether every message has a receipt, trying again: %s", result.doubt)
        for gap in result.gaps:
            log.error("ALARM, not accounted for: %s. Stop the service, keep its state, and run `check`.", gap)
        self._gaps |= result.gaps_by_kind
        return list(self._gaps.values())


def tidy_up(settings: Settings, pulsar: Pulsar, table: Receipts, lock: FairLock, clock: Clock) -> None:
    """Merge the receipts' small files, and delete receipts, journal and dead letters past their configured age."""
    # failures are logged, and the next call repeats the step: upkeep must never stop the work
    try:
        _tidy_state(settings, table, lock, clock.now_ms())
        expire(settings, pulsar, clock.now_ms())
    except ReaperError as error:
        log.warning("could not expire dead letters, trying again later: %s", error)
    except StopRequestedError:
        return


def _tidy_state(settings: Settings, table: Receipts, lock: FairLock, now_ms: int) -> None:
    state, state_dir = settings.state, settings.state_dir
    # between two chunks
    with lock:
        try:
            # now_ms is the earlier of two clocks, so a clock that is wrong keeps undo data longer (decision 22)
            receipts.expire(state_dir, now_ms - state.receipts_days * DAY_MS, now_ms=now_ms)
            receipts.compact(state_dir)
            table.sync()
            days = journal.expire(state_dir, now_ms=now_ms, keep_days=state.journal_days)
        except Exception as error:
            log.info("maintenance of %s failed and is tried again later: %s", state.dir, error)
        else:
            log.info("maintenance: receipts compacted, %s days of journal expired", days)
