"""Which entries a batch of a query must have read, and which of them it has not: positions as ranges, never one by one.

A position is (ledger, entry). Where a producer sent a batch, a broker's "last message" is the last of its entry, so a
range always ends with a whole entry.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter, itemgetter

from udfs.formats.internal_stats import InternalStats, Position

MessageAddress = tuple[str, int, int, int]
"""Of a message: partition, ledger, entry, and index in its producer's batch (-1: it was sent alone)."""


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of a partition behind `after`, up to and with `upto`. after BEFORE_ALL: from the first that is stored."""

    after: Position
    upto: Position

    @property
    def is_empty(self) -> bool:
        """Whether there is no place for an entry in it."""
        return self.upto <= self.after


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """Entries `first` to `last` of a ledger, both of them among it."""

    ledger: int
    first: int
    last: int

    def __len__(self) -> int:
        """How many entries those are."""
        return self.last - self.first + 1


def spans_of(ledgers: Iterable[tuple[int, int]], wanted: Range) -> Iterator[EntrySpan]:
    """Yield the stored entries of a range. ledgers: (id, entries), oldest first, as InternalStats has them.

    What was trimmed is in no ledger, and so in no span.
    """
    for ledger, entries in ledgers:
        first = wanted.after[1] + 1 if ledger == wanted.after[0] else 0
        last = min(entries - 1, wanted.upto[1]) if ledger == wanted.upto[0] else entries - 1
        if wanted.after[0] <= ledger <= wanted.upto[0] and first <= last:
            yield EntrySpan(ledger, first, last)


def bytes_of(spans: Iterable[EntrySpan], stats: InternalStats) -> int:
    """Return about how many bytes the entries take in their ledgers: of a ledger's bytes, the share of its entries."""
    entries = dict(stats.ledgers)
    return sum(stats.sizes.get(span.ledger, 0) * len(span) // max(1, entries[span.ledger]) for span in spans)


def runs_of(places: Iterable[MessageAddress]) -> Iterator[tuple[str, EntrySpan, bool]]:
    """Yield (partition, entries next to each other, whether those were delivered whole), in the order as delivered.

    An entry is whole where no index of its producer's batch is missing. The connector delivers in the order of
    positions, some of them again. An entry whose messages come apart is in several runs; it is whole only where all of
    these say so (whole_of). Only one run is held in memory.
    """
    partition, run, is_whole = "", None, False
    for (source, ledger, entry), goes_on in _entries(places):
        is_next = run is not None and run.ledger == ledger and run.first <= entry <= run.last + 1
        if run is not None and is_next and (partition, is_whole) == (source, goes_on):
            run = EntrySpan(ledger, run.first, max(run.last, entry))
            continue
        if run is not None:
            yield partition, run, is_whole
        partition, run, is_whole = source, EntrySpan(ledger, entry, entry), goes_on
    if run is not None:
        yield partition, run, is_whole


def _entries(places: Iterable[MessageAddress]) -> Iterator[tuple[tuple[str, int, int], bool]]:
    """Yield each entry, and whether its messages came from the first one on, without a gap."""
    for entry, messages in groupby(places, key=itemgetter(0, 1, 2)):
        newest = upto = -1  # each index up to and with `upto` was there
        for *_, index in messages:
            newest = max(newest, index)
            if index == upto + 1:
                upto = index
        yield entry, upto == newest


def whole_of(runs: Iterable[tuple[EntrySpan, bool]]) -> Iterator[EntrySpan]:
    """Yield the entries of a partition that were delivered whole, by what runs_of says of them."""
    spans: dict[bool, list[EntrySpan]] = {True: [], False: []}
    for span, is_whole in runs:
        spans[is_whole].append(span)
    return without(spans[True], spans[False])


def without(spans: Iterable[EntrySpan], others: Iterable[EntrySpan]) -> Iterator[EntrySpan]:
    """Yield the parts of a partition's spans that are in none of the others, in order of position."""
    left_out, begin = joined(others), 0
    for span in joined(spans):
        first = span.first
        while begin < len(left_out) and (left_out[begin].ledger, left_out[begin].last) < (span.ledger, first):
            begin += 1
        for each in islice(left_out, begin, None):
            if (each.ledger, each.first) > (span.ledger, span.last):
                break
            if first < each.first:
                yield EntrySpan(span.ledger, first, each.first - 1)
            first = each.last + 1
        if first <= span.last:
            yield EntrySpan(span.ledger, first, span.last)


def joined(spans: Iterable[EntrySpan]) -> list[EntrySpan]:
    """Return the same entries in as few spans as there can be, in order of position."""
    few: list[EntrySpan] = []
    for span in sorted(spans, key=attrgetter("ledger", "first")):
        if few and few[-1].ledger == span.ledger and span.first <= few[-1].last + 1:
            few[-1] = EntrySpan(span.ledger, few[-1].first, max(few[-1].last, span.last))
        else:
            few.append(span)
    return few


def count_of(spans: Sequence[EntrySpan]) -> int:
    """How many entries there are in the spans."""
    return sum(len(span) for span in spans)


def split(spans: Iterable[EntrySpan], most: int) -> Iterator[list[EntrySpan]]:
    """Yield the spans in groups of at most so many entries, in their order."""
    group: list[EntrySpan] = []
    room = most
    for span in spans:
        first = span.first
        while first <= span.last:
            last = min(span.last, first + room - 1)
            group.append(EntrySpan(span.ledger, first, last))
            room -= last - first + 1
            first = last + 1
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group
