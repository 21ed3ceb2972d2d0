"""Reads spans of a partition's entries through readers; also yields, without data, entries that were not sent."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from streaming.adapters.pulsar.readers.frames import FrameReader, ReceiveTimeout, opened
from streaming.config.sections import PulsarSettings
from udfs.entry_ranges import EntrySpan
from udfs.formats.internal_stats import InternalStats, Position

_READER_TIMEOUT_SECONDS = 3.0  # without an entry within this time the broker is slow, or sends nothing more
_REOPEN_SECONDS = 10.0  # how often a new reader checks for later entries, while entries are yielded as not sent
_READERS = 2  # opened in succession before the first entry counts as not sent
_MAX_SKIPPED = 1000  # this many entries outside the spans are read and dropped before a new reader is opened


@dataclass(frozen=True, slots=True)
class SpanEntry:
    """An entry of a span."""

    position: Position
    data: bytes | None  # None: the broker sends it to no reader, or not yet
    is_passed_over: bool = False  # the broker has read it or a later one, so it will never send this one


def read_spans(
    settings: PulsarSettings,
    partition: str,
    spans: Sequence[EntrySpan],
    internal_stats: Callable[[str], InternalStats] | None = None,
) -> Iterator[SpanEntry]:
    """Yield every entry of the spans, which ascend. Raises UnavailableError, RefusedError.

    Args:
        internal_stats: returns a partition's internalStats, which show the entries that the broker has passed over
            although it has sent no later one.
    """
    remaining = _Positions(spans)
    readers = _READERS
    while remaining.next is not None:
        yield from _read_with_readers(settings, partition, remaining, readers, internal_stats)
        # A later entry may arrive at any time, and proves that the broker passes over the entries before it.
        reopen_s = time.monotonic() + _REOPEN_SECONDS
        while remaining.next is not None and time.monotonic() < reopen_s:
            yield SpanEntry(remaining.take(), None)
        readers = 1


def _read_with_readers(
    settings: PulsarSettings,
    partition: str,
    remaining: "_Positions",
    max_readers: int,
    internal_stats: Callable[[str], InternalStats] | None,
) -> Iterator[SpanEntry]:
    """Read until no positions remain, or so many readers in succession got nothing."""
    readers = 0
    while remaining.next is not None and readers < max_readers:
        ledger = remaining.next[0]
        with opened(settings, partition, (ledger, remaining.next[1] - 1)) as reader:
            has_timed_out = yield from _read_on(reader, remaining)
            if has_timed_out and internal_stats is not None and remaining.next is not None:
                # The broker itself acknowledges, for each reader, the entries that it reads and does not send. Between
                # those that it sent, it may have acknowledged any number.
                acknowledged = internal_stats(partition).acknowledged_from(reader.subscription, remaining.next)
                while remaining.next is not None and any(lower < remaining.next <= to for lower, to in acknowledged):
                    yield SpanEntry(remaining.take(), None, is_passed_over=True)
        # wrong numbers in a sender's metadata can stop a reader; a new reader continues after them
        readers = 0 if not has_timed_out or remaining.next is None or remaining.next[0] != ledger else readers + 1
        # after the first message of an open transaction a reader gets nothing at all
        if remaining.next is not None and reader.last is not None and remaining.next > reader.last:
            break


def _read_on(reader: FrameReader, remaining: "_Positions") -> Generator[SpanEntry, None, bool]:
    """Read until no positions remain or the next is distant, or the broker sends nothing more; then return True."""
    skipped = 0
    while (
        remaining.next is not None
        and skipped <= _MAX_SKIPPED
        and (reader.last is None or remaining.next <= reader.last)
    ):
        try:
            position, data = reader.next(_READER_TIMEOUT_SECONDS)
        except ReceiveTimeout:
            return True
        while remaining.next is not None and remaining.next < position:
            # a marker, a message of an aborted transaction, or an entry whose metadata the broker can't parse
            yield SpanEntry(remaining.take(), None, is_passed_over=True)
        if remaining.next == position:
            yield SpanEntry(remaining.take(), data)
            skipped = 0
        else:
            skipped += 1
    return False


class _Positions:
    """The positions of spans that are not yielded yet."""

    def __init__(self, spans: Sequence[EntrySpan]) -> None:
        self._positions = ((span.ledger, entry) for span in spans for entry in range(span.first, span.last + 1))
        self.next: Position | None = next(self._positions, None)

    def take(self) -> Position:
        taken = self.next
        if taken is None:
            raise IndexError
        self.next = next(self._positions, None)
        return taken
