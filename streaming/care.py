"""What the service does now and then beside its work: tidy up, and look whether every message is accounted for."""

import logging
import time
from collections.abc import Callable

from streaming.accounts import Accounts
from streaming.errors import ReaperError
from streaming.metrics import Metrics

log = logging.getLogger("ledger-reaper")

_TIDY_S = 3600.0
_ACCOUNT_S = 300.0


class Care:
    """turn() as often as one likes: it does what is due, and nothing it does stops the work."""

    def __init__(
        self,
        tidy: Callable[[], None],
        accounts: Callable[[], Accounts],
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tidy = tidy
        self._accounts = accounts
        self._metrics = metrics
        self._monotonic = monotonic
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
        """Look, show, and raise the alarm; returns the gaps. A look that fails is no gap, and is repeated."""
        try:
            accounts = self._accounts()
        except ReaperError as error:
            log.warning("accounts not looked at, again later: %s", error)
            return []
        self._metrics.unaccounted(accounts)
        for gap in accounts.gaps:
            log.error("ALARM, not accounted for: %s. Stop the service, keep its state, and look at `check`.", gap)
        return accounts.gaps
