"""How the rows of a queue grow by the units that further records of the commitlog make.

A record's units carry their queue offsets, and a queue's offsets follow each other without a hole. So each stretch of
units says by itself what it is:

1. Units of messages that begin no later than the last message known are known already, and are left out.
2. Units that follow the last one known are added.
3. A message that begins later and has an offset that is known already is of a queue that was deleted and made anew: it
   counts from 0 again. All that was known of the queue goes.
4. A unit that leaves offsets out can't be. Whoever reads the rows would stop at the hole, so nothing is written.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from udfs.rocketmq.units import Longs, Units


class GapError(ValueError):
    """Units are missing between what is known of a queue and what follows."""


class RecordUnit(NamedTuple):
    """One unit of a record. offset: in the queue. phy, size: where the message begins, and its bytes."""

    topic: bytes
    queue_id: int
    offset: int
    phy: int
    size: int
    tags: int
    time: int


class Stretch(NamedTuple):
    """Units of one queue with consecutive queue offsets, from first on, in the order of the commitlog."""

    topic: bytes
    queue_id: int
    first: int
    units: Units
    times: Longs


class End(NamedTuple):
    """The last unit known of a queue: its queue offset, and where its message begins."""

    offset: int
    phy: int


class QueueGrowth(NamedTuple):
    """What is to be written. clears: all rows of the queue go first."""

    clears: bool
    stretch: Stretch
    end: End


def stretches_of(entries: Iterable[RecordUnit]) -> Iterator[Stretch]:
    """Put units, which come in the order of the commitlog, together by queue. Those of one queue keep their order."""
    held = dict[tuple[bytes, int], list[RecordUnit]]()
    for entry in entries:
        queue = held.setdefault((entry.topic, entry.queue_id), [])
        if queue and queue[-1].offset + 1 != entry.offset:
            yield _packed(queue)
            queue.clear()
        queue.append(entry)
    for queue in held.values():
        yield _packed(queue)


def step_of(known: End | None, stretch: Stretch) -> QueueGrowth | None:
    """Say what a stretch adds to what is known of its queue; None if nothing. Raises GapError."""
    start = 0 if known is None else int(np.searchsorted(stretch.units.phy, known.phy, side="right"))
    rows = stretch.units.rows
    if start == rows:
        return None
    first = stretch.first + start
    if known is not None and first > known.offset + 1:
        topic = stretch.topic.decode("utf-8", "replace")
        raise GapError(
            f"{topic}, queue {stretch.queue_id}: the message at {int(stretch.units.phy[start])} has the queue offset "
            f"{first}, and {known.offset + 1} should follow the last one known, at {known.phy}"
        )
    rest = stretch._replace(first=first, units=stretch.units.between(start, rows), times=stretch.times[start:])
    clears = known is not None and first <= known.offset
    return QueueGrowth(clears, rest, End(stretch.first + rows - 1, int(stretch.units.phy[-1])))


def _packed(entries: list[RecordUnit]) -> Stretch:
    first = entries[0]
    phy, tags, times = (
        np.array([getattr(each, name) for each in entries], dtype=np.int64) for name in ("phy", "tags", "time")
    )
    size = np.array([each.size for each in entries], dtype=np.int32)
    return Stretch(first.topic, first.queue_id, first.offset, Units(phy, size, tags), times)
