"""Compares what the file queue, the database and the commitlog say of the same units.

The commitlog counts: it alone holds the messages. The database has to have every unit whose message is there, equal in
all it says, for a broker in RocksDB mode stops reading a queue at the first one that is missing. The file queue may end
earlier, since a broker in RocksDB mode does not write it; as far as it goes it has to be equal.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udfs.rocketmq.units import Ints, Longs


class FindingKind(StrEnum):
    """What is wrong with a queue."""

    MISSING = "MISSING"  # the database lacks units whose messages are there
    DIFFERENT = "DIFFERENT"  # a row of the database says something else than the message
    TIME = "TIME"  # a row of the database has another store time than the message
    NO_MESSAGE = "NO_MESSAGE"  # a row of the database points to no message of this queue
    FILE_MISSING = "FILE_MISSING"  # the file queue lacks units though it goes on behind them
    FILE_DIFFERENT = "FILE_DIFFERENT"  # a unit of the file queue says something else than the message
    FILE_NO_MESSAGE = "FILE_NO_MESSAGE"  # a unit of the file queue points to no message of this queue
    NO_QUEUE = "NO_QUEUE"  # a message of the commitlog belongs to a queue that is nowhere
    MAX = "MAX"  # the row that says which offset the next message gets is missing or wrong
    MIN = "MIN"  # the row that says where the queue begins is behind its first message
    CHECKPOINT = "CHECKPOINT"  # CHECKPOINT is missing or behind the end of the commitlog
    CONFIG = "CONFIG"  # topics, groups, offsets or their versions are not those of the JSON files


class Finding(NamedTuple):
    """What is wrong, how often, and the queue offset of the first case. queue_id: -1 where it is about no queue."""

    topic: bytes
    queue_id: int
    kind: FindingKind
    count: int  # type: ignore[assignment]  # no caller counts values in it
    offset: int
    text: str


class UnitRun(NamedTuple):
    """Units by queue offset, ascending. time: None where the source has no store times."""

    offset: Longs
    phy: Longs
    size: Ints
    tags: Longs
    time: Longs | None


Span = tuple[bytes, int, int, int]


def compare(span: Span, *, queue: UnitRun, database: UnitRun, log: UnitRun) -> Iterator[Finding]:
    """Yield what is wrong with the units of a span: topic, queue id, first queue offset, the one behind the last."""
    found = _Span(*span)
    in_log, in_queue, in_database = found.where(log), found.where(queue), found.where(database)
    yield from found.told(FindingKind.MISSING, in_log.there & ~in_database.there, "the database lacks it")
    yield from found.told(
        FindingKind.NO_MESSAGE,
        in_database.there & ~in_log.there,
        "the database has a row, and the commitlog no such message",
    )
    yield from found.told(FindingKind.DIFFERENT, in_log.differs(in_database), "the row is not that of the message")
    yield from found.told(
        FindingKind.TIME, in_log.time_differs(in_database), "the row has another store time than the message"
    )
    ends = found.first + int(np.flatnonzero(in_queue.there)[-1]) + 1 if bool(in_queue.there.any()) else found.first
    before_end = np.arange(found.first, found.end) < ends
    yield from found.told(
        FindingKind.FILE_MISSING,
        in_log.there & ~in_queue.there & before_end,
        "the file queue lacks it, and goes on behind it",
    )
    yield from found.told(
        FindingKind.FILE_NO_MESSAGE,
        in_queue.there & ~in_log.there,
        "the file queue has a unit, and the commitlog no such message",
    )
    yield from found.told(FindingKind.FILE_DIFFERENT, in_log.differs(in_queue), "the unit is not that of the message")


class _Placed(NamedTuple):
    there: NDArray[np.bool_]
    phy: Longs
    size: Ints
    tags: Longs
    time: Longs | None

    def differs(self, other: "_Placed") -> NDArray[np.bool_]:
        same = (self.phy == other.phy) & (self.size == other.size) & (self.tags == other.tags)
        return np.asarray(self.there & other.there & ~same)

    def time_differs(self, other: "_Placed") -> NDArray[np.bool_]:
        return np.asarray(self.there & other.there & (np.asarray(self.time) != np.asarray(other.time)))


class _Span(NamedTuple):
    topic: bytes
    queue_id: int
    first: int
    end: int

    def where(self, run: UnitRun) -> _Placed:
        """Spread a run over the span."""
        count, places = self.end - self.first, run.offset - self.first
        there = np.zeros(count, dtype=np.bool_)
        there[places] = True

        def spread(values: NDArray[np.int64] | NDArray[np.int32]) -> Longs:
            column = np.zeros(count, dtype=np.int64)
            column[places] = values
            return column

        time = None if run.time is None else spread(run.time)
        return _Placed(there, spread(run.phy), spread(run.size).astype(np.int32), spread(run.tags), time)

    def told(self, kind: FindingKind, wrong: NDArray[np.bool_], text: str) -> Iterator[Finding]:
        count = int(wrong.sum())
        if count:
            offset = self.first + int(np.argmax(wrong))
            yield Finding(self.topic, self.queue_id, kind, count, offset, text)
