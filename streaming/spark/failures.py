"""Turns errors that reach us as text inside a Java exception back into this program's own errors."""

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

# in Spark's text of a failed query, positions and plan follow the cause after this
_QUERY_AND_PLAN = "=== Streaming Query ==="
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): (.*)")
# Spark has begun the work anew several times already, elsewhere, before it says one of these
_LOST_EXECUTOR = re.compile(r"ExecutorLostFailure \(executor \S+ exited .*")
_LOST_RESULTS = re.compile(
    r"Job aborted due to stage failure: (\w+Stage \d+ \(.*has failed the maximum allowable number of times.*"
    r"|A shuffle map stage with indeterminate output was failed and retried.*)"
)
# "Futures timed out after" is Scala's own timeout: there Spark waited for itself, not for Pulsar
_PULSAR_AWAY = re.compile(
    r"\S*\b(ConnectException|PulsarClientException|PulsarAdminException|TimeoutException)\b(?!: Futures timed out)"
)


# what Java and Python write before an error's text; of several the last one says what happened
_NAMED = re.compile(r"^(?:Caused by: |: )?([\w.$]+(?:Error|Exception)\b.*)", re.MULTILINE)
_LONGEST_LINE = 500


def raise_failure(query: str, failure: Exception | None) -> None:
    """Raise what a query ended with as one of this program's errors, in one line; nothing if it was only stopped."""
    if failure and not was_stopped(failure):
        raise error_of(query, failure)


def was_stopped(failure: Exception) -> bool:
    """Whether a query ended because the service was told to stop."""
    return isinstance(failure, StopRequestedError) or "StopRequestedError" in str(failure)


def error_of(query: str, failure: Exception) -> ReaperError:
    """Return what a query ended with as one of this program's errors."""
    ours = translated(failure)
    if isinstance(ours, ReaperError):
        return ours
    cause = str(failure).partition(_QUERY_AND_PLAN)[0].strip()
    task = _LOST_TASK.search(cause)
    first = task[1] if task else cause
    if _PULSAR_AWAY.match(first):
        return UnavailableError(f"query {query}: Pulsar can't be reached, start again when it can: {first}")
    return ReaperError(f"query {query} failed: {cause}")


def one_line(failure: Exception) -> str:
    """Return why a query failed, without traceback and plan: for a log, a file, a table.

    What senders wrote may stand in it, so only what can be printed is left.
    """
    cause = str(failure).partition(_QUERY_AND_PLAN)[0].strip()
    task, named = _LOST_TASK.search(cause), _NAMED.findall(cause)
    said = task[1] if task else named[-1] if named else cause.partition("\n")[0] or type(failure).__name__
    return "".join(each if each.isprintable() else " " for each in said)[:_LONGEST_LINE].strip()


# A traceback names the error at the beginning of a line. In the middle of one stand the words of senders, who may name
# a topic like an error of ours.
_OURS = re.compile(r"^\s*(streaming(?:\.\w+)+)\.(\w+Error): (.*)", re.MULTILINE)


def translated(error: Exception) -> Exception:
    """Return the error of ours that an executor raised, if the text of this error names one; else the error itself."""
    if isinstance(error, UnavailableError | SafetyError | StopRequestedError):
        return error
    for module, name, text in _OURS.findall(str(error)):
        kind = _named(module, name)
        for known in (FencedError, SafetyError, UnavailableError):
            if isinstance(kind, type) and issubclass(kind, known):
                return known(text)
    lost = _lost(str(error).partition(_QUERY_AND_PLAN)[0])
    return WorkersLostError(f"Spark lost executors: {lost}") if lost else error


@contextmanager
def our_errors(ours_of: Callable[[Exception], Exception] = translated) -> Iterator[None]:
    """Raise the error of ours that an executor raised, which comes back inside a Java exception, in that one's place.

    ours_of: what to raise for an error that is none of ours; the error itself stays as it is.
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
    """What Spark says of executors that it lost; "" where that is not why a job failed."""
    task = _LOST_TASK.search(text)
    if task:
        return task[1] if _LOST_EXECUTOR.match(task[1]) else ""
    results = _LOST_RESULTS.search(text)
    return results[1] if results else ""


def _named(module: str, name: str) -> object:
    """The class that a text names; None where there is none, for a text may name what it likes."""
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None
