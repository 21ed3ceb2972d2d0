"""Turns errors that reach us as text inside a Java exception back into this program's own errors."""

import re
from importlib import import_module

from streaming.errors import FencedError, ReaperError, SafetyError, StopRequestedError, UnavailableError

# in Spark's text of a failed query, positions and plan follow the cause after this
_QUERY_AND_PLAN = "=== Streaming Query ==="
_LOST_TASK = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): (.*)")
# "Futures timed out after" is Scala's own timeout: there Spark waited for itself, not for Pulsar
_PULSAR_AWAY = re.compile(
    r"\S*\b(ConnectException|PulsarClientException|PulsarAdminException|TimeoutException)\b(?!: Futures timed out)"
)


def raise_failure(query: str, failure: Exception | None) -> None:
    """Raise what a query ended with as one of this program's errors, in one line; nothing if it was only stopped."""
    if failure and not isinstance(failure, StopRequestedError) and "StopRequestedError" not in str(failure):
        ours = translated(failure)
        if isinstance(ours, ReaperError):
            raise ours
        cause = str(failure).partition(_QUERY_AND_PLAN)[0].strip()
        task = _LOST_TASK.search(cause)
        first = task[1] if task else cause
        if _PULSAR_AWAY.match(first):
            raise UnavailableError(f"query {query}: Pulsar can't be reached, start again when it can: {first}")
        raise ReaperError(f"query {query} failed: {cause}")


_OURS = re.compile(r"\b(streaming(?:\.\w+)+)\.(\w+Error): (.*)")


def translated(error: Exception) -> Exception:
    """Return the error of ours that an executor raised, if the text of this error names one; else the error itself."""
    if isinstance(error, UnavailableError | SafetyError | StopRequestedError):
        return error
    for module, name, text in _OURS.findall(str(error)):
        kind = getattr(import_module(module), name, None)
        for known in (FencedError, SafetyError, UnavailableError):
            if isinstance(kind, type) and issubclass(kind, known):
                return known(text)
    return error
