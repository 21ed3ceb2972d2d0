"""Which entries a batch of a query must have read, and which of them it has not: positions as ranges, never one by one.

A position is (ledger, entry). Where a producer sent a batch, a broker's "last message" is the last of its entry, so a
range always ends with a whole entry.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from udfs.formats.internal_stats import Position


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
class Span:
    """Entries `first` to `last` of a ledger, both of them among it."""

    ledger: int
    first: int
    last: int

    def __len__(self) -> int:
        """How many entries those are."""
        return self.last - self.first + 1


def spans_of(ledgers: Iterable[tuple[int, int]], wanted: Range) -> Iterator[Span]:
    """Yield the stored entries of a range. ledgers: (id, entries), oldest first, as InternalStats has them.

    What was trimmed is in no ledger, and so in no span.
    """
    for ledger, entries in ledgers:
        first = wanted.after[1] + 1 if ledger == wanted.after[0] else 0
        last = min(entries - 1, wanted.upto[1]) if ledger == wanted.upto[0] else entries - 1
        if wanted.after[0] <= ledger <= wanted.upto[0] and first <= last:
            yield Span(ledger, first, last)


def without(span: Span, read: Collection[int]) -> Iterator[Span]:
    """Yield the parts of a span whose entries were not read. read: entries of that ledger, in any order."""
    first = span.first
    for entry in sorted(each for each in set(read) if span.first <= each <= span.last):
        if first < entry:
            yield Span(span.ledger, first, entry - 1)
        first = entry + 1
    if first <= span.last:
        yield Span(span.ledger, first, span.last)


def count_of(spans: Sequence[Span]) -> int:
    """How many entries there are in the spans."""
    return sum(len(span) for span in spans)


def split(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    """Yield the spans in groups of at most so many entries, in their order."""
    group: list[Span] = []
    room = most
    for span in spans:
        first = span.first
        while first <= span.last:
            last = min(span.last, first + room - 1)
            group.append(Span(span.ledger, first, last))
            room -= last - first + 1
            first = last + 1
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group
