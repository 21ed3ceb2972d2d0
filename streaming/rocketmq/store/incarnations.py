"""Tells whether a file queue and RocksDB have units of the same incarnation of a queue.

A topic that was deleted and created again in RocksDB mode counts its messages from 0 again, while the file queue still
has the units of its earlier incarnation.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database
from streaming.errors import SafetyError
from streaming.rocketmq.store.bounds import Bounds
from streaming.rocketmq.store.inventory import Inventory, Queue
from streaming.rocketmq.store.queue_files import QueueFiles
from udfs.rocketmq import queue_units as u
from udfs.rocketmq import rows
from udfs.rocketmq.parts import QueueKey


class Both(NamedTuple):
    """A queue in both forms."""

    topic: bytes
    queue_id: int
    bounds: Bounds  # in RocksDB
    files: QueueFiles

    def unit(self, offset: int) -> "_Message":
        """Read a unit of the file queue."""
        unit = self.files.read(offset, offset + 1)
        return _Message(int(unit.phy[0]), int(unit.size[0]))

    def row(self, database: Database, offset: int) -> "_Message | None":
        """Read a row of RocksDB; None without one."""
        value = database.get(DEFAULT_FAMILY, rows.unit_key(self.topic, self.queue_id, offset))
        if value is None:
            return None
        try:
            units, _times = rows.decode_values([value])
        except ValueError as error:
            name = f"{self.topic.decode('utf-8', 'replace')}, queue {self.queue_id}"
            raise SafetyError(f"the database has a damaged row of {name}: {error}") from error
        return _Message(int(units.phy[0]), int(units.size[0]))


class _Message(NamedTuple):
    phy: int
    size: int


def is_same_incarnation(queue: Both, database: Database) -> bool:
    """Whether both have units of one incarnation: the queue was not deleted and created again in RocksDB mode.

    Raises SafetyError if they contradict each other in another manner.
    """
    last, newest = queue.files.end() - 1, queue.row(database, queue.bounds.last)
    common = min(last, queue.bounds.last)
    if newest is None or common < queue.bounds.first:
        return True
    is_later = newest.phy > queue.unit(last).phy
    if common < queue.files.start:
        return not is_later
    unit, row = queue.unit(common), queue.row(database, common)
    if row is None or row == unit or unit.size == u.BLANK_SIZE:
        return True
    if is_later:
        return False
    raise SafetyError(
        f"{queue.files.where(common)}: the unit differs from RocksDB's row, and RocksDB has no later message of the "
        "queue: see `check`. "
        "If RocksDB is right, move the folder of this queue away, and its file queue is created from RocksDB"
    )


def of_this_incarnation(
    inventory: Inventory, bounds: Mapping[QueueKey, Bounds], database: Database
) -> tuple[Inventory, int]:
    """Return the inventory without the file queues of an earlier incarnation, and their number."""
    queues = tuple(
        queue if _is_of_this_incarnation(queue, bounds, database) else _without_files(queue)
        for queue in inventory.queues
    )
    count = sum(1 for before, after in zip(inventory.queues, queues, strict=True) if before is not after)
    return replace(inventory, queues=queues), count


def _is_of_this_incarnation(queue: Queue, bounds: Mapping[QueueKey, Bounds], database: Database) -> bool:
    name = queue.range.key
    if name not in bounds or bounds[name].last < 0 or queue.range.end <= queue.files.start:
        return True
    try:
        return is_same_incarnation(Both(*name, bounds[name], queue.files), database)
    except SafetyError:  # a contradiction proves no other incarnation; the comparison of single units finds it
        return True


def _without_files(queue: Queue) -> Queue:
    return replace(queue, range=queue.range._replace(first=0, end=0), files=QueueFiles(()), last_phy=-1)
