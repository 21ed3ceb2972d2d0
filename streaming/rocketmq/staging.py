"""The staging folder: what a backfill has made so far, and whether it may go on with it.

STARTED says of which state of the store the parts are. SEALED is written when all is made; it lists every file and
folder that is to be moved in, with its inode, so that a later run knows what is ours.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.configuration import DATABASES
from streaming.rocketmq.job import file_name
from streaming.rocketmq.place import Place

PARTS, QUEUES, CONFIG = "parts", "consumequeue", "config"
COVERED = "covered"  # what each run noted about the log (streaming/rocketmq/unindexed.py), before it wrote its parts
_STARTED, _SEALED, MOVED = "started.json", "sealed.json", "moved-in.json"
FOLLOWED = "followed.json"  # the consume queues here are those that `follow` has made
CURRENT = "CURRENT"
ROLLBACK = "rollback"  # what a rollback has made so far
ROLLBACK_PLAN = f"{ROLLBACK}/plan.json"
NEW_QUEUES = f"{ROLLBACK}/file-queues"
DONE = "done"  # in that plan: nothing is left to do but to let the broker start
_WAY_OUT = "Move this file somewhere else, and run the command again"
# what rocksdict leaves in the folder of a database, and no broker needs
_NOT_MOVED = ("LOCK", "LOG", "rocksdict-config.json")


@dataclass(frozen=True, slots=True)
class Started:
    """fingerprint: the store's, when the parts were begun. Parts of other sizes have other numbers."""

    fingerprint: str
    rows_per_file: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """files: names in the consume queues' database -> inode. databases: names below config/ -> inode.

    kept: the folder, of ours, for what has to make room. currents: what each CURRENT holds; a broker that opens a
    database writes another one. times: when each CURRENT was written, in nanoseconds, for all databases that are new
    have the same CURRENT; empty in a note of an earlier version.
    """

    fingerprint: str
    kept: str
    files: dict[str, int]
    databases: dict[str, int]
    currents: dict[str, str]
    queues: int
    units: int
    log_end: int
    times: dict[str, int] = field(default_factory=dict)


def begin(place: Place, started: Started, *, restart: bool) -> bool:
    """Make the staging folder ready; True if what an earlier run made is gone on with. What fits not is thrown away."""
    staging = place.staging
    said = _read(staging / _STARTED)
    resumed = not restart and said == asdict(started) and (staging / COVERED).is_dir()
    if not resumed:
        throw_away(place)
        (staging / PARTS).mkdir(parents=True)
        (staging / COVERED).mkdir()
        write_file(staging / _STARTED, asdict(started))
    for unfinished in (*(staging / PARTS).glob(".*"), staging / QUEUES, staging / CONFIG, staging / FOLLOWED):
        _remove(unfinished)
    return resumed


def throw_away(place: Place) -> None:
    """Delete the staging folder. Allowed here: it is ours, and nothing in it was moved in."""
    aside = place.own / "staging-thrown-away"
    _remove(aside)
    if place.staging.exists():
        place.staging.replace(aside)
        _remove(aside)


def finished_parts(place: Place) -> set[str]:
    """Names of the parts that are whole."""
    return {path.name for path in (place.staging / PARTS).glob("part-*.sst")}


def part_path(place: Place, part: int) -> Path:
    """Where a finished part lies."""
    return place.staging / PARTS / file_name(part)


def seal(place: Place, started: Started, kept: str, counts: tuple[int, int, int]) -> Sealed:
    """Write down that all is made. counts: queues, units, end of the log."""
    queues = place.staging / QUEUES
    names = [each.name for each in queues.iterdir() if not each.name.startswith(_NOT_MOVED)]
    folders = {QUEUES: queues, **{name: place.staging / CONFIG / name for name in DATABASES}}
    sealed = Sealed(
        started.fingerprint,
        kept,
        {name: (queues / name).stat().st_ino for name in names},
        {name: (place.staging / CONFIG / name).stat().st_ino for name in DATABASES},
        {name: current_of(folder) for name, folder in folders.items()},
        *counts,
        {name: (folder / CURRENT).stat().st_mtime_ns for name, folder in folders.items()},
    )
    for database in DATABASES:
        for name in _NOT_MOVED:
            _remove(place.staging / CONFIG / database / name)
    write_file(place.staging / _SEALED, asdict(sealed))
    return sealed


def sealed_of(place: Place) -> Sealed | None:
    """What is made and waits in the staging folder; None if nothing does. Raises SafetyError for a damaged file."""
    return _sealed(place.staging / _SEALED)


def moved_of(place: Place) -> Sealed | None:
    """What was moved in last; None if nothing was, or if it was taken back. Raises SafetyError for a damaged file."""
    return _sealed(place.own / MOVED)


def unfinished_rollback(place: Place) -> str:
    """Say that a rollback has begun and not ended, and what to do; "" if none has."""
    is_barred = place.barrier.exists()
    if not is_barred and not _has_plan(place):
        return ""
    kept_out = f" (it does not start as long as {place.barrier} is there)" if is_barred else ""
    return (
        "a `rollback` has begun and has not ended: run it again before a broker starts with storeType=default"
        f"{kept_out}. A broker with storeType=defaultRocksDB may go on, as long as its queues' CURRENT is in "
        f"{place.rocksdb}"
    )


def is_done(plan: Mapping[str, object]) -> bool:
    """Whether the rollback of this plan has done all that it had to do."""
    return plan.get(DONE) is True


def throw_away_rollback(place: Place) -> None:
    """Delete what a rollback has prepared. Raises SafetyError where one has begun and has not ended."""
    if place.barrier.exists():
        raise SafetyError(unfinished_rollback(place))
    # Allowed here: the folder is ours, and no file of the store was replaced by what is in it, or all were.
    _remove(place.own / ROLLBACK)


def _has_plan(place: Place) -> bool:
    try:
        plan = _read(place.own / ROLLBACK_PLAN)
    except SafetyError:
        return True
    return (place.own / ROLLBACK_PLAN).exists() and not is_done(plan or {})


def is_unopened(place: Place, database: str) -> bool:
    """Whether a database (of DATABASES, or QUEUES) is as we moved it in: no broker has opened it since."""
    folder = place.rocksdb if database == QUEUES else place.config / database
    if not (folder / CURRENT).exists():
        return False
    return any(made is not None and _is_as_made(folder, database, made) for made in (moved_of(place), sealed_of(place)))


def current_of(folder: Path) -> str:
    """What CURRENT says in a database's folder, be it damaged or not."""
    return (folder / CURRENT).read_text(encoding="utf-8", errors="replace")


def _is_as_made(folder: Path, database: str, made: Sealed) -> bool:
    if current_of(folder) != made.currents[database]:
        return False
    if made.times:
        return (folder / CURRENT).stat().st_mtime_ns == made.times[database]
    if database == QUEUES:
        return (folder / CURRENT).stat().st_ino == made.files[CURRENT]
    return folder.stat().st_ino == made.databases[database]


def new_kept(place: Place, now_ms: int) -> str:
    """Return a name, which no folder has yet, for what is to be kept."""
    name = f"kept-{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}"
    taken = {path.name for path in place.own.glob("kept-*")}
    return next(each for each in chain([name], (f"{name}-{n}" for n in count(2))) if each not in taken)


def write_file(path: Path, value: object) -> None:
    """Write a JSON file whole or not at all, and durably."""
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and durably."""
    aside = path.with_name(f".{path.name}.aside")
    with aside.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    aside.replace(path)
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sealed(path: Path) -> Sealed | None:
    said = _read(path)
    try:
        made = None if said is None else Sealed(**said)  # type: ignore[arg-type]
    except TypeError as error:
        raise SafetyError(f"{path} is not what this program writes: {error}. {_WAY_OUT}") from error
    if made and not all(isinstance(each, dict) for each in (made.files, made.databases, made.currents, made.times)):
        raise SafetyError(f"{path} is not what this program writes. {_WAY_OUT}")
    return made


def _read(path: Path) -> dict[str, object] | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SafetyError(f"{path} can't be read: {error}. {_WAY_OUT}") from error
    return said if isinstance(said, dict) else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
