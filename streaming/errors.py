"""Errors, grouped by what the caller does about them.

ReaperError                exit 1: a fault of this program
├── ConfigError            exit 2: fix the configuration and start again
├── UnavailableError       exit 3: the outcome is unknown or a service is unavailable: check again, then retry
│   ├── BusyError          another client holds what we need at the moment: wait, but not for ever
│   └── WorkersLostError   executors of Spark ended while they worked: retry, but not for ever
├── RefusedError           exit 1: another service refused (rights, quota); it would refuse a retry too
│   └── ForbiddenError     our role has no right to the request
├── SafetyError            exit 4: an operator must decide: continuing could delete live data, or no work can continue
│   └── FencedError        another instance took over; this instance must stop at once
└── StoppedBySignalError   exit 128 + signal: a signal ended a command before its end

StopRequestedError     no error: the service is to stop

A verdict is not an error: "still in use" is a value (udfs.records.Verdict).
"""

import signal


class ReaperError(Exception):
    """Any error that this program raises on purpose."""

    exit_code = 1  # of the command


class ConfigError(ReaperError):
    """The configuration can't work; the text names every fault and what to do."""

    exit_code = 2


class UnavailableError(ReaperError):
    """A service did not answer; the requested change may or may not have happened."""

    exit_code = 3


class BusyError(UnavailableError):
    """Another client, perhaps a killed run, holds what we need; that client releases it, or an operator intervenes."""


class WorkersLostError(UnavailableError):
    """Executors ended while they worked, again and again: their hosts failed, or the work itself ends them."""


class RefusedError(ReaperError):
    """A service refused."""


class ForbiddenError(RefusedError):
    """Our role has no right to the request."""


class SafetyError(ReaperError):
    """An operator must decide: continuing could delete data in use, or no work continues by itself."""

    exit_code = 4


class StoppedBySignalError(ReaperError):
    """SIGINT or SIGTERM ended a command; the text names what remains."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: {text}")
        self.exit_code = 128 + number


class FencedError(SafetyError):
    """Another instance has the epoch; this instance may not delete, publish or commit any more."""


class StopRequestedError(Exception):
    """The service is to stop; the batch is not committed and runs again at the next start."""
