"""Records which messages of each lane are processed, and which come next, so that every message gets one receipt.

A kill between the receipts and the move of a cursor repeats nothing, and neither does a tenant that moves it back:

1. The service remembers the messages that this run has processed, and does not read them again.
2. Messages at or before a lane's newest receipt of earlier runs, and those of a pass that failed, are compared with the
   receipts before they are processed.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark.sql import DataFrame

from streaming.clock import Clock
from streaming.deletion.service import LedgerDeletionService
from streaming.queries.delivery.completion import Extent
from udfs.entry_ranges import EntrySpan, Range, bytes_of, count_of, spans_of, split
from udfs.formats.internal_stats import BEFORE_ALL, InternalStats, Position
from udfs.paths import base_topic

AFTER_ALL: Position = (1 << 62, 1 << 62)
_MOST_ENTRIES = 500  # of a lane in a pass
_MOST_REACHED = 100_000  # partitions; a tenant may create and delete lanes for ever

Checked = TypeVar("Checked")


@dataclass(slots=True, kw_only=True)
class LaneProgress:
    """One per service. Thread-safe, but a partition may only be processed by one thread at a time."""

    subscription: str
    service: LedgerDeletionService
    clock: Clock
    newest_receipts: Callable[[], Mapping[str, Position]]  # by partition, of earlier runs
    of_queries: Callable[[Collection[str]], Mapping[str, Position]] = lambda _topics: {}  # queries.former_queries
    _received: Mapping[str, Position] | None = None
    _reached: dict[str, Position] = field(default_factory=dict)  # also of lanes that are gone: they may come back
    _processed: dict[str, Position] = field(default_factory=dict)  # since the last check of the accounts
    # partitions for whose messages a failed pass may have written receipts
    _in_doubt: set[str] = field(default_factory=set)
    _last_batch: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def recall(self) -> None:
        """Read the newest receipts of earlier runs, once. Raises UnavailableError."""
        if self._received is None:
            self._received = self.newest_receipts()

    def resume(self, partitions: Collection[str]) -> None:
        """Continue after what queries have processed of these partitions, which are new. Raises UnavailableError."""
        positions = self.of_queries({base_topic(partition) for partition in partitions})
        with self._guard:
            # a topic that was created again may have fewer partitions than its query has read
            for partition, position in ((name, at) for name, at in positions.items() if name in partitions):
                self._reached[partition] = max(position, self.reached(partition))
                # the accounts check it next, so that a gap that they know stays an alarm
                self._processed.setdefault(partition, self._reached[partition])

    def after(self, partition: str, stats: InternalStats) -> Position:
        """Return the position after which a partition has its unprocessed messages."""
        # the cursor may be earlier: a tenant has moved it back, or its broker was killed before it wrote it
        return max(self.reached(partition), stats.mark_deleted(self.subscription))

    def reached(self, partition: str) -> Position:
        """Return the position up to which this run has processed a partition."""
        return self._reached.get(partition, BEFORE_ALL)

    def next_entries(
        self, partition: str, stats: InternalStats, most_bytes: int, upto: Position = AFTER_ALL, least: int = 1
    ) -> list[EntrySpan]:
        """Return the next entries of a partition, of about so many stored bytes; empty if there are none.

        Args:
            least: so many entries, if there are, whatever their size.
        """
        spans = list(spans_of(stats.ledgers, Range(self.after(partition, stats), upto)))
        if not spans:
            return []
        size = bytes_of(spans, stats) // count_of(spans)
        return next(split(spans, max(least, min(_MOST_ENTRIES, most_bytes // max(1, size)))))

    def has_entries(self, partition: str, stats: InternalStats) -> bool:
        """Whether a partition has entries that are not processed."""
        return any(spans_of(stats.ledgers, Range(self.after(partition, stats), AFTER_ALL)))

    def take(
        self,
        query: str,
        rows: DataFrame,
        number: int,
        spans: Mapping[str, Sequence[EntrySpan]],
        extent: Extent | None = None,
    ) -> None:
        """Process rows of these entries as a batch. Raises what LedgerDeletionService.take does."""
        received = self._received or {}
        firsts = {partition: (each[0].ledger, each[0].first) for partition, each in spans.items()}
        if any(first <= received.get(name, BEFORE_ALL) or name in self._in_doubt for name, first in firsts.items()):
            # an earlier run, or a pass that failed, may have processed some of them: the service leaves those out
            self.service.restart(query)
        with self._guard:  # `|=` with keys() would replace the set, and drop what another thread adds at that time
            self._in_doubt.update(spans)
        self.service.take(query, rows, number, extent)

    def reach(self, upto: Mapping[str, Position | None]) -> None:
        """Record by partition up to where all messages have receipts; None: as before."""
        with self._guard:
            for partition, position in upto.items():
                # not before: what fails between the receipts and this call is repeated from the old position
                self._in_doubt.discard(partition)
                if position is None:
                    continue
                self._reached[partition] = max(position, self._reached.pop(partition, BEFORE_ALL))
                self._processed[partition] = self._reached[partition]
            while len(self._reached) > _MOST_REACHED:
                del self._reached[next(iter(self._reached))]

    def next_batch(self) -> int:
        """Return a batch's number, which no earlier run has used: the journal counts a batch's deletes."""
        with self._guard:
            self._last_batch = max(self._last_batch + 1, self.clock.now_ms())
            return self._last_batch

    def with_processed(self, check: Callable[[Mapping[str, Position]], Checked]) -> Checked:
        """Call check with what was processed since the last call that succeeded: partition -> up to where."""
        with self._guard:
            processed, self._processed = self._processed, {}
        try:
            return check(processed)
        except BaseException:
            with self._guard:
                self._processed = processed | self._processed
            raise
