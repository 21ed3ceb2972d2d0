"""Appends to the file queues what only RocksDB has, before a broker goes back to file mode.

A broker in file mode indexes at its start the messages that *begin behind* the end of its file queues. The message that
begins exactly there is left out, and the units of all later messages of its queue then stand one place too early (seen
with 5.3.3). So a rollback leaves the broker nothing to index.

A topic that was deleted and made anew in RocksDB mode counts its messages from 0 again, and the file queue still has
the units of its earlier life: with it, nobody would ever see the new messages.

A broker in file mode goes on behind the largest end of all its file queues. So whoever stops half-way must not leave
one queue with its new units and another without. All new files are made beside the store first, then all are renamed
into it: until the first of those renames, every queue ends where it did.
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
from streaming.rocketmq.bounds import bounds_of
from streaming.rocketmq.inventory import inventory_of
from streaming.rocketmq.lives import Both, is_same_life
from streaming.rocketmq.move import Rename
from streaming.rocketmq.place import Place
from streaming.rocketmq.queue_files import QueueFiles
from streaming.rocketmq.staging import NEW_QUEUES, fsync_folder
from udfs.rocketmq import rows
from udfs.rocketmq import units as u
from udfs.rocketmq.dispatch import LMQ_PREFIX

_CHUNK_ROWS = 50_000
Show = Callable[[Callable[[], int], int], AbstractContextManager[None]]


def _unseen(_done: Callable[[], int], _total: int) -> AbstractContextManager[None]:
    return nullcontext()


_NAME_BYTES = 255


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


def complete(
    place: Place, kept: Path, rename: Rename = os.replace, *, only_lost: bool = False, show: Show = _unseen
) -> int:
    """Append the units, durably, and return how many they were. A second call appends what is still lacking.

    Args:
        place: the store.
        kept: folder for file queues that are made from RocksDB alone, and were there.
        rename: moves a file in.
        only_lost: queues of which a file is there stay as they are.
        show: takes a function that returns how many queues are made, and how many there are to make.

    Raises SafetyError, before anything is written, where file queue and RocksDB contradict each other, where RocksDB
    has a hole, and where a queue's name can be no folder's.
    """
    made = place.own / NEW_QUEUES
    # Allowed here: the folder is ours, and holds what a call that was cut short had made and not moved in.
    shutil.rmtree(made, ignore_errors=True)
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
        lacking = [each for queue in changing for each in _lacking(queue, database, per_file) if _has_files(each)]
        for each in lacking:
            _require_whole(each, database)
        done = 0
        with show(lambda: done, len(lacking)):
            for number, each in enumerate(lacking):
                _make(made / str(number), place.consumequeue, each, database, per_file)
                done = number + 1
    for number, each in enumerate(lacking):
        _move_in(made / str(number), place.consumequeue, each, kept, rename)
    shutil.rmtree(made, ignore_errors=True)
    return sum(each.end - each.first for each in lacking)


def left_out(place: Place) -> dict[str, int]:
    """Return the LMQ queues of RocksDB that get no file queue, and how many messages each has there."""
    found = dict[str, int]()
    with opened(place.rocksdb, read_only=True) as database:
        for (topic, _queue_id), bounds in bounds_of(database).items():
            if _is_left_out(topic) and bounds.last >= 0:
                name = topic.decode("utf-8", "replace")
                found[name] = found.get(name, 0) + bounds.last - bounds.first + 1
    return found


def _is_left_out(topic: bytes) -> bool:
    """Whether a broker in file mode leaves a queue out: an LMQ queue that would be a folder within a folder."""
    return topic.startswith(LMQ_PREFIX) and b"/" in topic


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


def _has_files(lacking: Lacking) -> bool:
    """Whether a broker makes a file queue of it. Raises SafetyError for a name that no folder can have."""
    topic = lacking.topic
    if _is_left_out(topic):
        return False
    is_text = topic.decode("utf-8", "replace").encode() == topic
    if not is_text or b"/" in topic or b"\0" in topic or topic in {b"", b".", b".."} or len(topic) > _NAME_BYTES:
        raise SafetyError(
            f"the queue {topic!r}, {lacking.queue_id}, can't have a file queue, for no folder can have such a name: "
            "a broker in file mode would not have its messages. Delete it in RocksDB mode, or stay there"
        )
    return True


def _require_whole(lacking: Lacking, database: Database) -> None:
    following = lacking.first
    for offsets, _values in _rows_of(lacking, database):
        if not np.array_equal(offsets, np.arange(following, following + len(offsets))):
            name = lacking.topic.decode("utf-8", "replace")
            raise SafetyError(f"the database has a hole in {name}, queue {lacking.queue_id}: see `check`")
        following += len(offsets)


def _rows_of(lacking: Lacking, database: Database) -> Iterator[tuple[u.Longs, list[bytes]]]:
    """Yield queue offsets and values of what the file queue lacks, some at a time."""
    prefix = rows.queue_prefix(lacking.topic, lacking.queue_id)
    begin = rows.unit_key(lacking.topic, lacking.queue_id, lacking.first)
    found = database.rows(DEFAULT_FAMILY, begin, prefix + b"\xff" * 8)
    while some := list(islice(found, _CHUNK_ROWS)):
        yield rows.key_offsets([key for key, _value in some], prefix), [value for _key, value in some]


def _folder_of(consumequeue: Path, lacking: Lacking) -> Path:
    return consumequeue / lacking.topic.decode() / str(lacking.queue_id)


def _make(folder: Path, consumequeue: Path, lacking: Lacking, database: Database, per_file: int) -> None:
    """Make the files that are new or get more units, whole and durably, in a folder of ours."""
    folder.mkdir(parents=True)
    if lacking.blanks % per_file and not lacking.is_anew:  # the last file has room still
        _copy_begun(_folder_of(consumequeue, lacking), folder, lacking.blanks, per_file)
    blanks, first = lacking.first - lacking.blanks, lacking.first
    if lacking.first == lacking.end and not blanks:  # the name of the file alone says where the queue goes on
        _write_file(folder, lacking.first, 0, b"", per_file)
    if blanks:
        no = np.zeros(blanks, dtype=np.int64)
        _write(folder, lacking.blanks, u.Units(no, np.full(blanks, u.BLANK_SIZE, dtype=np.int32), no), per_file)
    for _offsets, values in _rows_of(lacking, database):
        units, _times = rows.decode_values(values)
        _write(folder, first, units, per_file)
        first += units.rows
    fsync_folder(folder)


def _copy_begun(source: Path, folder: Path, end: int, per_file: int) -> None:
    """Copy the units of a queue's last file."""
    start = end - end % per_file
    path = source / f"{start * u.UNIT_BYTES:020d}"
    with path.open("rb") as handle:
        data = handle.read((end - start) * u.UNIT_BYTES)
    _write_file(folder, start, 0, data, per_file)
    shutil.copymode(path, folder / path.name)


def _move_in(made: Path, consumequeue: Path, lacking: Lacking, kept: Path, rename: Rename) -> None:
    """Rename the new files into place, the lowest first, so that the queue has no hole at any time."""
    folder = _folder_of(consumequeue, lacking)
    if lacking.is_anew:
        _set_aside(folder, lacking, kept, rename)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(made.iterdir()):
        # Allowed here: what this replaces is a file of which the new one is a longer copy, and is durable.
        rename(file, folder / file.name)
    fsync_folder(folder)
    fsync_folder(folder.parent)


def _set_aside(folder: Path, lacking: Lacking, kept: Path, rename: Rename) -> None:
    aside = kept / "file-queues" / folder.parent.name
    aside.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in aside.iterdir()}
    name = next(each for each in (f"{lacking.queue_id}-{n}" for n in count(1)) if each not in taken)
    rename(folder, aside / name)
    fsync_folder(aside)


def _write(folder: Path, first: int, units: u.Units, per_file: int) -> None:
    """Write units to their places in the files of a folder."""
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
