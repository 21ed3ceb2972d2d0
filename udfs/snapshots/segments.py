"""PIP-196: aborted ids in sealed segments, and an index that names each segment by its message's place.

What a broker recovers (Pulsar 4.0.8): the latest index by key, the segments at the places that it names, the tail in
the index itself; then it replays the topic behind the index's maxReadPosition. A segment that no index names does not
count. A segment says only where the marker of its *last* id lies, and the tail says nothing of markers at all.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np

from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.snapshots.aborts import Aborts, TxnIds, aborts_of, ids_of, joined, merged
from udfs.snapshots.codec import Index, Segment, encode_segment, entries_of
from udfs.snapshots.keys import SegmentKey, keeper_topic
from udfs.snapshots.varints import Longs

SEGMENT_BYTES = 262_144  # transactionBufferSnapshotSegmentSize, unless the brokers are told otherwise


def ids_of_a_segment(segment_bytes: int, topic: str) -> int:
    """After how many unsealed ids a broker with that transactionBufferSnapshotSegmentSize seals a segment.

    Raises ValueError where none fits; such a broker would never seal one.
    """
    ids = (segment_bytes - 8 - len(topic)) // 3
    if ids < 1:
        raise ValueError(f"transactionBufferSnapshotSegmentSize {segment_bytes} is too small for {topic}")
    return ids


def seal(topic: str, aborts: Aborts, ids: int, first: int = 0) -> tuple[list[Segment], TxnIds]:
    """Cut ids in the order of their markers into segments of `ids` each, numbered from `first` on, and the tail."""
    whole = aborts.rows // ids
    segments = [_segment(topic, first + each, aborts.between(each * ids, (each + 1) * ids)) for each in range(whole)]
    return segments, aborts.between(whole * ids, aborts.rows).ids


def sealed(topic: str, pieces: Iterable[Aborts], ids: int, first: int = 0) -> Generator[Segment, None, TxnIds]:
    """Yield the segments that seal would return, each as soon as it is full; the generator returns the tail.

    The pieces follow each other in the order of their markers. No more than one of them and one segment are in memory.
    """
    left = aborts_of([])
    for piece in pieces:
        rows = joined([left, piece])
        whole = rows.rows // ids
        for each in range(whole):
            yield _segment(topic, first + each, rows.between(each * ids, (each + 1) * ids))
        first += whole
        left = Aborts(*(column.copy() for column in rows.between(whole * ids, rows.rows)))
    return left.ids


def index_of(
    topic: str, segments: Sequence[Segment], places: Sequence[Position], tail: TxnIds, max_read: Position
) -> Index:
    """Return the index that names these segments, each at the place that the topic gave its message."""
    rows = [(each.sequence, place, each.marker) for each, place in zip(segments, places, strict=True)]
    return Index(topic, entries_of(rows), max_read, tail)


def places_of(index: Index) -> Iterator[tuple[int, Position, Position]]:
    """Yield number, place and last marker of each segment that the index names."""
    listed = index.entries
    for row in zip(*(column.tolist() for column in listed), strict=True):
        yield row[0], (row[1], row[2]), (row[3], row[4])


def keeper_of(namespace: str) -> tuple[str, bytes]:
    """Return key and value of a live record to send behind tombstones of segments.

    A compaction with nothing new behind them would show them again (seen on Pulsar 4.0.8). No broker ever reads it.
    """
    owner = keeper_topic(namespace)
    return str(SegmentKey(0, owner)), encode_segment(Segment(owner, 0, BEFORE_ALL, ids_of([(0, 0)])))


def recover(index: Index, at: Mapping[Position, Segment], newest: Position) -> Aborts:
    """Return the aborted ids that an index stands for, in the order in which it has them.

    at: segments by the places of their messages. newest: place of the topic's newest entry, asked for after the index
    was read. An id of a segment gets the marker of that segment's last one, one of the tail gets `newest`: their own
    markers lie there or before. So trimming by markers keeps some ids a little longer, and drops none too early.
    Raises FormatError where a segment is not where the index says: then a broker can't load the topic either.
    """
    return merged(list(recovered(index, at.get, newest)))


def recovered(index: Index, value_at: Callable[[Position], Segment | None], newest: Position) -> Iterator[Aborts]:
    """Yield what recover would return piece by piece: each segment, then the tail, with one of them in memory.

    An id that stands in two segments comes twice: only a killed broker seals one twice. value_at: the segment whose
    message lies at a place. Raises FormatError as recover does.
    """
    for sequence, place, marker in places_of(index):
        found = value_at(place)
        if found is None or found.topic != index.topic:
            raise FormatError(f"segment {sequence} of {index.topic} is not at {place[0]}:{place[1]}")
        yield _with_marker(found.ids, marker)
    yield _with_marker(index.tail, newest)


def _segment(topic: str, sequence: int, piece: Aborts) -> Segment:
    return Segment(topic, sequence, (int(piece.ledger[-1]), int(piece.entry[-1])), piece.ids)


def _with_marker(ids: TxnIds, marker: Position) -> Aborts:
    ledger: Longs = np.full(ids.rows, marker[0], dtype=np.int64)
    entry: Longs = np.full(ids.rows, marker[1], dtype=np.int64)
    return Aborts(ids.most, ids.least, ledger, entry)
