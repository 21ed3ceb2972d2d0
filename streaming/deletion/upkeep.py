"""What the service does now and then beside its work: tidy up, and look whether every message is accounted for."""

import logging
import threading
import time
from collections.abc import Callable

from streaming.errors import ReaperError
from streaming.metrics import Metrics
from streaming.reconcile.messages import Reconciliation

log = logging.getLogger("ledger-reaper")

_TIDY_S = 3600.0
_ACCOUNT_S = 300.0
_LOOK_S = 0.2  # between two looks at stop


class BackgroundCall:
    """Runs calls in a thread beside the caller's, one after the other: a stop need not wait for them. For one thread.

    What a call raises is raised once, by begin, finish or check.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def begin(self, call: Callable[[], object]) -> bool:
        """Begin a call; False where one still runs, and nothing was begun."""
        if not self.join(0):
            return False
        self.check()
        self._thread = threading.Thread(target=self._run, args=(call,), name="care", daemon=True)
        self._thread.start()
        return True

    def finish(self, call: Callable[[], object]) -> None:
        """Run a call after the one that still runs, to its end or until stop is set."""
        while not self._stop.is_set() and not self.begin(call):
            self.join(_LOOK_S)
        while not self._stop.is_set() and not self.join(_LOOK_S):
            pass
        self.check()

    def check(self) -> None:
        """Raise what the last call raised."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def join(self, timeout_s: float) -> bool:
        """Wait for what runs; False where it still does."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self._failure = error


class Upkeep:
    """turn() as often as one likes: it does what is due, and nothing it does stops the work."""

    def __init__(
        self,
        tidy: Callable[[], None],
        accounts: Callable[[], Reconciliation],
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tidy = tidy
        self._accounts = accounts
        self._metrics = metrics
        self._monotonic = monotonic
        self._gaps: dict[tuple[str, str], str] = {}
        self._tidied_s = monotonic()
        self._accounted_s = monotonic() - _ACCOUNT_S  # the first look is at once: what went during a stop is news

    def turn(self) -> None:
        """Do what is due."""
        if self._monotonic() - self._accounted_s >= _ACCOUNT_S:
            self.account()
            self._accounted_s = self._monotonic()
        if self._monotonic() - self._tidied_s >= _TIDY_S:
            self._tidy()
            self._tidied_s = self._monotonic()

    def account(self) -> list[str]:
        """Look, show, and raise the alarm; returns the gaps of this look and of all before it.

        A look that fails is no gap, and is repeated.
        """
        try:
            accounts = self._accounts()
        except ReaperError as error:
            log.warning("accounts not looked at, again later: %s", error)
            return list(self._gaps.values())
        self._metrics.unaccounted(accounts)
        if accounts.doubt:
            log.warning("accounts not wholly looked at, again later: %s", accounts.doubt)
        for gap in accounts.gaps:
            log.error("ALARM, not accounted for: %s. Stop the service, keep its state, and look at `check`.", gap)
        self._gaps |= accounts.gaps_by_kind
        return list(self._gaps.values())
