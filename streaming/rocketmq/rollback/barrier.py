"""Keeps a broker in file mode from starting while a rollback renames files one by one.

Such a broker resumes after the largest end of all file queues. In the middle of a rollback, some queues have their new
units and others do not, and the broker would never index the missing units. Our hold on the broker's lock ends if this
process is killed. So from before the first rename until after the last, the store contains a queue that no broker can
load. RocksDB ignores folders.
"""

import os
from pathlib import Path

from streaming.rocketmq.store.store_paths import BARRIER, StorePaths
from streaming.rocketmq.workspace.move import Rename
from streaming.rocketmq.workspace.rollback_plan import ROLLBACK
from streaming.state.durable import flush


def bar(paths: StorePaths, rename: Rename = os.replace) -> None:
    """Create the barrier queue in the store, durably. A second call does nothing."""
    if paths.barrier.exists():
        return
    new = _aside(paths)
    (new / "0").mkdir(parents=True, exist_ok=True)
    file = new / "0" / ("0" * 20)
    # a broker in file mode does not start if a queue file has another length than configured
    file.write_bytes(b"\0")  # brokers delete empty files
    flush(file)
    flush(new / "0")
    flush(new)
    paths.consumequeue.mkdir(exist_ok=True)
    rename(new, paths.barrier)
    flush(paths.consumequeue)


def unbar(paths: StorePaths, rename: Rename = os.replace) -> None:
    """Remove the barrier queue, by one rename. A second call does nothing."""
    if not paths.barrier.exists():
        return
    _aside(paths).parent.mkdir(exist_ok=True)
    # Allowed here: the folder is ours, by its name, and the queues are complete, or unchanged.
    rename(paths.barrier, _aside(paths))
    flush(paths.consumequeue)


def _aside(paths: StorePaths) -> Path:
    return paths.own / ROLLBACK / BARRIER
