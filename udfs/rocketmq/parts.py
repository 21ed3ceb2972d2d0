"""Divides the units of all queues into parts: each part becomes one SST file, and one task's work.

Rows lie in RocksDB in the order of their keys. So the queues are put into that order first, and a part is a run of it:
the end of one queue, some whole ones, the beginning of another. Parts never overlap, which is why their files can be
taken in without being merged.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from udfs.rocketmq.rows import queue_prefix


class QueueRange(NamedTuple):
    """The live units of one queue: queue offsets from first up to end. number: which of all queues it is."""

    number: int
    topic: bytes
    queue_id: int
    first: int
    end: int


class QueueSegment(NamedTuple):
    """Units of one queue that are in one part. place: how many units of the part stand before them."""

    number: int
    first: int
    end: int
    place: int


class SstPart(NamedTuple):
    """A run of units in the order of their keys."""

    number: int
    segments: tuple[QueueSegment, ...]

    @property
    def rows(self) -> int:
        """How many units it has."""
        return sum(each.end - each.first for each in self.segments)


def in_key_order(queues: Iterable[QueueRange]) -> list[QueueRange]:
    """Sort queues as RocksDB sorts their keys."""
    return sorted(queues, key=lambda each: queue_prefix(each.topic, each.queue_id))


def parts_of(queues: Sequence[QueueRange], rows_per_part: int) -> Iterator[SstPart]:
    """Yield parts of at most so many rows, of queues in key order. A queue without live units is in none."""
    number, held, rows = 0, list[QueueSegment](), 0
    for queue in queues:
        first = queue.first
        while first < queue.end:
            end = min(queue.end, first + rows_per_part - rows)
            held.append(QueueSegment(queue.number, first, end, rows))
            rows += end - first
            first = end
            if rows == rows_per_part:
                yield SstPart(number, tuple(held))
                number, held, rows = number + 1, [], 0
    if held:
        yield SstPart(number, tuple(held))
