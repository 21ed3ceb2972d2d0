"""Counts the messages and bytes of a partition's next entries, by reading them once."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import islice

from streaming.adapters.pulsar.readers.frames import ReceiveTimeout
from streaming.adapters.pulsar.source.broker import Scout, SourceBroker
from streaming.errors import UnavailableError
from udfs.entry_ranges import EntrySpan
from udfs.formats.entry import Weight
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.pulsar_source.admission import Limits

_RECEIVE_SECONDS = 1.0  # a reader that gets nothing for so long has stalled
_UNCOUNTED = 100  # so many entries are taken of a partition whose reader stalls before the first

CountedEntry = tuple[Position, Weight]


class Counting:
    """The unread entries of a partition; continues from batch to batch.

    For one thread, and another in fill().

    Args:
        broker: where the partition is.
        partition: full name.
        uncounted: weight of an entry that no reader gets.
        reads_uncommitted: whether entries after the start of an open transaction count as well.
    """

    def __init__(
        self,
        broker: SourceBroker,
        partition: str,
        *,
        uncounted: Weight,
        reads_uncommitted: bool,
    ) -> None:
        self._broker = broker
        self.partition = partition
        self._uncounted = uncounted
        self._reads_uncommitted = reads_uncommitted
        self._positions: Iterator[Position] = iter(())
        self._next: Position | None = None
        self._upto = BEFORE_ALL  # the last entry that was counted
        self._counted: deque[CountedEntry] = deque()
        # all messages and bytes that were counted, and those of them that batches have
        self._filled, self._taken = Weight(0, 0), Weight(0, 0)
        self._entries = self._count()
        self._is_at_end = True  # nothing follows the entries that fill() has counted

    def update(self, unread: Sequence[EntrySpan]) -> None:
        """Set the entries that are unread now, so that those which arrived since are counted as well."""
        self._positions = (
            (span.ledger, entry)
            for span in unread
            if (span.ledger, span.last) > self._upto
            for entry in range(span.first, span.last + 1)
            if (span.ledger, entry) > self._upto
        )
        self._next = next(self._positions, None)
        if self._is_at_end:
            self._entries, self._is_at_end = self._count(), self._next is None

    def fill(self, share: Limits) -> None:
        """Count until the entries exceed the share; others may take them. Raises UnavailableError, RefusedError."""
        while (
            not self._is_at_end
            and self._filled.messages - self._taken.messages <= share.messages
            and self._filled.size - self._taken.size <= share.size
        ):
            entry = next(self._entries, None)
            if entry is None:
                self._is_at_end = True
                break
            self._counted.append(entry)
            self._filled = self._filled.plus(entry[1])

    @property
    def has_entries(self) -> bool:
        """Whether entries are counted that no batch has."""
        return bool(self._counted)

    def weights(self) -> list[Weight]:
        """Return the weights of the next entries, as far as they are counted."""
        return [weight for _position, weight in self._counted.copy()]  # a thread may append

    def take(self, count: int) -> Position:
        """Remove the next `count` entries, as a batch has them; return the position of the last."""
        for _ in range(count):
            position, weight = self._counted.popleft()
            self._taken = self._taken.plus(weight)
        return position

    @property
    def is_empty(self) -> bool:
        """Whether all entries were taken that readers get now."""
        return self._is_at_end and not self._counted

    def close(self) -> None:
        """Close the reader."""
        self._entries.close()

    def _count(self) -> Generator[CountedEntry, None, None]:
        while self._next is not None:
            got_any = False
            try:
                with self._broker.scout(self.partition, (self._next[0], self._next[1] - 1)) as scout:
                    for entry in self._received(scout):
                        got_any = True
                        yield entry
                    if not got_any and self._is_sent(scout):
                        # wrong numbers in a sender's metadata can stop a reader; the tasks' readers continue after them
                        yield from islice(self._skipped(scout.last), _UNCOUNTED)
                    elif self._reads_uncommitted and not self._is_sent(scout):
                        yield from self._skipped(None)
                    return
            except UnavailableError:
                # brokers close a reader that was kept while a batch ran for a minute
                if not got_any:
                    raise

    def _received(self, scout: Scout) -> Iterator[CountedEntry]:
        """Yield the entries up to the last that the broker sends, and those that it passes over before."""
        while self._is_sent(scout):
            try:
                position, weight = scout.next_weight(_RECEIVE_SECONDS)
            except ReceiveTimeout:
                return
            if self._next != position:
                yield from self._skipped((position[0], position[1] - 1))
            if self._next == position:
                self._take()
                yield position, weight

    def _is_sent(self, scout: Scout) -> bool:
        return self._next is not None and (scout.last is None or self._next <= scout.last)

    def _skipped(self, upto: Position | None) -> Iterator[CountedEntry]:
        while self._next is not None and (upto is None or self._next <= upto):
            yield self._take(), self._uncounted

    def _take(self) -> Position:
        taken = self._next
        if taken is None:
            raise IndexError
        self._upto, self._next = taken, next(self._positions, None)
        return taken
