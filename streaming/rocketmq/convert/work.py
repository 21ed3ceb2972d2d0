"""The work of a task of the jobs: the units and the files that it processes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from streaming.rocketmq.store.inventory import Queue
from streaming.rocketmq.store.queue_files import QueueFiles
from udfs.rocketmq.parts import SstPart, parts_of


class Piece(NamedTuple):
    """A run of units of a queue."""

    number: int
    topic: bytes
    queue_id: int
    first: int
    end: int
    position: int  # units of the part before it
    files: QueueFiles
    is_last: bool  # the queue ends here


class PartWork(NamedTuple):
    """The work on a part."""

    number: int
    rows: int  # number of units
    pieces: tuple[Piece, ...]  # in the order of their keys


def works_of(queues: Sequence[Queue], rows_per_part: int, *, are_ended: bool = True) -> Iterator[PartWork]:
    """Yield the work of each part, with only the files that it needs.

    are_ended: no broker adds to the queues, so there must be no units after their ends.
    """
    for part in parts_of([queue.range for queue in queues], rows_per_part):
        yield PartWork(part.number, part.rows, tuple(_pieces(queues, part, are_ended=are_ended)))


def _pieces(queues: Sequence[Queue], part: SstPart, *, are_ended: bool) -> Iterator[Piece]:
    for segment in part.segments:
        queue = queues[segment.number]
        is_last = are_ended and segment.end == queue.range.end
        needed = [
            file
            for file in queue.files.files
            if (file.start < segment.end and segment.first < file.start + file.count)
            or (is_last and file.start >= segment.end)
        ]
        yield Piece(
            number=segment.number,
            topic=queue.range.topic,
            queue_id=queue.range.queue_id,
            first=segment.first,
            end=segment.end,
            position=segment.position,
            files=QueueFiles(tuple(needed)),
            is_last=is_last,
        )
