"""Brings a store back to file mode: the JSON files get what RocksDB knows, and RocksDB's files go to a folder of ours.

The file queues get what only RocksDB has (streaming/rocketmq/file_queues.py says why). Where no broker has opened the
databases since they were made, the JSON files are the newer ones, and stay.

A run that was cut short goes on where it was: first all JSON files are made, then the file queues are completed, then
the JSON files replace the old ones, then the databases leave, the consume queues' CURRENT first.
"""

import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.errors import SafetyError
from streaming.rocketmq.configuration import DATABASES
from streaming.rocketmq.export import write_json
from streaming.rocketmq.file_queues import complete
from streaming.rocketmq.locks import broker_kept_out, one_writer
from streaming.rocketmq.move import Rename, is_moved_in, set_aside_databases, set_aside_queues
from streaming.rocketmq.place import Place
from streaming.rocketmq.staging import (
    CONFIG,
    MOVED,
    fsync_folder,
    is_unopened,
    new_kept,
    sealed_of,
    throw_away,
    write_file,
)

_FOLDER, _PLAN = "rollback", "plan.json"


class RolledBack(NamedTuple):
    """kept: where everything is that was replaced. files: the JSON files that were written, and entries of each."""

    kept: str
    files: dict[str, int]


def rollback(place: Place, clock: Clock, rename: Rename = os.replace) -> RolledBack:
    """Bring the store back to file mode. A second call finishes what a first one began.

    Raises SafetyError beside a running broker, in the middle of a backfill, or where there is no RocksDB.
    """
    with broker_kept_out(place), one_writer(place):
        sealed = sealed_of(place)
        if sealed is not None and is_moved_in(place, sealed):
            throw_away(place)
        elif sealed is not None:
            raise SafetyError("a backfill has not ended: run it again, or throw it away with `forget`")
        aside = place.own / _FOLDER
        if not (aside / _PLAN).exists():
            _prepare(place, aside, clock)
        plan = json.loads((aside / _PLAN).read_text(encoding="utf-8"))
        kept = place.own / plan["kept"]
        if exists(place.rocksdb):
            complete(place)
        for name in plan["files"]:
            _replace(place, aside / name, kept, rename)
        set_aside_queues(place, kept, rename)
        set_aside_databases(place, kept, rename)
        if (place.own / MOVED).exists():
            kept.mkdir(exist_ok=True)
            rename(place.own / MOVED, kept / MOVED)
        # Allowed here: the folder is ours, and all in it has its place now.
        shutil.rmtree(aside)
        return RolledBack(str(kept), plan["files"])


def _prepare(place: Place, aside: Path, clock: Clock) -> None:
    databases = [name for name in DATABASES if exists(place.config / name)]
    if not databases and not exists(place.rocksdb):
        raise SafetyError(f"{place.store} has no RocksDB: there is nothing to roll back")
    shutil.rmtree(aside, ignore_errors=True)
    newer = [name for name in databases if not is_unopened(place, name)]
    files = write_json(place, aside, newer).files if newer else {}
    aside.mkdir(exist_ok=True)
    kept = new_kept(place, clock.now_ms())
    write_file(aside / _PLAN, {"kept": kept, "files": files})


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
