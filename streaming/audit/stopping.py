"""Lets SIGTERM and Ctrl-C end an audit cleanly."""

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from streaming.errors import StoppedBySignalError
from streaming.signals import on_signals

log = logging.getLogger("ledger-reaper")

_POLL_SECONDS = 0.2
_NOTHING = "nothing was changed"
_F = TypeVar("_F")
_LEAVE_SECONDS = 20.0  # for a read or query that is under way; one that takes longer ends with the process


class StoppedError(Exception):
    """The audit was stopped before its end, so there are no new findings."""


class AuditSteps(Protocol[_F]):
    """An audit in three steps."""

    @property
    def stop(self) -> threading.Event:
        """Return the event that stops the audit."""

    def search(self) -> _F:
        """Search, and show the findings."""

    def ask(self, findings: _F) -> None:
        """Ask whether to publish. Raises unless the answer is yes."""

    def conclude(self, findings: _F) -> None:
        """Publish, and raise SafetyError if the operator must check the findings."""


def run_once(audit: AuditSteps[_F], left: str) -> None:
    """Run all steps. The question is asked in the main thread, which gets Ctrl-C. Raises as run_until_signal.

    Args:
        audit: the audit.
        left: the state in which a signal during the publication leaves things, as text.
    """
    findings: list[_F] = []
    if late := run_until_signal(lambda: findings.append(audit.search()), audit.stop):
        raise StoppedBySignalError(late, "the audit is complete, and nothing was published")
    audit.ask(findings[0])
    run_until_signal(lambda: audit.conclude(findings[0]), audit.stop, left)


def run_until_signal(work: Callable[[], None], stop: threading.Event, left: str = _NOTHING) -> int | None:
    """Run the work in a thread; SIGTERM and SIGINT set `stop`, which ends the work. Call this in the main thread.

    Returns the signal that came too late to stop the work; None: no signal came.

    Raises the work's own error, or StoppedBySignalError, with `left` as its text, if a signal stopped the work before
    its end or came before its start.
    """
    if stop.is_set():
        raise StoppedBySignalError(signal.SIGTERM, left)  # the signal itself is not known here
    failures: list[BaseException] = []
    ended: list[bool] = []
    numbers: list[int] = []

    def run() -> None:
        try:
            work()
            ended.append(True)
        except BaseException as failure:  # rich raises SystemExit once the reader of the output is gone
            failures.append(failure)

    def on_signal(number: int) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        numbers.append(number)
        stop.set()

    # a thread that waits for ZooKeeper or a query can't be interrupted, so the main thread only waits for signals
    thread = threading.Thread(target=run, name="audit", daemon=True)
    with on_signals(on_signal):
        thread.start()
        _wait(thread, stop)
    if numbers and not ended:
        raise StoppedBySignalError(numbers[0], left)
    if failures and not stop.is_set():
        raise failures[0]
    return next(iter(numbers), None)


def _wait(thread: threading.Thread, stop: threading.Event) -> None:
    while thread.is_alive() and not stop.is_set():
        thread.join(_POLL_SECONDS)
    leaves_s = time.monotonic() + _LEAVE_SECONDS
    while thread.is_alive() and time.monotonic() < leaves_s:
        thread.join(_POLL_SECONDS)
