"""Translates errors of tasks and of the disk into errors of ours that state what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.spark.java_errors import one_line, translated
from streaming.spark.java_errors import our_errors as of_tasks
from udfs.rocketmq.refusals import Code

_FULL = "No space left on device"
_READ_ONLY = "Read-only file system"
_FORBIDDEN = "Permission denied"


@contextmanager
def our_errors() -> Iterator[None]:
    """Translate exceptions into errors of ours, also if a task raised them and a Java exception carries them."""
    with of_tasks(_ours):
        yield


def refused(code: Code, text: str) -> SafetyError:
    """Return a refusal with its code, under which docs/rocketmq.md gives advice."""
    return SafetyError(f"{code}: {text}")


@contextmanager
def damage() -> Iterator[None]:
    """Add the code BAD_BYTES to a SafetyError, also of a task: a file contains what no healthy store has."""
    try:
        with our_errors():
            yield
    except SafetyError as error:
        raise refused(Code.BAD_BYTES, str(error)) from error


def is_file_gone(error: BaseException) -> bool:
    """Whether a file was missing, here or in a task."""
    return isinstance(error, FileNotFoundError) or "FileNotFoundError: [Errno 2]" in str(error)


def _ours(error: Exception) -> Exception:
    ours = translated(error)
    if ours is not error:
        return ours
    text = str(error)
    if _FULL in text or (isinstance(error, OSError) and error.errno == errno.EDQUOT):
        return UnavailableError(
            f"the disk is full ({_line(error, _FULL)}): free space, and run the command again to resume it"
        )
    if _READ_ONLY in text:
        return ConfigError(
            f"this file system is read-only ({_line(error, _READ_ONLY)}): `plan`, `check` and `export --out DIR` work "
            "there; run the other commands on the store itself or on a writable copy"
        )
    if isinstance(error, PermissionError) or _FORBIDDEN in text:
        return ConfigError(f"this user has no permission ({_line(error, _FORBIDDEN)}): run it as the broker's user")
    return error


def _line(error: Exception, phrase: str) -> str:
    """Return the line of an error's text that contains the phrase."""
    return next((line.strip() for line in str(error).splitlines() if phrase in line), one_line(error))
