"""The base of `follow`: all units in the queue files of a running broker, up to the same message."""

import bisect
import os
import shutil
from dataclasses import dataclass, replace

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.rocketmq.convert.job import Job
from streaming.rocketmq.convert.join import join
from streaming.rocketmq.convert.survey import BYTES_PER_UNIT, MORE_BYTES
from streaming.rocketmq.convert.work import works_of
from streaming.rocketmq.progress import Say, progress_of
from streaming.rocketmq.store.disk import require_room
from streaming.rocketmq.store.inventory import Inventory, Queue, inventory_of
from streaming.rocketmq.store.log_files import commitlog_being_written
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.handover import delete_follow_result
from streaming.rocketmq.workspace.staging import file_name
from streaming.state.durable import flush

_STAGES = 3


@dataclass(frozen=True, slots=True)
class Base:
    """Creates the database that `follow` extends."""

    paths: StorePaths
    clock: Clock
    say: Say
    rows_per_file: int

    def make(self, spark: SparkContext) -> None:
        """Create the database unless it exists.

        Raises FileNotFoundError, or Spark's error with it in its text, if the broker deletes a file that is being read.
        Raises SafetyError if the disk has too little space.
        """
        folder = self.paths.follow
        if exists(self.paths.follow_queues):
            return
        # Allowed here: the folder is ours, and its contents are incomplete.
        delete_follow_result(self.paths)
        parts = folder / "parts"
        parts.mkdir(parents=True)
        inventory, last = snapshot_of(self.paths)
        require_room(self.paths, inventory.units * BYTES_PER_UNIT + MORE_BYTES)
        works = list(works_of(inventory.queues, self.rows_per_file, are_ended=False))
        done = spark.accumulator(0)
        with progress_of(self.say, lambda: done.value // _STAGES, inventory.units, self.clock):
            Job(inventory.log, str(parts), done).run(spark, works)
        aside = folder / "joined"
        join(aside, [parts / file_name(work.number) for work in works], inventory, last if last >= 0 else None)
        os.replace(aside, self.paths.follow_queues)  # noqa: PTH105  it is complete and durable
        flush(folder)
        shutil.rmtree(parts)


def snapshot_of(paths: StorePaths) -> tuple[Inventory, int]:
    """Return all queues up to the same message, and the start of that message; -1 if no queue has one."""
    first = inventory_of(paths, commitlog_being_written(paths.commitlog))
    last = max((queue.last_phy for queue in first.queues), default=-1)
    # a broker adds units to its queues in the order of its log: at this pass, all queues are complete up to the last
    # message that any queue had at the first
    second = inventory_of(paths, commitlog_being_written(paths.commitlog))
    return replace(second, queues=tuple(_up_to(queue, last) for queue in second.queues)), last


def _up_to(queue: Queue, last: int) -> Queue:
    """Return the queue without the units of messages that start after the physical offset `last`."""

    def is_after(offset: int) -> bool:
        return int(queue.files.read(offset, offset + 1).phy[0]) > last

    start = queue.files.start
    end = start + bisect.bisect_left(range(start, queue.range.end), True, key=is_after)
    last_phy = int(queue.files.read(end - 1, end).phy[0]) if end > start else -1
    cut = queue.range._replace(first=min(queue.range.first, end), end=end)
    return replace(queue, range=cut, last_phy=last_phy)
