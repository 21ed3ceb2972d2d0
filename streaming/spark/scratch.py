"""Creates a folder for temporary files per process; the process, or the next one after a kill, removes it."""

import atexit
import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from streaming.config.settings import Settings
from streaming.errors import ConfigError

log = logging.getLogger("ledger-reaper")
_OURS = re.compile(r"ledger-reaper-\d+-[0-9a-f]{8}")  # other programs may use the same root


def folder_for(settings: Settings) -> Path:
    """Return this process's folder for temporary files, in spark.local_dir or the user's cache folder.

    Raises ConfigError if that can't be written.
    """
    from streaming.spark.ivy import default_cache

    chosen = settings.spark.local_dir
    return _claimed((Path(chosen) if chosen else default_cache() / "spark").absolute())


@cache
def _claimed(root: Path) -> Path:
    return claim(root)


def claim(root: Path) -> Path:
    """Create a folder in root for this process, and remove folders of processes that have ended.

    Raises ConfigError if root can't be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root, wait=True):  # so that no other process removes the folder before it is locked
            folder = root / f"ledger-reaper-{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir()
            _lock(folder, wait=False)  # the lock stays until the process ends, even if it is killed
            # Spark and its native libraries remove their files only if the JVM ends by itself: a service that is killed
            # now and then would fill the disk
            for other in root.iterdir():
                if _OURS.fullmatch(other.name) and other != folder:
                    _remove_unless_held(other)
    except OSError as error:
        raise ConfigError(f"spark.local_dir: temporary files can't be written to {root}: {error}") from error
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
    """Lock the folder, which filelock can't do, and return the descriptor that holds the lock.

    Raises BlockingIOError if another process has locked it and wait is false.
    """
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
