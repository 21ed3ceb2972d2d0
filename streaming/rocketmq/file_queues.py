"""Appends to the file queues what only RocksDB has, before a broker goes back to file mode.

A broker in file mode indexes at its start the messages that *begin behind* the end of its file queues. The message that
begins exactly there is left out, and the units of all later messages of its queue then stand one place too early (seen
with 5.3.3). So a rollback leaves the broker nothing to index.

A topic that was deleted and made anew in RocksDB mode counts its messages from 0 again, and the file queue still has
the units of its earlier life: with it, nobody would ever see the new messages.
"""

import errno
import os
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.bounds import bounds_of
from streaming.rocketmq.inventory import inventory_of
from streaming.rocketmq.lives import Both, is_same_life
from streaming.rocketmq.move import Rename
from streaming.rocketmq.place import Place
from streaming.rocketmq.queue_files import QueueFiles
from streaming.rocketmq.staging import fsync_folder
from udfs.rocketmq import rows
from udfs.rocketmq import units as u

_CHUNK_ROWS = 50_000


class Lacking(NamedTuple):
    """A queue whose file queue lacks what RocksDB has. blanks: from here up to first no unit is known.

    is_anew: what the file queue has is of another life of the queue, or ends before something that has expired. It is
    set aside, and the file queue made from RocksDB alone.
    """

    topic: bytes
    queue_id: int
    blanks: int
    first: int
    end: int
    is_anew: bool = False


def complete(place: Place, kept: Path, rename: Rename = os.replace, *, only_lost: bool = False) -> int:
    """Append the units, durably, and return how many they were. A second call appends what is still lacking.

    kept: folder for file queues that are made anew. only_lost: queues of which a file is there stay as they are. Raises
    SafetyError, before anything is written, where file queue and RocksDB contradict each other.
    """
    inventory = inventory_of(place)
    known = {(queue.range.topic, queue.range.queue_id): queue.files for queue in inventory.queues}
    sizes = [file.count for files in known.values() for file in files.files]
    per_file = sizes[0] if sizes else place.conf.queue_file_units
    with opened(place.rocksdb, read_only=True) as database:
        both = [Both(*name, each, known.get(name, QueueFiles(()))) for name, each in bounds_of(database).items()]
        if both and not per_file:
            raise SafetyError(
                f"no file queue is left in {place.consumequeue} that shows how large a broker makes its files "
                "(mappedFileSizeConsumeQueue), and it starts with no others: name its configuration with --broker-conf"
            )
        changing = [queue for queue in both if not (only_lost and queue.files.files)]
        lacking = [each for queue in changing for each in _lacking(queue, database, per_file)]
        for each in lacking:
            if each.is_anew:
                _set_aside(place.consumequeue, each, kept, rename)
            _append(place.consumequeue, each, database, per_file)
    return sum(each.end - each.first for each in lacking)


def _lacking(queue: Both, database: Database, per_file: int) -> Iterator[Lacking]:
    bounds, files, end = queue.bounds, queue.files, queue.files.end()
    has_rows = bounds.last >= 0
    following = (bounds.last if has_rows else bounds.max[1] if bounds.max else -1) + 1
    first = bounds.first if has_rows else following
    blanks = first - first % per_file
    anew = Lacking(queue.topic, queue.queue_id, blanks, first, following, is_anew=bool(files.files))
    if not files.files:
        if following > 0:  # without rows, too: the name of an empty file says which offset the next message gets
            yield anew
    elif end > files.start and has_rows and not is_same_life(queue, database):
        yield anew
    elif following > end:
        yield Lacking(queue.topic, queue.queue_id, end, end, following) if has_rows and first <= end else anew


def _set_aside(consumequeue: Path, lacking: Lacking, kept: Path, rename: Rename) -> None:
    folder = kept / "file-queues" / lacking.topic.decode()
    folder.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in folder.iterdir()}
    name = next(each for each in (f"{lacking.queue_id}-{n}" for n in count(1)) if each not in taken)
    rename(consumequeue / lacking.topic.decode() / str(lacking.queue_id), folder / name)
    fsync_folder(folder)


def _append(consumequeue: Path, lacking: Lacking, database: Database, per_file: int) -> None:
    folder = consumequeue / lacking.topic.decode() / str(lacking.queue_id)
    folder.mkdir(parents=True, exist_ok=True)
    blanks = lacking.first - lacking.blanks
    if lacking.first == lacking.end and not blanks:  # the name of the file alone says where the queue goes on
        _write_file(folder, lacking.first, 0, b"", per_file)
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
        some = min(units.rows - done, start + per_file - first - done)
        _write_file(folder, start, first + done - start, u.encode(units.between(done, done + some)), per_file)
        done += some


def _write_file(folder: Path, start: int, place: int, data: bytes, per_file: int) -> None:
    """Write units into the file that begins at the queue offset start, from its unit `place` on, durably."""
    path = folder / f"{start * u.UNIT_BYTES:020d}"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(handle, per_file * u.UNIT_BYTES)
        written = os.pwrite(handle, data, place * u.UNIT_BYTES)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written", str(path))
        os.fsync(handle)
    finally:
        os.close(handle)
