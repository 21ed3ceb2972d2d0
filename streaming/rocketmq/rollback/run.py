"""Brings a store back to file mode: RocksDB's contents go into the JSON files, and its own files into a folder of ours.

The file queues get the units that only RocksDB has (streaming/rocketmq/rollback/file_queues.py explains why). If no
broker has opened the databases since they were created, the JSON files are newer, and stay.

An interrupted run is resumed unless a broker has worked on the store since.
"""

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.rocketmq.progress import Say, progress_of
from streaming.rocketmq.rollback.barrier import bar, unbar
from streaming.rocketmq.rollback.export import Exported, require_clean_stop, write_json
from streaming.rocketmq.rollback.file_queues import Show, complete, left_out
from streaming.rocketmq.store.configuration import (
    DATABASES,
    lost_offsets,
    other_database,
    read_databases,
    read_json,
    topics_of,
)
from streaming.rocketmq.store.inventory import Queue, inventory_of
from streaming.rocketmq.store.json_files import json_table
from streaming.rocketmq.store.locks import broker_kept_out, one_writer
from streaming.rocketmq.store.owner import require_owner
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.move import Rename, set_aside_databases, set_aside_queues, unfinished
from streaming.rocketmq.workspace.rollback_plan import ROLLBACK, RollbackPlan, read_plan, write_plan
from streaming.rocketmq.workspace.staging import (
    CONFIG,
    CURRENT,
    MOVED,
    QUEUES,
    current_of,
    is_unopened,
    new_kept,
)
from streaming.state.durable import flush
from udfs.rocketmq import metadata as m
from udfs.rocketmq.commitlog import CommitLogRecord
from udfs.rocketmq.dispatch import DispatchRules, is_kept, properties_of, units_of

_SHOWN = 10  # names in a message


class RolledBack(NamedTuple):
    """The result of a rollback."""

    kept: str  # folder of the replaced files
    files: dict[str, int]  # the written JSON files, and the number of entries of each
    only_in_files: dict[str, list[str]]  # topics and groups that are missing in RocksDB, by JSON file
    left_out: dict[str, int]  # LMQ queues that get no file queue, and the number of messages of each


def rollback(
    paths: StorePaths,
    clock: Clock,
    rename: Rename = os.replace,
    offsets_of: m.OffsetsOf | None = None,
    say: Say | None = None,
) -> RolledBack:
    """Bring the store back to file mode. A second call finishes an interrupted call.

    Raises SafetyError if the store is another user's, if a broker runs or was killed, during an unfinished backfill, if
    there is no RocksDB, if a message of the log is missing in RocksDB, if there is an unknown database below config/,
    if JSON files are newer than a database that a broker has used and offsets_of does not decide between them, and if
    an earlier call had other options.

    Args:
        paths: the store.
        clock: for the name of the folder of replaced files, and for progress.
        rename: moves a file.
        offsets_of: the source of topics, groups and offsets.
        say: gets lines of progress.
    """
    require_owner(paths)
    with broker_kept_out(paths), one_writer(paths):
        _require_ended(paths)
        aside = paths.own / ROLLBACK
        started = _started_plan(paths, aside, offsets_of)
        if started is not None and started.done:
            return _ended(paths, started, rename)
        plan = started or _prepare(paths, aside, clock, offsets_of)
        kept = paths.own / plan.kept
        # from before the first rename until after the last, no broker in file mode can start
        bar(paths, rename)
        if exists(paths.rocksdb):
            _complete(paths, kept, rename, is_new=started is None, show=_progress(say, clock))
            _require_no_gap(paths, aside, _topics_afterwards(paths, plan, aside))
        for name in plan.files:
            _replace(paths, aside / name, kept, rename)
        set_aside_queues(paths, kept, rename)
        set_aside_databases(paths, kept, rename)
        if (paths.own / MOVED).exists():
            kept.mkdir(exist_ok=True)
            rename(paths.own / MOVED, kept / MOVED)
        return _ended(paths, plan, rename)


def _ended(paths: StorePaths, plan: RollbackPlan, rename: Rename) -> RolledBack:
    """Let the broker start again."""
    # first, so that no later run resumes the plan
    write_plan(paths, replace(plan, done=True))
    unbar(paths, rename)
    # Allowed here: the folder is ours, and all of its files are in the store now.
    shutil.rmtree(paths.own / ROLLBACK)
    flush(paths.own)
    return RolledBack(str(paths.own / plan.kept), plan.files, plan.only_in_files, plan.left_out)


def _has_databases(paths: StorePaths) -> bool:
    return exists(paths.rocksdb) or any(exists(paths.config / name) for name in DATABASES)


def _require_ended(paths: StorePaths) -> None:
    """Raise SafetyError if the broker was killed or a backfill is unfinished; tidy up after a finished backfill."""
    require_clean_stop(paths)
    if unfinished(paths) is not None:
        raise SafetyError("a backfill has not ended: run it again, or delete it with `forget`")


def _started_plan(paths: StorePaths, aside: Path, offsets_of: m.OffsetsOf | None) -> RollbackPlan | None:
    """Return the plan to resume; None if there is none, or if a run with other options has replaced nothing yet.

    Raises SafetyError if a run with other options may have replaced something.
    """
    plan = _valid_plan(paths, aside)
    if plan is None:
        return None
    other = {True: m.OFFSETS_JSON, False: m.LMQ_OFFSETS_JSON}
    is_read = paths.conf.is_lmq is None or other[paths.conf.is_lmq] not in plan.files
    if is_read and offsets_of in (None, plan.offsets_of):
        return plan
    if not paths.barrier.exists():
        return None
    written = ", ".join(plan.files) or "no JSON file"
    raise SafetyError(
        f"a rollback with --offsets-of {plan.offsets_of} has started that writes {written}, and "
        "it may have replaced some: end it with the options with which it started. It keeps all files that it replaces"
    )


def _progress(say: Say | None, clock: Clock) -> Show:
    def show(done: Callable[[], int], total: int) -> AbstractContextManager[None]:
        return progress_of(say, done, total, clock, "file queues") if say and total else nullcontext()

    return show


def _complete(paths: StorePaths, kept: Path, rename: Rename, *, is_new: bool, show: Show) -> None:
    """Complete the file queues. If no broker has opened RocksDB, existing file queues are newer and stay.

    is_new: this call has started the rollback, so nothing was moved in if it is refused.
    """
    try:
        complete(paths, kept, rename, only_lost=is_unopened(paths, QUEUES), show=show)
    except SafetyError:
        if is_new:
            unbar(paths)
            # Allowed here: the folder is ours, and this command has just created it.
            shutil.rmtree(paths.own / ROLLBACK)
        raise


def _topics_afterwards(paths: StorePaths, plan: RollbackPlan, aside: Path) -> frozenset[bytes]:
    """Return the topics that the broker will know. If RocksDB's topics are restored, deleted topics are missing."""
    if m.TOPICS_JSON not in plan.files:
        return topics_of(paths)
    folder = aside if (aside / m.TOPICS_JSON).exists() else paths.config
    topics = json_table(folder, m.TOPICS_JSON)
    return frozenset(name.encode() for name in (topics[0] if topics else {}).get("topicConfigTable", {}))


def _require_no_gap(paths: StorePaths, aside: Path, topics: Collection[bytes]) -> None:
    """Raise SafetyError if a broker in file mode would skip a message, because it is missing in RocksDB too.

    A message that is only in queues of deleted topics may be skipped. The prepared files are deleted: the broker
    continues with RocksDB.
    """
    inventory = inventory_of(paths)
    # at its start, such a broker indexes the messages that *start after* the end of its file queues, and so skips the
    # message that starts exactly there (seen with 5.3.3)
    end = max([inventory.log.start, *(_end_of(queue) for queue in inventory.queues)])
    record = inventory.log.record_at(end)
    if record is not None and _is_read(record, topics):
        unbar(paths)
        # Allowed here: the folder is ours, and this command has created all of its files.
        shutil.rmtree(aside)
        raise SafetyError(
            f"a broker in file mode would skip the message that starts at {end}, where the file queues end, and write "
            f"later units of {record.topic.decode('utf-8', 'replace')}, queue {record.queue_id}, at wrong offsets: "
            "start the broker once more with storeType=defaultRocksDB, stop it with SIGTERM, and roll back then"
        )


def _is_read(record: CommitLogRecord, topics: Collection[bytes]) -> bool:
    """Whether a message is in a queue with possible consumers. If no topics are known, none counts as deleted."""
    rules = DispatchRules((), is_multi=True, is_file_mode=True)
    units = units_of(record, properties_of(record.properties), rules)
    return any(not topics or is_kept(unit.topic, topics) for unit in units)


def _end_of(queue: Queue) -> int:
    """Return the byte of the commitlog after the last message of the file queue."""
    if queue.last_phy < 0:
        return -1
    return queue.last_phy + int(queue.files.read(queue.range.end - 1, queue.range.end).size[0])


def _valid_plan(paths: StorePaths, aside: Path) -> RollbackPlan | None:
    """Return what an interrupted run has prepared; None without one, or if a broker has worked since.

    A broker that opens a database writes another CURRENT, and a broker in file mode writes its JSON files again; both
    make the prepared files older than the store.
    """
    plan = read_plan(paths)
    if plan is None:
        return None
    if plan.done:  # a database that exists now was created later
        return None if _has_databases(paths) else plan
    is_older = any(plan.currents.get(name) != current for name, current in _currents(paths).items())
    waiting = [name for name in plan.files if (aside / name).exists()]
    is_written = any(_stamp(paths.config / name) != plan.stamps[name] for name in waiting)
    # While the barrier exists, no broker in file mode can have worked, and new times of the JSON files prove nothing:
    # such a broker ends at its start, and 5.5.0 then writes the JSON files as it has read them
    return None if is_older or (is_written and not paths.barrier.exists()) else plan


def _currents(paths: StorePaths) -> dict[str, list[str | int]]:
    """Return contents and time of CURRENT in each database; the contents alone may be equal in another database."""
    folders = {QUEUES: paths.rocksdb, **{name: paths.config / name for name in DATABASES}}
    existing = {name: folder for name, folder in folders.items() if exists(folder)}
    return {name: [current_of(folder), _changed(folder / CURRENT)] for name, folder in existing.items()}


def _stamp(path: Path) -> int:
    return _changed(path) if path.exists() else 0


def _prepare(paths: StorePaths, aside: Path, clock: Clock, offsets_of: m.OffsetsOf | None) -> RollbackPlan:
    databases = [name for name in DATABASES if exists(paths.config / name)]
    if not _has_databases(paths):
        raise SafetyError(f"{paths.store} has no RocksDB: there is nothing to roll back")
    other = other_database(paths)
    if other and offsets_of is not m.OffsetsOf.FILES:
        raise SafetyError(
            f"{other} is a database that this program does not know, and a broker may have its last topics, groups "
            "and offsets there. Have the broker write them as JSON files (mqadmin rocksDBConfigToJson), stop it, "
            "and use --offsets-of files"
        )
    shutil.rmtree(aside, ignore_errors=True)
    opened = [name for name in databases if not is_unopened(paths, name)]
    newest = [name for name in opened if _is_json_newer(paths, name)]
    if newest and not offsets_of:
        raise SafetyError(
            f"a broker has worked with {', '.join(newest)} in RocksDB, and the JSON files were written later, perhaps "
            "in file mode. `export` shows RocksDB's entries. Choose between them: --offsets-of rocksdb, files, or both "
            "(RocksDB's entries, and those of the files that are missing in RocksDB)"
        )
    if m.OFFSETS in opened and not offsets_of:
        _require_no_lost_offsets(paths)
    # a database that no broker has opened contains nothing new
    newer = [] if offsets_of is m.OffsetsOf.FILES else opened
    more = read_json(paths) if offsets_of is m.OffsetsOf.BOTH else None
    exported = write_json(paths, aside, newer, more) if newer else Exported(aside, {}, {})
    aside.mkdir(exist_ok=True)
    plan = RollbackPlan(
        kept=new_kept(paths, clock.now_ms()),
        offsets_of=offsets_of or m.OffsetsOf.ROCKSDB,
        files=exported.files,
        only_in_files=exported.only_in_files,
        left_out=left_out(paths) if exists(paths.rocksdb) else {},
        stamps={name: _stamp(paths.config / name) for name in exported.files},
        currents=_currents(paths),
    )
    write_plan(paths, plan)
    return plan


def _require_no_lost_offsets(paths: StorePaths) -> None:
    """Raise SafetyError if the JSON file has offsets of groups that RocksDB would not restore."""
    lost = lost_offsets(read_json(paths), read_databases(paths.config))
    names = [*lost.missing, *lost.lower]
    if names:
        shown = "; ".join(names[:_SHOWN]) + (f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        raise SafetyError(
            f"{len(lost.missing)} offsets of the JSON file are missing in RocksDB, and {len(lost.lower)} are lower "
            f"there, as after a switch without `backfill`: {shown}. Choose between them: --offsets-of rocksdb, files, "
            "or both (RocksDB's entries, and those of the file that are missing in RocksDB)"
        )


def _is_json_newer(paths: StorePaths, database: str) -> bool:
    names = {m.TOPICS: (m.TOPICS_JSON,), m.GROUPS: (m.GROUPS_JSON,), m.OFFSETS: (m.OFFSETS_JSON, m.LMQ_OFFSETS_JSON)}
    files = [path for name in names[database] if (path := paths.config / name).exists()]
    rows = [path for path in (paths.config / database).iterdir() if path.suffix in (".sst", ".log")]
    return bool(files) and max(map(_changed, files)) > max(map(_changed, rows), default=0)


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _replace(paths: StorePaths, new: Path, kept: Path, rename: Rename) -> None:
    """Replace a JSON file; the old file and its .bak are kept."""
    if not new.exists():
        return
    (kept / CONFIG).mkdir(parents=True, exist_ok=True)
    old = paths.config / new.name
    if old.exists():
        copy = kept / CONFIG / f".{old.name}.copy"
        shutil.copy2(old, copy)
        flush(copy)
        rename(copy, kept / CONFIG / old.name)
    bak = paths.config / f"{new.name}.bak"
    if bak.exists():
        rename(bak, kept / CONFIG / bak.name)
    flush(kept / CONFIG)
    # Allowed here: the replaced file was copied under a durable name, and a rename is atomic.
    rename(new, old)
    flush(paths.config)
