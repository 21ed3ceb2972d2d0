"""Turns what tasks and the disk raise into errors of ours, each with a line that says what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.spark.failures import one_line, translated
from streaming.spark.failures import our_errors as of_tasks
from udfs.rocketmq.refusals import Code

_FULL = "No space left on device"
_READ_ONLY = "Read-only file system"
_FORBIDDEN = "Permission denied"


@contextmanager
def our_errors() -> Iterator[None]:
    """Raise errors of this program instead of others, also for what a task raised inside a Java exception."""
    with of_tasks(_ours):
        yield


def refused(code: Code, text: str) -> SafetyError:
    """A refusal with the code under which docs/rocketmq.md says what to do."""
    return SafetyError(f"{code}: {text}")


@contextmanager
def damage() -> Iterator[None]:
    """Give a SafetyError, also one of a task, the code BAD_BYTES: a file holds what no healthy store has."""
    try:
        with our_errors():
            yield
    except SafetyError as error:
        raise refused(Code.BAD_BYTES, str(error)) from error


def is_file_gone(error: BaseException) -> bool:
    """Whether a file was not there, here or in a task."""
    return isinstance(error, FileNotFoundError) or "FileNotFoundError: [Errno 2]" in str(error)


def _ours(error: Exception) -> Exception:
    ours = translated(error)
    if ours is not error:
        return ours
    text = str(error)
    if _FULL in text or (isinstance(error, OSError) and error.errno == errno.EDQUOT):
        return UnavailableError(
            f"the disk is full ({_line(error, _FULL)}): make room, and run the command again, it goes on where it was"
        )
    if _READ_ONLY in text:
        return ConfigError(
            f"this file system is read-only ({_line(error, _READ_ONLY)}): `plan`, `check` and `export --out DIR` work "
            "there; let the other commands work on the store itself or on a copy that can be written"
        )
    if isinstance(error, PermissionError) or _FORBIDDEN in text:
        return ConfigError(f"this user may not do that ({_line(error, _FORBIDDEN)}): run it as the broker's user")
    return error


def _line(error: Exception, word: str) -> str:
    """The line of an error's text that says what happened."""
    return next((line.strip() for line in str(error).splitlines() if word in line), one_line(error))
