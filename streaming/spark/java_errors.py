"""Turns errors that arrive as text inside a Java exception back into this program's own errors."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from streaming.errors import (
    FencedError,
    ReaperError,
    SafetyError,
    StopRequestedError,
    UnavailableError,
    WorkersLostError,
)

# Spark's text of a failed query has the cause before this line, and positions and plan after it
_QUERY_AND_PLAN = "=== Streaming Query ==="
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): (.*)")
# Spark has already restarted the work several times, on other hosts, before it reports one of these
_LOST_EXECUTOR = re.compile(r"ExecutorLostFailure \(executor \S+ exited .*")
_LOST_RESULTS = re.compile(
    r"Job aborted due to stage failure: (\w+Stage \d+ \(.*has failed the maximum allowable number of times.*"
    r"|A shuffle map stage with indeterminate output was failed and retried.*)"
)
# "Futures timed out after" is Scala's own timeout: there Spark waited for itself, not for Pulsar
_PULSAR_AWAY = re.compile(
    r"\S*\b(ConnectException|PulsarClientException|PulsarAdminException|TimeoutException)\b(?!: Futures timed out)"
)


# what Java and Python write before an error's text; if there are several, the last one is the cause
_NAMED = re.compile(r"^(?:Caused by: |: )?([\w.$]+(?:Error|Exception)\b.*)", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"  # the first line of a Python worker's error, which ends with its name
_LONGEST_LINE = 500


def raise_failure(query: str, failure: Exception | None) -> None:
    """Raise a query's failure as one of this program's errors, in one line; do nothing if it was only stopped."""
    if failure and not was_stopped(failure):
        raise error_of(query, failure)


def was_stopped(failure: Exception) -> bool:
    """Whether a query ended because the service is to stop."""
    return isinstance(failure, StopRequestedError) or "StopRequestedError" in str(failure)


def error_of(query: str, failure: Exception) -> ReaperError:
    """Return a query's failure as one of this program's errors."""
    ours = translated(failure)
    if isinstance(ours, ReaperError):
        return ours
    cause = str(failure).partition(_QUERY_AND_PLAN)[0].strip()
    task = _LOST_TASK.search(cause)
    first = task[1] if task else cause
    if _PULSAR_AWAY.match(first):
        return UnavailableError(f"query {query}: Pulsar can't be reached; start again when it can be: {first}")
    return ReaperError(f"query {query} failed: {cause}")


def one_line(failure: Exception) -> str:
    """Return why a query failed, without traceback and plan, for a log, a file or a table.

    The text may quote senders, so unprintable characters are replaced.
    """
    cause = str(failure).partition(_QUERY_AND_PLAN)[0].strip()
    lost = [line for line in _LOST_TASK.findall(cause) if not line.endswith(_TRACEBACK)]
    errors = [line for line in _NAMED.findall(cause) if not line.endswith(_TRACEBACK)]
    line = lost[0] if lost else errors[-1] if errors else cause.partition("\n")[0] or type(failure).__name__
    return "".join(char if char.isprintable() else " " for char in line)[:_LONGEST_LINE].strip()


# A traceback names the error at the start of a line. Elsewhere in a line the text may quote a sender, who may name a
# topic like an error of this program.
_OURS = re.compile(r"^\s*(streaming(?:\.\w+)+)\.(\w+Error): (.*)", re.MULTILINE)


def translated(error: Exception) -> Exception:
    """Return this program's error that an executor raised, if the error's text names it.

    Else return WorkersLostError if Spark lost executors, or the error itself.
    """
    if isinstance(error, UnavailableError | SafetyError | StopRequestedError):
        return error
    for module, name, text in _OURS.findall(str(error)):
        kind = _named(module, name)
        for family in (FencedError, SafetyError, UnavailableError):
            if isinstance(kind, type) and issubclass(kind, family):
                return family(text)
    lost = _lost(str(error).partition(_QUERY_AND_PLAN)[0])
    return WorkersLostError(f"Spark lost executors: {lost}") if lost else error


@contextmanager
def our_errors(ours_of: Callable[[Exception], Exception] = translated) -> Iterator[None]:
    """Raise this program's error that an executor raised, instead of the Java exception that contains its text.

    ours_of: takes an error that is not ours, and returns the error to raise, which may be the same.
    """
    try:
        yield
    except ReaperError:
        raise
    except Exception as error:
        ours = ours_of(error)
        if ours is error:
            raise
        raise ours from error


def _lost(text: str) -> str:
    """Return Spark's text about executors that it lost; "" if the job failed for another reason."""
    task = _LOST_TASK.search(text)
    if task:
        return task[1] if _LOST_EXECUTOR.match(task[1]) else ""
    results = _LOST_RESULTS.search(text)
    return results[1] if results else ""


def _named(module: str, name: str) -> object:
    """Return the class that a text names; None if there is none, since the text may be a sender's."""
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None
