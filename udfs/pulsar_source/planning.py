"""The unread entries of a partition, and those that Pulsar deleted before they were read.

Pulsar gives the ledgers of all topics ascending ids, deletes a topic's oldest ledgers first, and never reuses an id.
Our subscription keeps ledgers that are not read. An operator can still lose them: by a TTL, a backlog quota, a cursor
that is moved, or a topic that is deleted and created again.
"""

from dataclasses import replace
from itertools import pairwise

from udfs.entry_ranges import EntrySpan, Range, spans_of
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.pulsar_source.offsets import Gap, PartitionOffset, read_up_to, shown

END_OF_ALL: Position = ((1 << 63) - 1, (1 << 63) - 1)


class UnknownPositionError(Exception):
    """The partition has only ledgers older than the offset."""


def first_offset(stats: InternalStats) -> PartitionOffset:
    """Return the offset of a partition that is not read yet: before its first stored entry."""
    at = (stats.ledgers[0][0], -1) if stats.ledgers and not _is_compacted_only(stats) else BEFORE_ALL
    return read_up_to(at)


def last_offset(stats: InternalStats) -> PartitionOffset:
    """Return the offset of a partition whose stored entries all count as read."""
    return offset_after(stats.last, stats) if stats.ledgers else PartitionOffset(at=BEFORE_ALL)


def offset_after(at: Position, stats: InternalStats) -> PartitionOffset:
    """Return the offset of a partition that is read up to and including `at`."""
    return read_up_to(_past_closed(at, stats))


def resume(start: PartitionOffset, stats: InternalStats) -> PartitionOffset:
    """Return the offset from which the partition is read next, with the gap before it, if there is one.

    Returns `start` itself if nothing changed. Raises UnknownPositionError.
    """
    ledgers = [ledger for ledger, _entries in stats.ledgers]
    if not ledgers:
        return start
    if start.at == BEFORE_ALL:
        if not _is_compacted_only(stats):
            return start
        before = (ledgers[0], -1)
        return PartitionOffset(at=before, seen=before, gap=Gap(BEFORE_ALL, before, is_certain=True))
    if ledgers[-1] < start.at[0]:
        raise UnknownPositionError(
            f"the newest ledger is {ledgers[-1]}, and {shown(start.at)} was read before; did a broker answer that no "
            "longer serves the topic? Then the next start succeeds. If the topic was restored or the cluster replaced, "
            "start the query with a new checkpoint"
        )
    if start.at[0] in ledgers:
        at = _past_closed(start.at, stats)
        return start if at == start.at else PartitionOffset(at=at, seen=max(start.seen, at), after=start.at)
    before = (min(ledger for ledger in ledgers if ledger > start.at[0]), -1)
    gap = None
    # a broker remembers its newest entry after it has deleted that entry's ledger
    if stats.last_confirmed is None or stats.last_confirmed > start.at:
        gap = Gap(start.at, before, is_certain=start.seen > start.at)
    return PartitionOffset(at=before, seen=max(start.seen, before), after=start.at, gap=gap)


def unread(at: Position, stats: InternalStats, upto: Position = END_OF_ALL) -> list[EntrySpan]:
    """Return the stored entries after `at`, up to and including `upto`."""
    return list(spans_of(stats.ledgers, Range(at, upto)))


def advance(
    resumed: PartitionOffset, start: PartitionOffset, admitted: Position, stats: InternalStats
) -> PartitionOffset:
    """Return the offset at the end of a batch.

    Args:
        resumed: what resume(start, stats) returned.
        start: the offset at the start of the batch.
        admitted: the last entry of the batch.
        stats: of the partition.
    """
    spans = unread(resumed.at, stats, admitted)
    return replace(
        resumed,
        at=_past_closed(admitted, stats),
        seen=max(stats.last, admitted),
        after=start.at,
        spans=tuple(spans),
        gap=None if resumed == start else resumed.gap,  # the gap of `start` was in the batch before
    )


def batch_up_to(upto: Position, start: PartitionOffset, stats: InternalStats) -> PartitionOffset | None:
    """Return the offset at the end of a batch that has all entries up to `upto`; None if there are none.

    Raises UnknownPositionError like resume().
    """
    resumed = resume(start, stats)
    end = advance(resumed, start, max(resumed.at, min(upto, stats.last)), stats)
    return end if end.spans else None


def acknowledged_by(part: PartitionOffset) -> Position | None:
    """Return the last entry that the batch before this offset read; None if it read none."""
    return (part.spans[-1].ledger, part.spans[-1].last) if part.spans else None


def _past_closed(at: Position, stats: InternalStats) -> Position:
    """Return the position before the next ledger's first entry if `at` is a closed ledger's last entry, otherwise `at`.

    Only then is the ledger's deletion no gap.
    """
    for (ledger, entries), (following, _entries) in pairwise(stats.ledgers):
        if at[0] == ledger and at[1] >= entries - 1:
            at = (following, -1)
    return at


def _is_compacted_only(stats: InternalStats) -> bool:
    """Whether the oldest messages are in the topic's compacted ledger alone."""
    return bool(stats.ledgers) and BEFORE_ALL < stats.horizon < (stats.ledgers[0][0], 0)
