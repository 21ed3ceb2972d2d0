"""The staging folder: the files of a backfill, and whether a later run may resume it.

STARTED describes the state of the store from which the parts were created. SEALED is written when everything is
complete; it lists every file and folder that has to be moved in, with its inode, so that a later run recognizes them.
"""

import json
import shutil
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from streaming.errors import SafetyError
from streaming.rocketmq.store.configuration import DATABASES
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.state.durable import durable_write

PARTS, QUEUES, CONFIG = "parts", "consumequeue", "config"
# each run's notes about the log (streaming/rocketmq/convert/unindexed.py), written before its parts
COVERED = "covered"
_STARTED, _SEALED, MOVED = "started.json", "sealed.json", "moved-in.json"
FOLLOWED = "followed.json"  # the consume queues in this folder come from `follow`
CURRENT = "CURRENT"
_ADVICE = "Move this file somewhere else, and run the command again"
# files that rocksdict leaves in the folder of a database, and that no broker needs
_NOT_MOVED = ("LOCK", "LOG", "rocksdict-config.json")


@dataclass(frozen=True, slots=True)
class Started:
    """The start of a backfill."""

    fingerprint: str  # of the store, when the parts were started
    rows_per_file: int  # with another size, the parts would have other numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The result of a backfill."""

    fingerprint: str  # of the store
    kept: str  # our folder for the files that are set aside
    files: dict[str, int]  # names in the consume queues' database -> inode
    databases: dict[str, int]  # names below config/ -> inode
    currents: dict[str, str]  # contents of each CURRENT; a broker that opens a database writes another
    queues: int
    units: int
    log_end: int
    # When each CURRENT was written, in nanoseconds, because all new databases have the same CURRENT; empty in a note of
    # an earlier version.
    times: dict[str, int] = field(default_factory=dict)


def start(paths: StorePaths, started: Started, *, restart: bool) -> bool:
    """Prepare the staging folder. True if an earlier run is resumed; otherwise its files are deleted."""
    staging = paths.staging
    earlier = _read(staging / _STARTED)
    resumed = not restart and earlier == asdict(started) and (staging / COVERED).is_dir()
    if not resumed:
        delete_staging(paths)
        (staging / PARTS).mkdir(parents=True)
        (staging / COVERED).mkdir()
        write_note(staging / _STARTED, asdict(started))
    for unfinished in (*(staging / PARTS).glob(".*"), staging / QUEUES, staging / CONFIG, staging / FOLLOWED):
        remove(unfinished)
    return resumed


def delete_staging(paths: StorePaths) -> None:
    """Delete the staging folder. Allowed here: it is ours, and files that were moved in are no longer in it."""
    aside = paths.own / "staging-thrown-away"
    remove(aside)
    if paths.staging.exists():
        # by one rename, so that no later run resumes half a folder
        paths.staging.replace(aside)
        remove(aside)


def file_name(part: int) -> str:
    """Return the name of a part's file."""
    return f"part-{part:08d}.sst"


def finished_parts(paths: StorePaths) -> set[str]:
    """Return the names of the finished parts."""
    return {path.name for path in (paths.staging / PARTS).glob("part-*.sst")}


def part_path(paths: StorePaths, part: int) -> Path:
    """Return the path of a finished part."""
    return paths.staging / PARTS / file_name(part)


def seal(paths: StorePaths, started: Started, kept: str, counts: tuple[int, int, int]) -> Sealed:
    """Record that everything is complete. counts: queues, units, end of the log."""
    queues = paths.staging / QUEUES
    names = [path.name for path in queues.iterdir() if not path.name.startswith(_NOT_MOVED)]
    folders = {QUEUES: queues, **{name: paths.staging / CONFIG / name for name in DATABASES}}
    sealed = Sealed(
        fingerprint=started.fingerprint,
        kept=kept,
        files={name: (queues / name).stat().st_ino for name in names},
        databases={name: (paths.staging / CONFIG / name).stat().st_ino for name in DATABASES},
        currents={name: current_of(folder) for name, folder in folders.items()},
        queues=counts[0],
        units=counts[1],
        log_end=counts[2],
        times={name: (folder / CURRENT).stat().st_mtime_ns for name, folder in folders.items()},
    )
    for database in DATABASES:
        for name in _NOT_MOVED:
            remove(paths.staging / CONFIG / database / name)
    # last: the note says that everything is complete
    write_note(paths.staging / _SEALED, asdict(sealed))
    return sealed


def sealed_of(paths: StorePaths) -> Sealed | None:
    """Return the finished result in the staging folder; None without one. Raises SafetyError for a damaged file."""
    return _sealed(paths.staging / _SEALED)


def moved_of(paths: StorePaths) -> Sealed | None:
    """Return what was moved in last; None for nothing, or if it was reverted. Raises SafetyError for a damaged file."""
    return _sealed(paths.own / MOVED)


def is_unopened(paths: StorePaths, database: str) -> bool:
    """Whether a database (of DATABASES, or QUEUES) is as we moved it in, and no broker has opened it since."""
    folder = paths.rocksdb if database == QUEUES else paths.config / database
    if not (folder / CURRENT).exists():
        return False
    notes = (moved_of(paths), sealed_of(paths))
    return any(sealed is not None and _is_unchanged(folder, database, sealed) for sealed in notes)


def current_of(folder: Path) -> str:
    """Return the contents of CURRENT in a database's folder, damaged or not."""
    return (folder / CURRENT).read_text(encoding="utf-8", errors="replace")


def _is_unchanged(folder: Path, database: str, sealed: Sealed) -> bool:
    if current_of(folder) != sealed.currents[database]:
        return False
    if sealed.times:
        return (folder / CURRENT).stat().st_mtime_ns == sealed.times[database]
    if database == QUEUES:
        return (folder / CURRENT).stat().st_ino == sealed.files[CURRENT]
    return folder.stat().st_ino == sealed.databases[database]


def new_kept(paths: StorePaths, now_ms: int) -> str:
    """Return a name, which no folder has yet, for a folder of kept files."""
    name = f"kept-{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}"
    taken = {path.name for path in paths.own.glob("kept-*")}
    return next(free for free in chain([name], (f"{name}-{n}" for n in count(2))) if free not in taken)


def write_note(path: Path, value: object) -> None:
    """Write a JSON file durably."""
    durable_write(path, json.dumps(value, indent=1))


def _sealed(path: Path) -> Sealed | None:
    fields = _read(path)
    try:
        sealed = None if fields is None else Sealed(**fields)  # type: ignore[arg-type]
    except TypeError as error:
        raise SafetyError(f"{path} is not what this program writes: {error}. {_ADVICE}") from error
    if sealed and not all(
        isinstance(value, dict) for value in (sealed.files, sealed.databases, sealed.currents, sealed.times)
    ):
        raise SafetyError(f"{path} is not what this program writes. {_ADVICE}")
    return sealed


def _read(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SafetyError(f"{path} can't be read: {error}. {_ADVICE}") from error
    return value if isinstance(value, dict) else None


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
