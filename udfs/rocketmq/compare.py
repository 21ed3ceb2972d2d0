"""Compares the units of a queue in the file queue, in the database and in the commitlog.

The commitlog decides, because only it holds the messages. The database needs every unit whose message exists, equal in
every column: a broker in RocksDB mode stops reading a queue at the first missing unit. The file queue may end earlier,
because a broker in RocksDB mode does not write it; as far as it goes, it has to be equal.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from udfs.rocketmq.queue_units import Ints, Longs


class FindingKind(StrEnum):
    """The kinds of faults."""

    MISSING = "MISSING"  # units whose messages exist are missing from the database
    DIFFERENT = "DIFFERENT"  # a row of the database differs from its message
    TIME = "TIME"  # a row of the database has another store time than its message
    NO_MESSAGE = "NO_MESSAGE"  # a row of the database points to no message of this queue
    FILE_MISSING = "FILE_MISSING"  # units are missing from the file queue, which has later units
    FILE_DIFFERENT = "FILE_DIFFERENT"  # a unit of the file queue differs from its message
    FILE_NO_MESSAGE = "FILE_NO_MESSAGE"  # a unit of the file queue points to no message of this queue
    NO_QUEUE = "NO_QUEUE"  # a message of the commitlog belongs to a queue that neither form has
    MAX = "MAX"  # the row with the offset of the next message is missing or wrong
    MIN = "MIN"  # the row with the start of the queue is after its first message
    CHECKPOINT = "CHECKPOINT"  # CHECKPOINT is missing or after the end of the commitlog
    CONFIG = "CONFIG"  # topics, groups, offsets or their versions differ from the JSON files


class Finding(NamedTuple):
    """A fault of a queue, or of the store."""

    topic: bytes
    queue_id: int  # -1 if it is about no queue
    kind: FindingKind
    count: int  # type: ignore[assignment]  # no caller counts values in it
    offset: int  # queue offset of the first case
    text: str

    @property
    def topic_text(self) -> str:
        """The topic, for messages."""
        return self.topic.decode("utf-8", "replace")


class UnitRun(NamedTuple):
    """Units by queue offset, ascending."""

    offset: Longs
    phy: Longs
    size: Ints
    tags: Longs
    time: Longs | None  # None if the source has no store times


Span = tuple[bytes, int, int, int]  # topic, queue id, first queue offset, the one after the last


def compare(span: Span, *, queue: UnitRun, database: UnitRun, log: UnitRun) -> Iterator[Finding]:
    """Yield the faults of the units of a span."""
    queue_span = _Span(*span)
    in_log, in_queue, in_database = queue_span.spread(log), queue_span.spread(queue), queue_span.spread(database)
    yield from queue_span.findings(
        FindingKind.MISSING, in_log.there & ~in_database.there, "it is missing from the database"
    )
    yield from queue_span.findings(
        FindingKind.NO_MESSAGE,
        in_database.there & ~in_log.there,
        "the database has a row, and the commitlog no such message",
    )
    yield from queue_span.findings(
        FindingKind.DIFFERENT, in_log.differs(in_database), "the row is not that of the message"
    )
    yield from queue_span.findings(
        FindingKind.TIME, in_log.time_differs(in_database), "the row has another store time than the message"
    )
    is_there = bool(in_queue.there.any())
    end = queue_span.first + int(np.flatnonzero(in_queue.there)[-1]) + 1 if is_there else queue_span.first
    before_end = np.arange(queue_span.first, queue_span.end) < end
    yield from queue_span.findings(
        FindingKind.FILE_MISSING,
        in_log.there & ~in_queue.there & before_end,
        "it is missing from the file queue, which has later units",
    )
    yield from queue_span.findings(
        FindingKind.FILE_NO_MESSAGE,
        in_queue.there & ~in_log.there,
        "the file queue has a unit, and the commitlog no such message",
    )
    yield from queue_span.findings(
        FindingKind.FILE_DIFFERENT, in_log.differs(in_queue), "the unit is not that of the message"
    )


class _Columns(NamedTuple):
    there: NDArray[np.bool_]
    phy: Longs
    size: Ints
    tags: Longs
    time: Longs | None

    def differs(self, other: "_Columns") -> NDArray[np.bool_]:
        same = (self.phy == other.phy) & (self.size == other.size) & (self.tags == other.tags)
        return np.asarray(self.there & other.there & ~same)

    def time_differs(self, other: "_Columns") -> NDArray[np.bool_]:
        return np.asarray(self.there & other.there & (np.asarray(self.time) != np.asarray(other.time)))


class _Span(NamedTuple):
    topic: bytes
    queue_id: int
    first: int
    end: int

    def spread(self, run: UnitRun) -> _Columns:
        """Arrange a run by its position in the span."""
        count, positions = self.end - self.first, run.offset - self.first
        there = np.zeros(count, dtype=np.bool_)
        there[positions] = True

        def spread(values: NDArray[np.int64] | NDArray[np.int32]) -> Longs:
            column = np.zeros(count, dtype=np.int64)
            column[positions] = values
            return column

        time = None if run.time is None else spread(run.time)
        return _Columns(
            there=there, phy=spread(run.phy), size=spread(run.size).astype(np.int32), tags=spread(run.tags), time=time
        )

    def findings(self, kind: FindingKind, wrong: NDArray[np.bool_], text: str) -> Iterator[Finding]:
        count = int(wrong.sum())
        if count:
            offset = self.first + int(np.argmax(wrong))
            yield Finding(topic=self.topic, queue_id=self.queue_id, kind=kind, count=count, offset=offset, text=text)
