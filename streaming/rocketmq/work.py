"""What a task of the jobs is told: which units of which files it works on."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from streaming.rocketmq.inventory import Queue
from streaming.rocketmq.queue_files import QueueFiles
from udfs.rocketmq.parts import SstPart, parts_of


class Piece(NamedTuple):
    """A run of units of a queue. place: how many units of the part stand before them. is_last: the queue ends here."""

    number: int
    topic: bytes
    queue_id: int
    first: int
    end: int
    place: int
    files: QueueFiles
    is_last: bool


class PartWork(NamedTuple):
    """One part: rows units, in the order of their keys."""

    number: int
    rows: int
    pieces: tuple[Piece, ...]


def works_of(queues: Sequence[Queue], rows_per_part: int, *, are_ended: bool = True) -> Iterator[PartWork]:
    """Yield the work of each part, with the files that it needs and no others.

    are_ended: no broker adds to the queues, so that nothing may stand behind their ends.
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
            segment.number, queue.range.topic, queue.range.queue_id, segment.first, segment.end, segment.place,
            QueueFiles(tuple(needed)), is_last,
        )  # fmt: skip
