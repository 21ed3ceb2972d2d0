"""Logs what repeated audits find: at ERROR when it changes, so that an alert on the log is about something new."""

import logging

from streaming.beside import logged
from streaming.clock import Clock, utc_text
from streaming.errors import SafetyError

log = logging.getLogger("ledger-reaper")


class AuditFaultsError(SafetyError):
    """An audit ended, and an operator must check what it found."""

    def __init__(self, text: str, digest: str) -> None:
        super().__init__(text)
        self.digest = digest  # of all that the operator must check: two audits with the same digest found the same


class FaultsLog:
    """The log of the audits of one series. A restart starts a new series, which logs everything at ERROR once."""

    def __init__(self, every_s: float, clock: Clock) -> None:
        self._clock = clock
        self._log_failure = logged("audit", every_s)
        self._digest = ""  # of the last audit that ended; "": it found nothing to check
        self._since_ms = 0  # when an audit first found that

    def failed(self, error: Exception) -> None:
        """Log why an audit failed, or what it found."""
        if not isinstance(error, AuditFaultsError):
            self._log_failure(error)
        elif error.digest and error.digest == self._digest:
            log.info("audit: the same as since %s: %s", utc_text(self._since_ms), error)
        else:
            self._digest, self._since_ms = error.digest, self._clock.now_ms()
            self._log_failure(error)

    def passed(self) -> None:
        """Log that an audit found nothing to check, if the audit before did."""
        if self._digest:
            log.info("audit: what an operator had to check since %s is gone", utc_text(self._since_ms))
        self._digest = ""
