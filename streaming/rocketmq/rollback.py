"""Brings a store back to file mode: the JSON files get what RocksDB knows, and RocksDB's files go to a folder of ours.

The file queues get what only RocksDB has (streaming/rocketmq/file_queues.py says why). Where no broker has opened the
databases since they were made, the JSON files are the newer ones, and stay.

A run that was cut short goes on where it was, unless a broker has worked on the store since: first all JSON files are
made, then the file queues are completed, then the JSON files replace the old ones, then the databases leave, the
consume queues' CURRENT first. Before the first of these renames and until behind the last one, no broker in file mode
can start (streaming/rocketmq/barrier.py).
"""

import json
import os
import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.rocketmq.barrier import bar, unbar
from streaming.rocketmq.check import topics_of
from streaming.rocketmq.configuration import DATABASES, lost_offsets, other_database, read_databases, read_json
from streaming.rocketmq.export import Exported, require_clean_stop, write_json
from streaming.rocketmq.file_queues import Show, complete, left_out
from streaming.rocketmq.inventory import Queue, inventory_of, json_table
from streaming.rocketmq.locks import broker_kept_out, one_writer
from streaming.rocketmq.move import Rename, set_aside_databases, set_aside_queues, unfinished
from streaming.rocketmq.owner import require_owner
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say, told
from streaming.rocketmq.staging import (
    CONFIG,
    CURRENT,
    DONE,
    MOVED,
    QUEUES,
    ROLLBACK,
    ROLLBACK_PLAN,
    current_of,
    fsync_folder,
    is_done,
    is_unopened,
    new_kept,
    write_file,
)
from udfs.rocketmq import metadata as m
from udfs.rocketmq.commitlog import CommitLogRecord
from udfs.rocketmq.dispatch import DispatchRules, is_kept, properties_of, units_of

_SHOWN = 10  # names in a message


class RolledBack(NamedTuple):
    """kept: where everything is that was replaced. files: the JSON files that were written, and entries of each.

    only_in_files: topics and groups that RocksDB did not have, by JSON file. left_out: LMQ queues that get no file
    queue, and how many messages each has.
    """

    kept: str
    files: dict[str, int]
    only_in_files: dict[str, list[str]]
    left_out: dict[str, int]


def rollback(
    place: Place,
    clock: Clock,
    rename: Rename = os.replace,
    offsets_of: m.OffsetsOf | None = None,
    say: Say | None = None,
) -> RolledBack:
    """Bring the store back to file mode. A second call finishes what a first one began. say: gets lines of progress.

    Raises SafetyError where the store is another user's, beside a running broker and behind one that was killed, in the
    middle of a backfill, where there is no RocksDB, where RocksDB lacks a message that the log has, where a database
    lies below config/ that this program does not know, where JSON files are newer than a database that a broker has
    worked with, and nobody says which count, and where a first call was given other options.
    """
    require_owner(place)
    with broker_kept_out(place), one_writer(place):
        _require_ended(place)
        aside = place.own / ROLLBACK
        begun = _begun(place, aside, offsets_of)
        if begun is not None and is_done(begun):
            return _ended(place, begun, rename)
        plan = begun or _prepare(place, aside, clock, offsets_of)
        kept = place.own / plan["kept"]
        bar(place, rename)
        if exists(place.rocksdb):
            _complete(place, kept, rename, is_new=begun is None, show=_shown(say, clock))
            _require_no_gap(place, aside, _topics_afterwards(place, plan, aside))
        for name in plan["files"]:
            _replace(place, aside / name, kept, rename)
        set_aside_queues(place, kept, rename)
        set_aside_databases(place, kept, rename)
        if (place.own / MOVED).exists():
            kept.mkdir(exist_ok=True)
            rename(place.own / MOVED, kept / MOVED)
        return _ended(place, plan, rename)


def _ended(place: Place, plan: dict[str, Any], rename: Rename) -> RolledBack:
    """Let the broker start again. The plan says before that it is done: nobody may follow it any more then."""
    write_file(place.own / ROLLBACK_PLAN, plan | {DONE: True})
    unbar(place, rename)
    # Allowed here: the folder is ours, and all in it has its place now.
    shutil.rmtree(place.own / ROLLBACK)
    fsync_folder(place.own)
    kept = str(place.own / plan["kept"])
    return RolledBack(kept, plan["files"], plan.get("only_in_files", {}), plan.get("left_out", {}))


def _has_databases(place: Place) -> bool:
    return exists(place.rocksdb) or any(exists(place.config / name) for name in DATABASES)


def _require_ended(place: Place) -> None:
    """Raise SafetyError behind a broker that was killed, and in the middle of a backfill; tidy up behind one."""
    require_clean_stop(place)
    if unfinished(place) is not None:
        raise SafetyError("a backfill has not ended: run it again, or throw it away with `forget`")


def _begun(place: Place, aside: Path, offsets_of: m.OffsetsOf | None) -> dict[str, Any] | None:
    """The plan to go on with; None if there is none, or one for other options by which nothing was replaced yet.

    Raises SafetyError where something may have been replaced by it.
    """
    plan = _plan_of(place, aside)
    if plan is None:
        return None
    said = plan.get("offsets_of", m.OffsetsOf.ROCKSDB)
    other = {True: m.OFFSETS_JSON, False: m.LMQ_OFFSETS_JSON}
    is_read = place.conf.is_lmq is None or other[place.conf.is_lmq] not in plan["files"]
    if is_read and offsets_of in (None, said):
        return plan
    if not place.barrier.exists():
        return None
    raise SafetyError(
        f"a rollback with --offsets-of {said} has begun that writes {', '.join(plan['files']) or 'no JSON file'}, and "
        "it may have replaced some: end it with the options that it was begun with. All that it replaces is kept"
    )


def _shown(say: Say | None, clock: Clock) -> Show:
    def show(done: Callable[[], int], total: int) -> AbstractContextManager[None]:
        return told(say, done, total, clock, "file queues") if say and total else nullcontext()

    return show


def _complete(place: Place, kept: Path, rename: Rename, *, is_new: bool, show: Show) -> None:
    """Complete the file queues. Where no broker has opened RocksDB, they are the newer ones, as far as they are there.

    is_new: no rollback had begun before, so that one that is refused has moved nothing in.
    """
    try:
        complete(place, kept, rename, only_lost=is_unopened(place, QUEUES), show=show)
    except SafetyError:
        if is_new:
            unbar(place)
            # Allowed here: the folder is ours, and this command has only just made it.
            shutil.rmtree(place.own / ROLLBACK)
        raise


def _topics_afterwards(place: Place, plan: dict[str, Any], aside: Path) -> frozenset[bytes]:
    """The topics that the broker will know. What RocksDB has deleted counts as deleted where its topics come back."""
    if m.TOPICS_JSON not in plan["files"]:
        return topics_of(place)
    folder = aside if (aside / m.TOPICS_JSON).exists() else place.config
    found = json_table(folder, m.TOPICS_JSON)
    return frozenset(name.encode() for name in (found[0] if found else {}).get("topicConfigTable", {}))


def _require_no_gap(place: Place, aside: Path, topics: Collection[bytes]) -> None:
    """Raise SafetyError where a broker in file mode would leave a message out, since RocksDB lacks it too.

    At its start such a broker indexes the messages that begin *behind* the end of its file queues, and so leaves out
    the one that begins just there (seen with 5.3.3). One that is in queues of deleted topics only may be left out. What
    was prepared is thrown away: the broker goes on with RocksDB.
    """
    inventory = inventory_of(place)
    end = max([inventory.log.start, *(_end_of(queue) for queue in inventory.queues)])
    record = inventory.log.record_at(end)
    if record is not None and _is_read(record, topics):
        unbar(place)
        # Allowed here: the folder is ours, and all in it was made by this command.
        shutil.rmtree(aside)
        raise SafetyError(
            f"a broker in file mode would leave out the message that begins at {end}, where the file queues end, and "
            f"count {record.topic.decode('utf-8', 'replace')}, queue {record.queue_id}, wrongly from there on: start "
            "the broker once more with storeType=defaultRocksDB, stop it with SIGTERM, and roll back then"
        )


def _is_read(record: CommitLogRecord, topics: Collection[bytes]) -> bool:
    """Whether a message is in a queue that somebody may read. Where no topics are known, none counts as deleted."""
    rules = DispatchRules((), is_multi=True, is_file_mode=True)
    units = units_of(record, properties_of(record.properties), rules)
    return any(not topics or is_kept(unit.topic, topics) for unit in units)


def _end_of(queue: Queue) -> int:
    """The byte of the commitlog behind the last message that the file queue knows."""
    if queue.last_phy < 0:
        return -1
    return queue.last_phy + int(queue.files.read(queue.range.end - 1, queue.range.end).size[0])


def _plan_of(place: Place, aside: Path) -> dict[str, Any] | None:
    """What a run that was cut short has prepared; None if there is none, or if a broker has gone on since.

    A broker that opens a database writes another CURRENT, and one in file mode writes its JSON files again. What was
    prepared before is older than what they have now. Behind the barrier no broker in file mode can have gone on: it
    ends, and 5.5.0 writes the JSON files as it has read them.
    """
    note = place.own / ROLLBACK_PLAN
    try:
        plan: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        if not {"kept", "files", "stamps"} <= plan.keys():
            raise ValueError("it names too little")
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError) as error:
        raise SafetyError(f"{note} is not what this program writes: {error}") from error
    if is_done(plan):  # what is there now was made later
        return None if _has_databases(place) else plan
    is_older = any(plan.get("currents", {}).get(name) != said for name, said in _currents(place).items())
    waiting = [name for name in plan["files"] if (aside / name).exists()]
    is_written = any(_stamp(place.config / name) != plan["stamps"][name] for name in waiting)
    return None if is_older or (is_written and not place.barrier.exists()) else plan


def _currents(place: Place) -> dict[str, list[str | int]]:
    """What CURRENT says in each database that is there, and when it was written: databases say the same again."""
    folders = {QUEUES: place.rocksdb, **{name: place.config / name for name in DATABASES}}
    there = {name: folder for name, folder in folders.items() if exists(folder)}
    return {name: [current_of(folder), _changed(folder / CURRENT)] for name, folder in there.items()}


def _stamp(path: Path) -> int:
    return _changed(path) if path.exists() else 0


def _prepare(place: Place, aside: Path, clock: Clock, offsets_of: m.OffsetsOf | None) -> dict[str, Any]:
    databases = [name for name in DATABASES if exists(place.config / name)]
    if not _has_databases(place):
        raise SafetyError(f"{place.store} has no RocksDB: there is nothing to roll back")
    other = other_database(place)
    if other and offsets_of is not m.OffsetsOf.FILES:
        raise SafetyError(
            f"{other} is a database that this program does not know, and a broker may have its last topics, groups "
            "and offsets there. Have the broker write them as JSON files (mqadmin rocksDBConfigToJson), stop it, "
            "and say --offsets-of files"
        )
    shutil.rmtree(aside, ignore_errors=True)
    opened = [name for name in databases if not is_unopened(place, name)]
    newest = [name for name in opened if _is_json_newer(place, name)]
    if newest and not offsets_of:
        raise SafetyError(
            f"a broker has worked with {', '.join(newest)} in RocksDB, and the JSON files were written later, by one "
            "in file mode perhaps. `export` shows what RocksDB has. Say which count: --offsets-of rocksdb, files, or "
            "both (those of RocksDB, and of the files what RocksDB lacks)"
        )
    if m.OFFSETS in opened and not offsets_of:
        _require_no_lost_offsets(place)
    newer = [] if offsets_of is m.OffsetsOf.FILES else opened
    more = read_json(place) if offsets_of is m.OffsetsOf.BOTH else None
    made = write_json(place, aside, newer, more) if newer else Exported(aside, {}, {})
    aside.mkdir(exist_ok=True)
    plan = {
        "kept": new_kept(place, clock.now_ms()),
        "offsets_of": offsets_of or m.OffsetsOf.ROCKSDB,
        "files": made.files,
        "only_in_files": made.only_in_files,
        "left_out": left_out(place) if exists(place.rocksdb) else {},
        "stamps": {name: _stamp(place.config / name) for name in made.files},
        "currents": _currents(place),
    }
    write_file(place.own / ROLLBACK_PLAN, plan)
    return plan


def _require_no_lost_offsets(place: Place) -> None:
    """Raise SafetyError where the JSON file has offsets of groups that RocksDB would not bring back."""
    lost = lost_offsets(read_json(place), read_databases(place.config))
    names = [*lost.missing, *lost.lower]
    if names:
        shown = "; ".join(names[:_SHOWN]) + (f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise SafetyError(
            f"RocksDB lacks {len(lost.missing)} offsets that the JSON file has, and has {len(lost.lower)} lower ones, "
            f"as after a switch without `backfill`: {shown}. Say which count: --offsets-of rocksdb, files, or both "
            "(those of RocksDB, and of the file what RocksDB lacks)"
        )


def _is_json_newer(place: Place, database: str) -> bool:
    names = {m.TOPICS: (m.TOPICS_JSON,), m.GROUPS: (m.GROUPS_JSON,), m.OFFSETS: (m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON)}
    files = [path for name in names[database] if (path := place.config / name).exists()]
    rows = [path for path in (place.config / database).iterdir() if path.suffix in (".sst", ".log")]
    return bool(files) and max(map(_changed, files)) > max(map(_changed, rows), default=0)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _replace(place: Place, new: Path, kept: Path, rename: Rename) -> None:
    """Put a new JSON file into place; the old one and its .bak are kept."""
    if not new.exists():
        return
    (kept / CONFIG).mkdir(parents=True, exist_ok=True)
    old = place.config / new.name
    if old.exists():
        copy = kept / CONFIG / f".{old.name}.copy"
        shutil.copy2(old, copy)
        with copy.open("rb") as handle:
            os.fsync(handle.fileno())
        rename(copy, kept / CONFIG / old.name)
    bak = place.config / f"{new.name}.bak"
    if bak.exists():
        rename(bak, kept / CONFIG / bak.name)
    fsync_folder(kept / CONFIG)
    # Allowed here: what this replaces was copied, durably named, and a rename is whole or nothing.
    rename(new, old)
    fsync_folder(place.config)
