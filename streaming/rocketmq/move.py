"""Moves what is made into the store, and out again.

RocksDB takes a folder for a database when it holds the file CURRENT. So everything else is moved in first, which no
broker in file mode looks at, and CURRENT last: that one rename makes the upgrade. A run that was cut short anywhere
before it has changed nothing that counts, and the next run goes on or takes it back. Moving out begins with CURRENT.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.configuration import DATABASES
from streaming.rocketmq.place import Place
from streaming.rocketmq.staging import (
    CONFIG,
    CURRENT,
    MOVED,
    QUEUES,
    Sealed,
    current_of,
    fsync_folder,
    moved_of,
    sealed_of,
    throw_away,
    write_file,
)

Rename = Callable[[Path, Path], object]


def move_in(place: Place, sealed: Sealed, rename: Rename = os.replace) -> None:
    """Move the databases in. What lies in their way is kept. A second call finishes what a first one began.

    Raises SafetyError if a file that a first call had moved in is gone or another one now.
    """
    place.rocksdb.mkdir(exist_ok=True)
    kept = place.own / sealed.kept
    set_aside_queues(place, kept, rename, ours=sealed)
    set_aside_databases(place, kept, rename, ours=sealed)
    for name in DATABASES:
        _carry(place.staging / CONFIG / name, place.config / name, rename)
    fsync_folder(place.config)
    for name in sorted(sealed.files.keys() - {CURRENT}):
        _carry(place.staging / QUEUES / name, place.rocksdb / name, rename)
    fsync_folder(place.rocksdb)
    _require_all_in(place, sealed)
    write_file(place.own / MOVED, asdict(sealed))
    # Allowed here: all other files are in, durably. This rename is the upgrade.
    rename(place.staging / QUEUES / CURRENT, place.rocksdb / CURRENT)
    fsync_folder(place.rocksdb)
    throw_away(place)


def is_moved_in(place: Place, sealed: Sealed) -> bool:
    """Whether all is in that the note names, so that only the staging folder was left behind."""
    is_left = (place.staging / QUEUES / CURRENT).exists()  # then the one that is there is a broker's
    return moved_of(place) == sealed and (place.rocksdb / CURRENT).exists() and not is_left


def unfinished(place: Place) -> Sealed | None:
    """What a move that has not ended is to bring in; None if there is none.

    The staging folder of one that was cut short after its last rename is thrown away: nothing is left to do of it.
    """
    sealed = sealed_of(place)
    if sealed is not None and is_moved_in(place, sealed):
        throw_away(place)
        return None
    return sealed


def take_back(place: Place, sealed: Sealed, rename: Rename = os.replace) -> None:
    """Take out what an unfinished move has brought in, and throw it away with the staging folder.

    Only what SEALED names with its inode is touched, and nothing that a broker may have opened: no file of the queues'
    database once a CURRENT is there, and no other database whose CURRENT says something else than we wrote.
    """
    if moved_of(place) == sealed:  # it was written right before the last rename, which has not come
        (place.own / MOVED).unlink()
        fsync_folder(place.own)
    thrown = place.staging / "taken-back"
    thrown.mkdir(exist_ok=True)
    for name, inode in sealed.databases.items():
        if _is_ours(place.config / name, inode) and _says(place.config / name, sealed.currents[name]):
            rename(place.config / name, thrown / name)
    for name, inode in sealed.files.items():
        if not (place.rocksdb / CURRENT).exists() and _is_ours(place.rocksdb / name, inode):
            rename(place.rocksdb / name, thrown / name)
    throw_away(place)


def set_aside_queues(place: Place, kept: Path, rename: Rename = os.replace, ours: Sealed | None = None) -> None:
    """Move the files of a consume queues' database, CURRENT first, into kept/consumequeue; `ours` stay."""
    known = set(ours.files.values()) if ours else set()
    strangers = [path for path in _plain_files(place.rocksdb) if path.stat().st_ino not in known]
    for path in sorted(strangers, key=lambda each: each.name != CURRENT):
        (kept / QUEUES).mkdir(parents=True, exist_ok=True)
        rename(path, kept / QUEUES / path.name)
        if path.name == CURRENT:
            fsync_folder(place.rocksdb)


def set_aside_databases(place: Place, kept: Path, rename: Rename = os.replace, ours: Sealed | None = None) -> None:
    """Move the three databases below config/ into kept/config; `ours` stay."""
    known = set(ours.databases.values()) if ours else set()
    for name in DATABASES:
        folder = place.config / name
        if folder.exists() and folder.stat().st_ino not in known:
            (kept / CONFIG).mkdir(parents=True, exist_ok=True)
            rename(folder, kept / CONFIG / name)
    fsync_folder(place.config)


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


def _says(database: Path, text: str) -> bool:
    return (database / CURRENT).exists() and current_of(database) == text


def _require_all_in(place: Place, sealed: Sealed) -> None:
    files = ((place.rocksdb / name, inode) for name, inode in sealed.files.items() if name != CURRENT)
    databases = ((place.config / name, inode) for name, inode in sealed.databases.items())
    for path, inode in (*files, *databases):
        if not _is_ours(path, inode):
            raise SafetyError(f"{path} is not what was moved in there: begin anew with --restart")
