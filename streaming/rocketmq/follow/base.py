"""What `follow` begins with: all units that the queue files of a running broker have, as of one message.

A broker adds units to its queues in the order of its log. So the last message that any queue has, at a first look, says
how far all of them are complete: at a second look, every queue has its units up to that message, and is cut off there.
"""

import bisect
import os
import shutil
from dataclasses import dataclass, replace

from pyspark import SparkContext

from streaming.adapters.rocksdb.database import exists
from streaming.clock import Clock
from streaming.rocketmq.disk import require_room
from streaming.rocketmq.follow.handover import throw_away_followed
from streaming.rocketmq.inventory import Inventory, Queue, inventory_of
from streaming.rocketmq.job import Job, file_name
from streaming.rocketmq.join import join
from streaming.rocketmq.log_files import commitlog_being_written
from streaming.rocketmq.place import Place
from streaming.rocketmq.progress import Say, told
from streaming.rocketmq.staging import fsync_folder
from streaming.rocketmq.survey import BYTES_PER_UNIT, MORE_BYTES
from streaming.rocketmq.work import works_of

_STAGES = 3


@dataclass(frozen=True, slots=True)
class Base:
    """Makes the database that is followed from."""

    place: Place
    clock: Clock
    say: Say
    rows_per_file: int

    def make(self, spark: SparkContext) -> None:
        """Make it, unless it is there.

        Raises FileNotFoundError, or Spark's error with it in its text, where the broker deletes what is read.
        Raises SafetyError where the disk has too little room.
        """
        folder = self.place.followed
        if exists(self.place.followed_queues):
            return
        # Allowed here: the folder is ours, and what is in it was never finished.
        throw_away_followed(self.place)
        parts = folder / "parts"
        parts.mkdir(parents=True)
        inventory, last = snapshot_of(self.place)
        require_room(self.place, inventory.units * BYTES_PER_UNIT + MORE_BYTES)
        works = list(works_of(inventory.queues, self.rows_per_file, are_ended=False))
        done = spark.accumulator(0)
        with told(self.say, lambda: done.value // _STAGES, inventory.units, self.clock):
            Job(inventory.log, str(parts), done).run(spark, works)
        aside = folder / "joined"
        join(aside, [parts / file_name(work.number) for work in works], inventory, last if last >= 0 else None)
        os.replace(aside, self.place.followed_queues)  # noqa: PTH105  it is all there, durably
        fsync_folder(folder)
        shutil.rmtree(parts)


def snapshot_of(place: Place) -> tuple[Inventory, int]:
    """Return all queues as of one message, and where that message begins; -1 where no queue has one."""
    first = inventory_of(place, commitlog_being_written(place.commitlog))
    last = max((queue.last_phy for queue in first.queues), default=-1)
    found = inventory_of(place, commitlog_being_written(place.commitlog))
    return replace(found, queues=tuple(_up_to(queue, last) for queue in found.queues)), last


def _up_to(queue: Queue, last: int) -> Queue:
    """The queue without the units of messages that begin behind the physical offset last."""

    def is_behind(offset: int) -> bool:
        return int(queue.files.read(offset, offset + 1).phy[0]) > last

    begin = queue.files.start
    end = begin + bisect.bisect_left(range(begin, queue.range.end), True, key=is_behind)
    last_phy = int(queue.files.read(end - 1, end).phy[0]) if end > begin else -1
    cut = queue.range._replace(first=min(queue.range.first, end), end=end)
    return replace(queue, range=cut, last_phy=last_phy)
