"""Folders for Spark's temporary files: one for each process, removed when it ends, or by the next one if it was killed.

Spark and the native libraries in it remove what they wrote only when their JVM ends by itself. A service that is killed
now and then would fill /tmp.
"""

import atexit
import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from streaming.errors import ConfigError

log = logging.getLogger("ledger-reaper")
_OURS = re.compile(r"ledger-reaper-\d+-[0-9a-f]{8}")  # root may be a folder that others use too


def claim(root: Path) -> Path:
    """Make a folder in root that is this process's until it ends; remove those whose process has ended.

    A folder is somebody's while its lock is held, which ends with the process, however it ends.
    Raises ConfigError if root can't be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root, wait=True):  # nobody removes a folder between its making and its locking
            folder = root / f"ledger-reaper-{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir()
            _lock(folder, wait=False)  # kept open until the process ends
            for other in root.iterdir():
                if _OURS.fullmatch(other.name) and other != folder:
                    _remove_unless_held(other)
    except OSError as error:
        raise ConfigError(f"spark.local_dir: Spark's temporary files can't be written to {root}: {error}") from error
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[None]:
    handle = _lock(folder, wait=wait)
    try:
        yield
    finally:
        os.close(handle)


def _lock(folder: Path, *, wait: bool) -> int:
    """Lock the folder and return what holds it; BlockingIOError if somebody else does and wait is not asked for."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove_unless_held(folder: Path) -> None:
    with contextlib.suppress(BlockingIOError, NotADirectoryError), _locked(folder, wait=False):
        shutil.rmtree(folder, ignore_errors=True)
        log.debug("%s: left by a process that was killed, removed", folder)
