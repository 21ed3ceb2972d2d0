"""Moves the new databases into the store, and back out.

RocksDB takes a folder for a database if it contains the file CURRENT, so CURRENT is moved in last. Until then, nothing
that was moved in takes effect, and the next run resumes or reverts an interrupted run.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.store.configuration import DATABASES
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.staging import (
    CONFIG,
    CURRENT,
    MOVED,
    QUEUES,
    Sealed,
    current_of,
    delete_staging,
    moved_of,
    sealed_of,
    write_note,
)
from streaming.state.durable import flush

Rename = Callable[[Path, Path], object]


def move_in(paths: StorePaths, sealed: Sealed, rename: Rename = os.replace) -> None:
    """Move the databases in. Files in their way are kept. A second call finishes what an interrupted call has started.

    Raises SafetyError if a file that an earlier call had moved in is missing or was replaced.
    """
    paths.rocksdb.mkdir(exist_ok=True)
    kept = paths.own / sealed.kept
    set_aside_queues(paths, kept, rename, ours=sealed)
    set_aside_databases(paths, kept, rename, ours=sealed)
    for name in DATABASES:
        # no broker in file mode reads them
        _carry(paths.staging / CONFIG / name, paths.config / name, rename)
    flush(paths.config)
    for name in sorted(sealed.files.keys() - {CURRENT}):
        _carry(paths.staging / QUEUES / name, paths.rocksdb / name, rename)
    flush(paths.rocksdb)
    _require_all_in(paths, sealed)
    write_note(paths.own / MOVED, asdict(sealed))
    # Allowed here: all other files are in, durably. This rename is the upgrade.
    rename(paths.staging / QUEUES / CURRENT, paths.rocksdb / CURRENT)
    flush(paths.rocksdb)
    delete_staging(paths)


def is_moved_in(paths: StorePaths, sealed: Sealed) -> bool:
    """Whether everything in the note was moved in, so that only the staging folder was left."""
    is_left = (paths.staging / QUEUES / CURRENT).exists()  # then the store's CURRENT is a broker's
    return moved_of(paths) == sealed and (paths.rocksdb / CURRENT).exists() and not is_left


def unfinished(paths: StorePaths) -> Sealed | None:
    """Return what an unfinished move has to bring in; None if there is none.

    If a move was interrupted after its last rename, nothing is left to do, and its staging folder is deleted.
    """
    sealed = sealed_of(paths)
    if sealed is not None and is_moved_in(paths, sealed):
        delete_staging(paths)
        return None
    return sealed


def take_back(paths: StorePaths, sealed: Sealed, rename: Rename = os.replace) -> None:
    """Take out what an unfinished move has brought in, and delete it with the staging folder.

    It touches only what SEALED lists with its inode, and nothing that a broker may have opened.
    """
    if moved_of(paths) == sealed:  # it was written right before the last rename, which has not happened
        (paths.own / MOVED).unlink()
        flush(paths.own)
    removed = paths.staging / "taken-back"
    removed.mkdir(exist_ok=True)
    for name, inode in sealed.databases.items():
        # a broker that opens a database writes another CURRENT
        if _is_ours(paths.config / name, inode) and _has_current(paths.config / name, sealed.currents[name]):
            rename(paths.config / name, removed / name)
    for name, inode in sealed.files.items():
        # without a CURRENT, no broker has opened it
        if not (paths.rocksdb / CURRENT).exists() and _is_ours(paths.rocksdb / name, inode):
            rename(paths.rocksdb / name, removed / name)
    delete_staging(paths)


def set_aside_queues(paths: StorePaths, kept: Path, rename: Rename = os.replace, ours: Sealed | None = None) -> None:
    """Move the files of a consume queues' database, CURRENT first, into kept/consumequeue; those of `ours` stay."""
    our_inodes = set(ours.files.values()) if ours else set()
    others = [path for path in _plain_files(paths.rocksdb) if path.stat().st_ino not in our_inodes]
    # without CURRENT, the rest is no database
    for path in sorted(others, key=lambda path: path.name != CURRENT):
        (kept / QUEUES).mkdir(parents=True, exist_ok=True)
        rename(path, kept / QUEUES / path.name)
        if path.name == CURRENT:
            flush(paths.rocksdb)


def set_aside_databases(paths: StorePaths, kept: Path, rename: Rename = os.replace, ours: Sealed | None = None) -> None:
    """Move the three databases below config/ into kept/config; those of `ours` stay."""
    our_inodes = set(ours.databases.values()) if ours else set()
    for name in DATABASES:
        folder = paths.config / name
        if folder.exists() and folder.stat().st_ino not in our_inodes:
            (kept / CONFIG).mkdir(parents=True, exist_ok=True)
            rename(folder, kept / CONFIG / name)
    flush(paths.config)


def _plain_files(folder: Path) -> Iterator[Path]:
    return (path for path in (folder.iterdir() if folder.is_dir() else ()) if path.is_file())


def _carry(source: Path, target: Path, rename: Rename) -> None:
    if source.exists():
        rename(source, target)


def _is_ours(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return False


def _has_current(database: Path, text: str) -> bool:
    return (database / CURRENT).exists() and current_of(database) == text


def _require_all_in(paths: StorePaths, sealed: Sealed) -> None:
    files = ((paths.rocksdb / name, inode) for name, inode in sealed.files.items() if name != CURRENT)
    databases = ((paths.config / name, inode) for name, inode in sealed.databases.items())
    for path, inode in (*files, *databases):
        if not _is_ours(path, inode):
            raise SafetyError(f"{path} is not the file that was moved in: start over with --restart")
