"""PIP-196: aborted ids in sealed segments, and an index that names each segment by its message's position.

A broker (Pulsar 4.0.8) recovers the latest index by key, the segments at the positions that it names, and the tail in
the index itself; then it replays the topic after the index's maxReadPosition. A segment that no index names does not
count. A segment contains the position of its *last* id's marker only, and the tail contains no markers at all.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.aborts import Aborts, TxnIds, aborts_of, ids_of, joined, merged
from udfs.snapshots.codec import Index, Segment, encode_segment, entries_of
from udfs.snapshots.keys import SegmentKey, keeper_topic
from udfs.snapshots.varints import Longs

SEGMENT_BYTES = 262_144  # transactionBufferSnapshotSegmentSize, unless the brokers are configured otherwise


def ids_of_a_segment(segment_bytes: int, topic: str) -> int:
    """Return how many ids a broker with that transactionBufferSnapshotSegmentSize seals in one segment.

    Raises ValueError if no id fits; such a broker would never seal a segment.
    """
    ids = (segment_bytes - 8 - len(topic)) // 3
    if ids < 1:
        raise ValueError(f"transactionBufferSnapshotSegmentSize {segment_bytes} is too small for {topic}")
    return ids


def seal(topic: str, aborts: Aborts, ids: int, first: int = 0) -> tuple[list[Segment], TxnIds]:
    """Cut ids in the order of their markers into segments of `ids` each, numbered from `first` on, and a tail."""
    whole = aborts.rows // ids
    segments = [_segment(topic, first + each, aborts.between(each * ids, (each + 1) * ids)) for each in range(whole)]
    return segments, aborts.between(whole * ids, aborts.rows).ids


def sealed(topic: str, pieces: Iterable[Aborts], ids: int, first: int = 0) -> Generator[Segment, None, TxnIds]:
    """Yield the segments that `seal` would return, each as soon as it is full; the generator returns the tail.

    The pieces must be in the order of their markers. Only the current piece and segment are in memory.
    """
    left = aborts_of([])
    for piece in pieces:
        rows = joined([left, piece])
        whole = rows.rows // ids
        for number in range(whole):
            yield _segment(topic, first + number, rows.between(number * ids, (number + 1) * ids))
        first += whole
        left = Aborts(*(column.copy() for column in rows.between(whole * ids, rows.rows)))
    return left.ids


def index_of(
    topic: str, segments: Sequence[Segment], places: Sequence[Position], tail: TxnIds, max_read: Position
) -> Index:
    """Return the index that names these segments at the positions of their messages."""
    rows = [(each.sequence, position, each.marker) for each, position in zip(segments, places, strict=True)]
    return Index(topic, entries_of(rows), max_read, tail)


def named_segments(index: Index) -> Iterator[tuple[int, Position, Position]]:
    """Yield number, position and last marker of each segment that the index names."""
    listed = index.entries
    for row in zip(*(column.tolist() for column in listed), strict=True):
        yield row[0], (row[1], row[2]), (row[3], row[4])


def keeper_of(namespace: str) -> tuple[str, bytes]:
    """Return key and value of a live record to send after tombstones of segments.

    A compaction without a new message after the tombstones would show the tombstones again (seen on Pulsar 4.0.8). No
    broker ever reads the record.
    """
    owner = keeper_topic(namespace)
    return str(SegmentKey(0, owner)), encode_segment(Segment(owner, 0, BEFORE_ALL, ids_of([(0, 0)])))


def recover(index: Index, at: Mapping[Position, Segment], newest: Position) -> Aborts:
    """Return the aborted ids of an index and its segments, in the order of the index.

    An id of a segment gets the marker of that segment's last id, and an id of the tail gets `newest`: its own marker is
    at that position or before it. So trimming by markers keeps some ids a little longer, and drops none too early.

    Args:
        index: the index.
        at: segments by the positions of their messages.
        newest: position of the topic's newest entry, requested after the index was read.

    Raises FormatError if a segment is not at the position that the index names: then no broker can load the topic.
    """
    return merged(list(recovered(index, at.get, newest)))


def recovered(index: Index, value_at: Callable[[Position], Segment | None], newest: Position) -> Iterator[Aborts]:
    """Yield the result of `recover` piece by piece: each segment, then the tail, with one of them in memory.

    An id that is in two segments comes twice; only a killed broker seals an id twice. value_at: returns the segment at
    a position. Raises FormatError like `recover`.
    """
    for sequence, position, marker in named_segments(index):
        segment = value_at(position)
        if segment is None or segment.topic != index.topic:
            raise FormatError(f"segment {sequence} of {index.topic} is not at {position[0]}:{position[1]}")
        yield _with_marker(segment.ids, marker)
    yield _with_marker(index.tail, newest)


def _segment(topic: str, sequence: int, piece: Aborts) -> Segment:
    return Segment(topic, sequence, (int(piece.ledger[-1]), int(piece.entry[-1])), piece.ids)


def _with_marker(ids: TxnIds, marker: Position) -> Aborts:
    ledger: Longs = np.full(ids.rows, marker[0], dtype=np.int64)
    entry: Longs = np.full(ids.rows, marker[1], dtype=np.int64)
    return Aborts(ids.most, ids.least, ledger, entry)
