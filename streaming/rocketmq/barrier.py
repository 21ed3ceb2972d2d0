"""Keeps a broker in file mode from starting while a rollback renames files one by one.

Such a broker goes on behind the largest end of all file queues. Half-way through, some queues have their new units and
others have not, and what those lack would never be indexed. We hold the broker's lock, but a process that was killed
holds none. So a queue that no broker can load lies in the store from before the first rename until behind the last one:
a broker in file mode does not start where a queue file has another length than it was told. RocksDB looks at no folder.
"""

import os
from pathlib import Path

from streaming.rocketmq.move import Rename
from streaming.rocketmq.place import BARRIER, Place
from streaming.rocketmq.staging import ROLLBACK, fsync_folder


def bar(place: Place, rename: Rename = os.replace) -> None:
    """Put the queue into the store, durably. A second call does nothing."""
    if place.barrier.exists():
        return
    made = _aside(place)
    (made / "0").mkdir(parents=True, exist_ok=True)
    with (made / "0" / ("0" * 20)).open("wb") as handle:
        handle.write(b"\0")  # a file without any byte would be deleted
        handle.flush()
        os.fsync(handle.fileno())
    fsync_folder(made / "0")
    fsync_folder(made)
    place.consumequeue.mkdir(exist_ok=True)
    rename(made, place.barrier)
    fsync_folder(place.consumequeue)


def unbar(place: Place, rename: Rename = os.replace) -> None:
    """Take it out again, by one rename. A second call does nothing."""
    if not place.barrier.exists():
        return
    _aside(place).parent.mkdir(exist_ok=True)
    # Allowed here: the folder is ours, by its name, and the queues are whole, or as they were.
    rename(place.barrier, _aside(place))
    fsync_folder(place.consumequeue)


def _aside(place: Place) -> Path:
    return place.own / ROLLBACK / BARRIER
