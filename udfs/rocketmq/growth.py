"""How the rows of a queue grow by the units of further records of the commitlog.

A record's units contain their queue offsets, and a queue's offsets are consecutive. So each chunk of units can be
classified by itself:

1. Units of messages that start no later than the last known message are known already, and are skipped.
2. Units that follow the last known unit are added.
3. If a message starts later and has a known offset, its queue was deleted and created again, and its offsets start at
   0 again. Everything that was known about the queue is dropped.
4. A unit that would leave offsets out is refused. A reader would stop at the hole, so nothing is written.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from udfs.rocketmq.queue_units import Longs, Units


class GapError(ValueError):
    """Units are missing between the last known unit of a queue and the next."""


class RecordUnit(NamedTuple):
    """A unit of a record."""

    topic: bytes
    queue_id: int
    offset: int  # in the queue
    phy: int  # start of the message
    size: int  # bytes of the message
    tags: int
    time: int


class UnitChunk(NamedTuple):
    """Units of a queue with consecutive queue offsets, in the order of the commitlog."""

    topic: bytes
    queue_id: int
    first: int  # queue offset of the first unit
    units: Units
    times: Longs


class End(NamedTuple):
    """The last known unit of a queue."""

    offset: int
    phy: int  # start of its message


class QueueGrowth(NamedTuple):
    """The next write to a queue."""

    clears: bool  # all rows of the queue are deleted first
    chunk: UnitChunk
    end: End


def chunks_of(entries: Iterable[RecordUnit]) -> Iterator[UnitChunk]:
    """Group units by queue. They come in the order of the commitlog, and those of a queue keep it."""
    queues = dict[tuple[bytes, int], list[RecordUnit]]()
    for entry in entries:
        queue = queues.setdefault((entry.topic, entry.queue_id), [])
        if queue and queue[-1].offset + 1 != entry.offset:
            yield _packed(queue)
            queue.clear()
        queue.append(entry)
    for queue in queues.values():
        yield _packed(queue)


def growth_of(last_known: End | None, chunk: UnitChunk) -> QueueGrowth | None:
    """Return what a chunk adds to the known units of its queue; None for nothing. Raises GapError."""
    start = 0 if last_known is None else int(np.searchsorted(chunk.units.phy, last_known.phy, side="right"))
    rows = chunk.units.rows
    if start == rows:
        return None
    first = chunk.first + start
    if last_known is not None and first > last_known.offset + 1:
        topic = chunk.topic.decode("utf-8", "replace")
        raise GapError(
            f"{topic}, queue {chunk.queue_id}: the message at {int(chunk.units.phy[start])} has the queue offset "
            f"{first}, and {last_known.offset + 1} should follow the last known message, at {last_known.phy}"
        )
    rest = chunk._replace(first=first, units=chunk.units.between(start, rows), times=chunk.times[start:])
    clears = last_known is not None and first <= last_known.offset
    return QueueGrowth(clears, rest, End(chunk.first + rows - 1, int(chunk.units.phy[-1])))


def _packed(entries: list[RecordUnit]) -> UnitChunk:
    first = entries[0]
    phy, tags, times = (
        np.array([getattr(entry, name) for entry in entries], dtype=np.int64) for name in ("phy", "tags", "time")
    )
    size = np.array([entry.size for entry in entries], dtype=np.int32)
    return UnitChunk(
        topic=first.topic, queue_id=first.queue_id, first=first.offset, units=Units(phy, size, tags), times=times
    )
