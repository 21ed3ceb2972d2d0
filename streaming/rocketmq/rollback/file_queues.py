"""Appends units that only RocksDB has to the file queues, before a broker returns to file mode.

At its start, a broker in file mode indexes the messages that *start after* the end of its file queues. It skips the
message that starts exactly there, and writes the units of all later messages of that queue one offset too early (seen
with 5.3.3). So a rollback leaves the broker nothing to index.

A topic that was deleted and created again in RocksDB mode counts its messages from 0 again, while the file queue still
has the units of its earlier incarnation, which would hide the new messages from every consumer.

All new files are created beside the store first, and renamed into it afterwards.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.store.bounds import bounds_of
from streaming.rocketmq.store.incarnations import Both, is_same_incarnation
from streaming.rocketmq.store.inventory import inventory_of
from streaming.rocketmq.store.queue_files import QueueFiles
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.move import Rename
from streaming.rocketmq.workspace.rollback_plan import NEW_QUEUES
from streaming.state.durable import flush
from udfs.rocketmq import queue_units as u
from udfs.rocketmq import rows
from udfs.rocketmq.dispatch import LMQ_PREFIX

_CHUNK_ROWS = 50_000
Show = Callable[[Callable[[], int], int], AbstractContextManager[None]]


def _no_progress(_done: Callable[[], int], _total: int) -> AbstractContextManager[None]:
    return nullcontext()


_NAME_BYTES = 255


class MissingUnits(NamedTuple):
    """A queue whose units are missing from its file queue: the queue offsets from `first` up to `end`."""

    topic: bytes
    queue_id: int
    blanks: int  # the file queue gets blank units from this offset up to `first`
    first: int
    end: int
    is_new: bool = False  # an existing file queue is set aside, and created again from RocksDB alone


def complete(
    paths: StorePaths, kept: Path, rename: Rename = os.replace, *, only_lost: bool = False, show: Show = _no_progress
) -> int:
    """Append the missing units, durably, and return their number. A second call appends what is still missing.

    Raises SafetyError, before anything is written, if file queue and RocksDB contradict each other, if RocksDB has a
    hole, and if a queue's name can't be a folder's.

    Args:
        paths: the store.
        kept: folder for replaced file queues.
        rename: moves a file into the store.
        only_lost: leave queues that have a file as they are.
        show: gets a function that returns the number of finished queues, and the number of all.
    """
    new = paths.own / NEW_QUEUES
    # Allowed here: the folder is ours, and contains the files of an interrupted call that it has not moved in.
    shutil.rmtree(new, ignore_errors=True)
    inventory = inventory_of(paths)
    file_queues = {queue.range.key: queue.files for queue in inventory.queues}
    sizes = [file.count for files in file_queues.values() for file in files.files]
    per_file = sizes[0] if sizes else paths.conf.queue_file_units
    with opened(paths.rocksdb, read_only=True) as database:
        both = [
            Both(*name, bounds, file_queues.get(name, QueueFiles(()))) for name, bounds in bounds_of(database).items()
        ]
        if both and not per_file:
            raise SafetyError(
                f"no file queue is left in {paths.consumequeue} that shows the size of the broker's files "
                "(mappedFileSizeConsumeQueue), and it starts with no other: name its configuration with --broker-conf"
            )
        changing = [queue for queue in both if not (only_lost and queue.files.files)]
        appended = [units for queue in changing for units in _missing(queue, database, per_file) if _has_files(units)]
        for units in appended:
            _require_complete(units, database)
        done = 0
        with show(lambda: done, len(appended)):
            for number, units in enumerate(appended):
                _create(new / str(number), paths.consumequeue, units, database, per_file)
                done = number + 1
    # A broker in file mode resumes after the largest end of all its file queues, so an interrupted run must not leave
    # one queue with its new units and another without: until the first of these renames, all queues end where they did.
    for number, units in enumerate(appended):
        _move_in(new / str(number), paths.consumequeue, units, kept, rename)
    shutil.rmtree(new, ignore_errors=True)
    return sum(units.end - units.first for units in appended)


def left_out(paths: StorePaths) -> dict[str, int]:
    """Return the LMQ queues of RocksDB that get no file queue, with their numbers of messages."""
    messages = dict[str, int]()
    with opened(paths.rocksdb, read_only=True) as database:
        for (topic, _queue_id), bounds in bounds_of(database).items():
            if _is_left_out(topic) and bounds.last >= 0:
                name = topic.decode("utf-8", "replace")
                messages[name] = messages.get(name, 0) + bounds.last - bounds.first + 1
    return messages


def _is_left_out(topic: bytes) -> bool:
    """Whether a broker in file mode skips a queue: an LMQ queue that would be a folder within a folder."""
    return topic.startswith(LMQ_PREFIX) and b"/" in topic


def _missing(queue: Both, database: Database, per_file: int) -> Iterator[MissingUnits]:
    bounds, files, end = queue.bounds, queue.files, queue.files.end()
    has_rows = bounds.last >= 0
    following = (bounds.last if has_rows else bounds.max[1] if bounds.max else -1) + 1
    first = bounds.first if has_rows else following
    blanks = first - first % per_file
    new_queue = MissingUnits(
        topic=queue.topic, queue_id=queue.queue_id, blanks=blanks, first=first, end=following, is_new=bool(files.files)
    )
    if not files.files:
        if following > 0:  # also without rows: the name of an empty file determines the offset of the next message
            yield new_queue
    # the topic was deleted and created again: the earlier units would hide the new messages from every consumer
    elif end > files.start and has_rows and not is_same_incarnation(queue, database):
        yield new_queue
    elif following > end and has_rows and first <= end:
        yield MissingUnits(topic=queue.topic, queue_id=queue.queue_id, blanks=end, first=end, end=following)
    elif following > end:
        yield new_queue


def _has_files(missing: MissingUnits) -> bool:
    """Whether a broker creates a file queue for it. Raises SafetyError for a name that no folder can have."""
    topic = missing.topic
    if _is_left_out(topic):
        return False
    is_text = topic.decode("utf-8", "replace").encode() == topic
    if not is_text or b"/" in topic or b"\0" in topic or topic in {b"", b".", b".."} or len(topic) > _NAME_BYTES:
        raise SafetyError(
            f"the queue {topic!r}, {missing.queue_id}, can't have a file queue, because no folder can have its name: "
            "a broker in file mode would not have its messages. Delete it in RocksDB mode, or stay there"
        )
    return True


def _require_complete(missing: MissingUnits, database: Database) -> None:
    following = missing.first
    for offsets, _values in _rows_of(missing, database):
        if not np.array_equal(offsets, np.arange(following, following + len(offsets))):
            name = missing.topic.decode("utf-8", "replace")
            raise SafetyError(f"the database has a hole in {name}, queue {missing.queue_id}: see `check`")
        following += len(offsets)


def _rows_of(missing: MissingUnits, database: Database) -> Iterator[tuple[u.Longs, list[bytes]]]:
    """Yield queue offsets and values of the missing units, chunk by chunk."""
    prefix = rows.queue_prefix(missing.topic, missing.queue_id)
    start = rows.unit_key(missing.topic, missing.queue_id, missing.first)
    items = database.rows(DEFAULT_FAMILY, start, prefix + b"\xff" * 8)
    while chunk := list(islice(items, _CHUNK_ROWS)):
        yield rows.key_offsets([key for key, _value in chunk], prefix), [value for _key, value in chunk]


def _folder_of(consumequeue: Path, missing: MissingUnits) -> Path:
    return consumequeue / missing.topic.decode() / str(missing.queue_id)


def _create(folder: Path, consumequeue: Path, missing: MissingUnits, database: Database, per_file: int) -> None:
    """Create the files that are new or get more units, completely and durably, in a folder of ours."""
    folder.mkdir(parents=True)
    if missing.blanks % per_file and not missing.is_new:  # the last file has room left
        _copy_last_file(_folder_of(consumequeue, missing), folder, missing.blanks, per_file)
    blanks, first = missing.first - missing.blanks, missing.first
    if missing.first == missing.end and not blanks:  # the name of the file alone determines the queue's next offset
        _write_file(folder, missing.first, 0, b"", per_file)
    if blanks:
        zeros = np.zeros(blanks, dtype=np.int64)
        _write(folder, missing.blanks, u.Units(zeros, np.full(blanks, u.BLANK_SIZE, dtype=np.int32), zeros), per_file)
    for _offsets, values in _rows_of(missing, database):
        units, _times = rows.decode_values(values)
        _write(folder, first, units, per_file)
        first += units.rows
    flush(folder)


def _copy_last_file(source: Path, folder: Path, end: int, per_file: int) -> None:
    """Copy the units of a queue's last file."""
    start = end - end % per_file
    path = source / f"{start * u.UNIT_BYTES:020d}"
    with path.open("rb") as handle:
        data = handle.read((end - start) * u.UNIT_BYTES)
    _write_file(folder, start, 0, data, per_file)
    shutil.copymode(path, folder / path.name)


def _move_in(new: Path, consumequeue: Path, missing: MissingUnits, kept: Path, rename: Rename) -> None:
    """Rename the new files into the store, the lowest first, so that the queue never has a hole."""
    folder = _folder_of(consumequeue, missing)
    if missing.is_new:
        _set_aside(folder, missing, kept, rename)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(new.iterdir()):
        # Allowed here: this replaces a file by a longer copy of it, which is durable.
        rename(file, folder / file.name)
    flush(folder)
    flush(folder.parent)


def _set_aside(folder: Path, missing: MissingUnits, kept: Path, rename: Rename) -> None:
    aside = kept / "file-queues" / folder.parent.name
    aside.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in aside.iterdir()}
    name = next(name for name in (f"{missing.queue_id}-{n}" for n in count(1)) if name not in taken)
    rename(folder, aside / name)
    flush(aside)


def _write(folder: Path, first: int, units: u.Units, per_file: int) -> None:
    """Write units to their positions in the files of a folder."""
    done = 0
    while done < units.rows:
        start = (first + done) // per_file * per_file
        rows_here = min(units.rows - done, start + per_file - first - done)
        _write_file(folder, start, first + done - start, u.encode(units.between(done, done + rows_here)), per_file)
        done += rows_here


def _write_file(folder: Path, start: int, index: int, data: bytes, per_file: int) -> None:
    """Write units durably into the file that starts at the queue offset `start`, from its unit `index` on."""
    path = folder / f"{start * u.UNIT_BYTES:020d}"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(handle, per_file * u.UNIT_BYTES)
        written = os.pwrite(handle, data, index * u.UNIT_BYTES)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written", str(path))
        os.fsync(handle)
    finally:
        os.close(handle)
