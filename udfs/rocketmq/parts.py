"""Divides the units of all queues into parts: each part is the work of a task, and becomes an SST file.

RocksDB stores rows in the order of their keys. So the queues are sorted by key first, and a part is a run of that
order: the end of one queue, some whole queues, the start of another. Parts never overlap, so RocksDB can take in their
files without merging them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from udfs.rocketmq.rows import queue_prefix

QueueKey = tuple[bytes, int]  # topic, queue id


class QueueRange(NamedTuple):
    """The live units of a queue: queue offsets from `first` up to `end`."""

    number: int  # index of the queue among all queues
    topic: bytes
    queue_id: int
    first: int
    end: int

    @property
    def key(self) -> QueueKey:
        """Topic and queue id."""
        return self.topic, self.queue_id


class QueueSegment(NamedTuple):
    """Units of a queue that are in the same part."""

    number: int  # of the queue
    first: int
    end: int
    position: int  # units of the part before this segment


class SstPart(NamedTuple):
    """A run of units, ordered by key."""

    number: int
    segments: tuple[QueueSegment, ...]

    @property
    def rows(self) -> int:
        """Number of units."""
        return sum(segment.end - segment.first for segment in self.segments)


def in_key_order(queues: Iterable[QueueRange]) -> list[QueueRange]:
    """Sort queues as RocksDB sorts their keys."""
    return sorted(queues, key=lambda queue: queue_prefix(queue.topic, queue.queue_id))


def parts_of(queues: Sequence[QueueRange], rows_per_part: int) -> Iterator[SstPart]:
    """Yield parts of at most `rows_per_part` rows of queues in key order; queues without live units are skipped."""
    number, segments, rows = 0, list[QueueSegment](), 0
    for queue in queues:
        first = queue.first
        while first < queue.end:
            end = min(queue.end, first + rows_per_part - rows)
            segments.append(QueueSegment(queue.number, first, end, rows))
            rows += end - first
            first = end
            if rows == rows_per_part:
                yield SstPart(number, tuple(segments))
                number, segments, rows = number + 1, [], 0
    if segments:
        yield SstPart(number, tuple(segments))
