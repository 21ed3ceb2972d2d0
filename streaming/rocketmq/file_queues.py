"""Appends to the file queues what only RocksDB has, before a broker goes back to file mode.

A broker in file mode indexes at its start the messages that *begin behind* the end of its file queues. The message that
begins exactly there is left out, and the units of all later messages of its queue then stand one place too early (seen
with 5.3.3). So a rollback leaves the broker nothing to index.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.check import Bounds, bounds_of
from streaming.rocketmq.inventory import inventory_of
from streaming.rocketmq.place import Place
from streaming.rocketmq.queue_files import QueueFiles
from streaming.rocketmq.staging import fsync_folder
from udfs.rocketmq import rows
from udfs.rocketmq import units as u

_UNITS_PER_FILE = 300_000  # MessageStoreConfig.mappedFileSizeConsumeQueue, where no file shows another size
_CHUNK_ROWS = 50_000


class Lacking(NamedTuple):
    """A queue whose file queue ends before RocksDB does. blanks: from here up to first no unit is known."""

    topic: bytes
    queue_id: int
    blanks: int
    first: int
    end: int


def complete(place: Place) -> int:
    """Append the units, durably, and return how many they were. A second call appends what is still lacking.

    Raises SafetyError, before anything is written, where the file queue of a queue can't be continued.
    """
    inventory = inventory_of(place)
    known = {(queue.range.topic, queue.range.queue_id): queue.files for queue in inventory.queues}
    sizes = [file.count for files in known.values() for file in files.files]
    per_file = sizes[0] if sizes else _UNITS_PER_FILE
    with opened(place.rocksdb, read_only=True) as database:
        lacking = [
            each
            for (topic, queue_id), bounds in bounds_of(database).items()
            for each in _lacking(topic, queue_id, bounds, known.get((topic, queue_id), QueueFiles(())), per_file)
        ]
        for each in lacking:
            _append(place.consumequeue, each, database, per_file)
    return sum(each.end - each.first for each in lacking)


def _lacking(topic: bytes, queue_id: int, bounds: Bounds, files: QueueFiles, per_file: int) -> Iterator[Lacking]:
    end = files.end()
    if bounds.last < end:
        return
    if files.files and bounds.first > end:
        name = f"{topic.decode('utf-8', 'replace')}, queue {queue_id}"
        raise SafetyError(
            f"{name}: the file queue ends at {end}, and RocksDB begins at {bounds.first}, since what was between them "
            "has expired: move the folder of this queue away, and its file queue begins anew"
        )
    if files.files:
        yield Lacking(topic, queue_id, end, end, bounds.last + 1)
    else:
        yield Lacking(topic, queue_id, bounds.first - bounds.first % per_file, bounds.first, bounds.last + 1)


def _append(consumequeue: Path, lacking: Lacking, database: Database, per_file: int) -> None:
    folder = consumequeue / lacking.topic.decode() / str(lacking.queue_id)
    folder.mkdir(parents=True, exist_ok=True)
    blanks = lacking.first - lacking.blanks
    if blanks:
        no = np.zeros(blanks, dtype=np.int64)
        _write(folder, lacking.blanks, u.Units(no, np.full(blanks, u.BLANK_SIZE, dtype=np.int32), no), per_file)
    prefix, first = rows.queue_prefix(lacking.topic, lacking.queue_id), lacking.first
    found = database.rows(DEFAULT_FAMILY, rows.unit_key(lacking.topic, lacking.queue_id, first), prefix + b"\xff" * 8)
    while some := list(islice(found, _CHUNK_ROWS)):
        offsets = rows.key_offsets([key for key, _value in some], prefix)
        if not np.array_equal(offsets, np.arange(first, first + len(some))):
            raise SafetyError(f"the database has a hole in {folder.parent.name}, queue {folder.name}: see `check`")
        units, _times = rows.decode_values([value for _key, value in some])
        _write(folder, first, units, per_file)
        first += len(some)
    fsync_folder(folder)


def _write(folder: Path, first: int, units: u.Units, per_file: int) -> None:
    """Write units to their places. Allowed here: a file queue has only zeros behind its end."""
    done = 0
    while done < units.rows:
        start = (first + done) // per_file * per_file
        count = min(units.rows - done, start + per_file - first - done)
        path = folder / f"{start * u.UNIT_BYTES:020d}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, per_file * u.UNIT_BYTES)
            data = u.encode(units.between(done, done + count))
            written = os.pwrite(handle, data, (first + done - start) * u.UNIT_BYTES)
            if written != len(data):
                raise OSError(f"{path}: only {written} of {len(data)} bytes were written")
            os.fsync(handle)
        finally:
            os.close(handle)
        done += count
