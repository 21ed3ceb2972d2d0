"""Converts the offsets of a stopped query between the connector's form and that of "pulsar-frames".

1. The unread entries stay the same: those that are stored after the last committed batch.
2. After a start, the service leaves out messages with a receipt in a query's first batch only. The connector's first
   batch has all unread entries; the first batch of "pulsar-frames" is limited, so it is fixed here: it ends with the
   newest entry that may have a receipt, as a batch that was started and not committed.
3. The connector reports no deleted entries. So offsets that would still have to report some are not converted to it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from udfs.entry_ranges import without
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.pulsar_source.offsets import PartitionOffset, read_up_to, shown
from udfs.pulsar_source.planning import UnknownPositionError, batch_up_to, first_offset, offset_after, resume, unread


class NotConvertibleError(Exception):
    """It can't be proven that nothing is lost or processed twice; the text names the reason and a way out."""


@dataclass(frozen=True, slots=True)
class FramesPart:
    """A partition in the form of "pulsar-frames"."""

    committed: PartitionOffset | None  # None: nothing was read, and nothing is known about the partition
    repeated: PartitionOffset | None = None  # the end of the first batch, if that is fixed


def to_frames(committed: Position, upto: Position, stats: InternalStats | None) -> FramesPart:
    """Convert a partition that the connector has read. Raises NotConvertibleError.

    Args:
        committed: the last position that a committed batch read; BEFORE_ALL: none was.
        upto: the newest position that may have a receipt although no batch is committed, or an earlier position.
        stats: None: the partition does not exist any more.
    """
    if stats is None or not stats.ledgers:
        return FramesPart(None if committed == BEFORE_ALL else read_up_to(committed))
    if upto[1] >= 0 and upto > stats.last:
        raise NotConvertibleError(
            f"the broker's newest entry is {shown(stats.last)}, and {shown(upto)} was read before; did a broker answer "
            "that no longer serves the topic? Then another try succeeds"
        )
    start = first_offset(stats) if committed == BEFORE_ALL else offset_after(committed, stats)
    with _position_known():
        repeated = batch_up_to(upto, start, stats)
    # Entries that are stored now and deleted later are a certain loss. If the position's ledger is gone, nothing shows
    # whether unread entries were deleted with it, so the source must not report a certain loss.
    is_stored = start.at[0] in {ledger for ledger, _entries in stats.ledgers}
    part = replace(start, seen=max(start.at, stats.last)) if is_stored else start
    return FramesPart(part, repeated)


def to_connector(
    committed: PartitionOffset | None, unfinished: PartitionOffset | None, stats: InternalStats | None
) -> Position:
    """Return the position from which the connector reads a partition on. Raises NotConvertibleError.

    Args:
        committed: of the last committed batch; None: it does not name the partition.
        unfinished: of the batch that was started and not committed, if there is one.
        stats: None: the partition does not exist any more.
    """
    part = committed or PartitionOffset(at=BEFORE_ALL)
    batch = None if unfinished == committed else unfinished
    if stats is None or not stats.ledgers:
        newest = batch or part
        if newest.seen > part.at:
            raise NotConvertibleError(
                f"it was deleted, and its entries after {shown(part.at)}, up to {shown(newest.seen)} at least, were "
                "not read; move the query's checkpoint away"
            )
        return part.at
    reported_by_frames = "start the service on the PySpark that wrote this checkpoint, which reports it"
    if batch is not None and batch.gap is not None:
        raise NotConvertibleError(
            f"the batch that was started reports deleted entries, after {shown(batch.gap.after)} and before "
            f"{shown(batch.gap.before)}, and the connector would not: {reported_by_frames}"
        )
    with _position_known():
        resumed = resume(part, stats)
    if resumed.gap is not None:
        raise NotConvertibleError(
            f"entries after {shown(resumed.gap.after)} and before {shown(resumed.gap.before)} may have been deleted "
            f"before they were read, and the connector would not notice: {reported_by_frames}"
        )
    stored = unread(BEFORE_ALL, stats)
    if batch is not None and any(without(batch.spans, stored)):
        raise NotConvertibleError(
            f"entries of the batch that was started were deleted since, and the connector would not notice: "
            f"{reported_by_frames}"
        )
    # the connector starts at an entry, so the newest stored entry that was read, rather than a position before a ledger
    read = unread(BEFORE_ALL, stats, resumed.at)
    return (read[-1].ledger, read[-1].last) if read else BEFORE_ALL


@contextmanager
def _position_known() -> Iterator[None]:
    try:
        yield
    except UnknownPositionError as error:
        raise NotConvertibleError(str(error)) from error
