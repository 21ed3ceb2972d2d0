"""Ranges of entries: those that a query's batch must have read, and those that are missing.

A position is (ledger, entry). If a producer sent a batch, a broker's "last message" is the last message of the batch's
entry, so a range always ends with a whole entry.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter, itemgetter

from udfs.formats.internal_stats import InternalStats, Position

MessageAddress = tuple[str, int, int, int]
"""A message's partition, ledger, entry, and index in its producer's batch (-1: it was sent alone)."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a partition's positions."""

    after: Position  # exclusive; BEFORE_ALL: the range starts at the first stored entry
    upto: Position  # inclusive

    @property
    def is_empty(self) -> bool:
        """Whether the range contains no position."""
        return self.upto <= self.after


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """Consecutive entries of a ledger."""

    ledger: int
    first: int
    last: int  # inclusive

    def __len__(self) -> int:
        """Return the number of entries."""
        return self.last - self.first + 1


def spans_of(ledgers: Iterable[tuple[int, int]], limits: Range) -> Iterator[EntrySpan]:
    """Yield the stored entries of a range. ledgers: (id, number of entries), oldest first, as in InternalStats.

    Trimmed entries are in no ledger, and so in no span.
    """
    for ledger, entries in ledgers:
        first = limits.after[1] + 1 if ledger == limits.after[0] else 0
        last = min(entries - 1, limits.upto[1]) if ledger == limits.upto[0] else entries - 1
        if limits.after[0] <= ledger <= limits.upto[0] and first <= last:
            yield EntrySpan(ledger, first, last)


def bytes_of(spans: Iterable[EntrySpan], stats: InternalStats) -> int:
    """Estimate the stored bytes of the entries: their share of their ledger's entries, times its bytes."""
    entries = dict(stats.ledgers)
    return sum(stats.sizes.get(span.ledger, 0) * len(span) // max(1, entries[span.ledger]) for span in spans)


def runs_of(addresses: Iterable[MessageAddress]) -> Iterator[tuple[str, EntrySpan, bool]]:
    """Yield (partition, consecutive entries, whether they were delivered whole), in the order of delivery.

    An entry is whole if no index of its producer's batch is missing. The connector delivers messages in the order of
    positions, and some of them again later. An entry whose messages were not delivered in succession is in several
    runs; it is whole only if it is whole in each (whole_of). Only one run is held in memory.
    """
    partition, run, is_whole = "", None, False
    for (source, ledger, entry), is_complete in _entries(addresses):
        is_next = run is not None and run.ledger == ledger and run.first <= entry <= run.last + 1
        if run is not None and is_next and (partition, is_whole) == (source, is_complete):
            run = EntrySpan(ledger, run.first, max(run.last, entry))
            continue
        if run is not None:
            yield partition, run, is_whole
        partition, run, is_whole = source, EntrySpan(ledger, entry, entry), is_complete
    if run is not None:
        yield partition, run, is_whole


def _entries(addresses: Iterable[MessageAddress]) -> Iterator[tuple[tuple[str, int, int], bool]]:
    """Yield each entry, and whether its messages were delivered from the first on, without a gap."""
    for entry, messages in groupby(addresses, key=itemgetter(0, 1, 2)):
        newest = upto = -1  # each index up to and including `upto` was delivered
        for *_, index in messages:
            newest = max(newest, index)
            if index == upto + 1:
                upto = index
        yield entry, upto == newest


def whole_of(runs: Iterable[tuple[EntrySpan, bool]]) -> Iterator[EntrySpan]:
    """Yield the entries of a partition that were delivered whole, given the runs of runs_of."""
    spans: dict[bool, list[EntrySpan]] = {True: [], False: []}
    for span, is_whole in runs:
        spans[is_whole].append(span)
    return without(spans[True], spans[False])


def without(spans: Iterable[EntrySpan], others: Iterable[EntrySpan]) -> Iterator[EntrySpan]:
    """Yield the parts of a partition's spans that are in none of the others, in order of position."""
    excluded, start = joined(others), 0
    for span in joined(spans):
        first = span.first
        while start < len(excluded) and (excluded[start].ledger, excluded[start].last) < (span.ledger, first):
            start += 1
        for other in islice(excluded, start, None):
            if (other.ledger, other.first) > (span.ledger, span.last):
                break
            if first < other.first:
                yield EntrySpan(span.ledger, first, other.first - 1)
            first = other.last + 1
        if first <= span.last:
            yield EntrySpan(span.ledger, first, span.last)


def joined(spans: Iterable[EntrySpan]) -> list[EntrySpan]:
    """Return the same entries in as few spans as possible, in order of position."""
    merged: list[EntrySpan] = []
    for span in sorted(spans, key=attrgetter("ledger", "first")):
        if merged and merged[-1].ledger == span.ledger and span.first <= merged[-1].last + 1:
            merged[-1] = EntrySpan(span.ledger, merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return merged


def count_of(spans: Sequence[EntrySpan]) -> int:
    """Return the number of entries in the spans."""
    return sum(len(span) for span in spans)


def split(spans: Iterable[EntrySpan], most: int) -> Iterator[list[EntrySpan]]:
    """Yield the spans in batches of at most `most` entries, in their order."""
    batch: list[EntrySpan] = []
    remaining = most
    for span in spans:
        first = span.first
        while first <= span.last:
            last = min(span.last, first + remaining - 1)
            batch.append(EntrySpan(span.ledger, first, last))
            remaining -= last - first + 1
            first = last + 1
            if not remaining:
                yield batch
                batch, remaining = [], most
    if batch:
        yield batch
