"""Errors, grouped by what the caller does about them.

ReaperError                exit 1: a fault of ours
├── ConfigError            exit 2: fix the configuration and start again
├── UnavailableError       exit 3: the outcome is unknown or a service is away: look again, then retry
│   ├── BusyError          somebody else holds it at the moment: wait, but not for ever
│   └── WorkersLostError   executors of Spark ended while they worked: again, but not for ever
├── RefusedError           exit 1: the service said no (rights, quota); a retry would say no again
│   └── ForbiddenError     the service says that our role has no right to it
└── SafetyError            exit 4: a person looks first: going on could delete live data, or nothing goes on by itself
    └── FencedError        another instance took over; this one must stop at once

StoppedBySignalError     exit 128 + signal: a signal ended a command before its end

StopRequestedError     no error: the service was asked to stop

A verdict is not an error: "still in use" is a value (udfs.records.Verdict).
"""

import signal


class ReaperError(Exception):
    """Anything this program raises on purpose. exit_code is what the command line ends with."""

    exit_code = 1


class ConfigError(ReaperError):
    """The configuration can't work; the text names every fault and what to do."""

    exit_code = 2


class UnavailableError(ReaperError):
    """A service did not answer; what was asked may or may not have happened."""

    exit_code = 3


class BusyError(UnavailableError):
    """Something is held by another, a run that was killed perhaps; it lets go, or somebody has to see to that."""


class WorkersLostError(UnavailableError):
    """Executors ended under their work, again and again: their hosts did, or the work itself brings them down."""


class RefusedError(ReaperError):
    """A service answered no."""


class ForbiddenError(RefusedError):
    """A service says that our role has no right to what was asked."""


class SafetyError(ReaperError):
    """Going on could delete what is in use."""

    exit_code = 4


class StoppedBySignalError(ReaperError):
    """SIGINT or SIGTERM ended a command; the text says what that leaves behind."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: {text}")
        self.exit_code = 128 + number


class FencedError(SafetyError):
    """Another instance has the epoch; nothing may be deleted, published or committed any more."""


class StopRequestedError(Exception):
    """The service was asked to stop; the batch is not committed and runs again at the next start."""
