"""Locks a store: only one of our commands writes to it at a time, and no broker runs at that time.

A running broker holds byte 0 of the file `lock` in its store (FileChannel.tryLock, a POSIX lock). A process that holds
that byte keeps a broker from starting. Such a lock belongs to the process, and is released when the process closes any
handle of the file. So a process that holds it must not call `is_broker_running`, which opens and closes a handle.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import Timeout, UnixFileLock

from streaming.errors import BusyError, SafetyError
from streaming.rocketmq.failures import damage, refused
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq.refusals import Code

# struct flock of Linux: type, whence, start, length, pid
_FLOCK = struct.Struct("@hhqqi0q")


def is_broker_running(paths: StorePaths) -> bool:
    """Whether a broker holds its lock. This writes nothing and takes no lock: a broker may start at any time."""
    try:
        handle = os.open(paths.store / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, *_rest = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, query))
    finally:
        os.close(handle)
    return bool(kind != fcntl.F_UNLCK)


@contextmanager
def broker_kept_out(paths: StorePaths) -> Iterator[None]:
    """Keep a broker from starting.

    Raises SafetyError if a broker runs, or if _require_one_store or require_own_folders refuses the store's folders.
    """
    with damage():
        _require_one_store(paths)
        require_own_folders(paths)
    handle = os.open(paths.store / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except BlockingIOError as error:
            raise refused(Code.RUNNING, f"a broker runs on {paths.store}: it holds the file lock") from error
        yield
    finally:
        os.close(handle)


def _require_one_store(paths: StorePaths) -> None:
    """Raise SafetyError if a part of the store is outside of it, unless the configuration names the store."""
    # a copy of a store may have links into the store of a running broker, which holds the lock of its own store
    root = paths.store.resolve()
    for folder in (paths.commitlog, paths.config, paths.consumequeue, paths.rocksdb):
        if not paths.is_named and not folder.resolve().is_relative_to(root):
            raise SafetyError(
                f"{folder} is {folder.resolve()}, outside of {paths.store}, and the lock in {paths.store} keeps "
                "only that store's broker out: if both belong to the same broker, name its configuration with "
                "--broker-conf; the configuration has to contain storePathRootDir"
            )


def require_own_folders(paths: StorePaths) -> None:
    """Raise SafetyError if a topic's or a queue's folder is a link, or is on a different disk from the consume queues.

    `rollback` renames files in these folders. Brokers create neither links nor mount points.
    """
    if not paths.consumequeue.is_dir():
        return
    disk = paths.consumequeue.stat().st_dev
    for folder in _folders_of_queues(paths):
        # its target may belong to a running broker
        if folder.is_symlink():
            raise SafetyError(f"{folder.path} is a link: put the folder itself there, with the broker stopped")
        # no rename moves files to another disk
        if folder.stat().st_dev != disk:
            raise SafetyError(
                f"{folder.path} is not on the same disk as {paths.consumequeue}: move it there, with the broker stopped"
            )


def _folders_of_queues(paths: StorePaths) -> Iterator[os.DirEntry[str]]:
    """Yield the folders of topics and of their queues, and links to folders."""
    with os.scandir(paths.consumequeue) as topics:
        for topic in topics:
            if topic.is_dir():
                yield topic
                with os.scandir(topic.path) as queues:
                    yield from (queue for queue in queues if queue.is_dir())


@contextmanager
def one_writer(paths: StorePaths) -> Iterator[None]:
    """Keep other commands of ours from writing to this store. Raises BusyError if another command is writing."""
    paths.own.mkdir(exist_ok=True)
    try:
        held = UnixFileLock(paths.own / "lock", fallback_to_soft=False).acquire(blocking=False)
    except Timeout as error:
        raise BusyError(f"another command of this program is working on {paths.store}") from error
    with held:
        yield
