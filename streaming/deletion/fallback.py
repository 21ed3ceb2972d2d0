"""Processes the messages of a query on which the connector fails, without the connector, while the query does not run.

1. If a batch was started but not committed, its whole range is read without the connector, processed like any batch,
   and then committed as Spark would (queries/delivery/batches.py).
2. If no batch could be planned, everything after the last commit is processed, and nothing is committed. So the next
   batch that Spark plans starts after the same commit.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from streaming.config.settings import Settings
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import SafetyError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import committed_positions, location_of, partitions_of
from streaming.queries.delivery.batches import commit, next_number, unfinished
from streaming.queries.delivery.completion import Read, Spans, stored_spans
from streaming.queries.delivery.withheld import Withheld
from streaming.queries.life import FallbackResult
from streaming.queries.names import Query
from streaming.state.filesystem import shown
from udfs.entry_ranges import Range, count_of
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import base_topic

log = logging.getLogger("ledger-reaper")

# greater than any position: everything after the last commit
_AFTER_ALL: Position = (1 << 62, 1 << 62)


@dataclass(slots=True, kw_only=True)
class Fallback:
    """The fallback of parked queries (queries.life). One per service."""

    settings: Settings
    admin: TopicAdmin
    service: LedgerDeletionService
    read: Read
    # whether the broker returns a partition's last message; otherwise the connector can't plan a batch
    reports_last_message: Callable[[str], bool]
    monotonic: Callable[[], float] = time.monotonic
    _reached: dict[str, Position] = field(default_factory=dict)
    _withheld: dict[tuple[str, int], Withheld] = field(default_factory=dict)  # by query and batch

    def __call__(self, query: Query) -> FallbackResult:
        """Process the query's unprocessed messages. Raises what LedgerDeletionService.process, Pulsar and the disk do.

        Raises SafetyError if the checkpoint has read a topic that is not the query's.
        """
        checkpoint = location_of(self.settings, query.name)
        _require_own(query, checkpoint)
        self.service.restart(query.name)  # so that it expects that some of the messages have receipts already
        batch = unfinished(checkpoint)
        if batch is None:
            return self._without_batch(query, checkpoint)
        entries = self._process(query.name, batch.number, stored_spans(self.admin, batch.ranges))
        # after the receipts: a crash in between changes nothing, since the connector fails on the batch again and
        # messages with a receipt are left out
        commit(checkpoint, batch.number)
        log.info("%s: the fallback read batch %s, %s entries", query.topics[0], batch.number, entries)
        return FallbackResult(has_news=True)

    def forget(self, query: Query) -> None:
        """Drop what is known about a query whose topic is gone."""
        for partition in [partition for partition in list(self._reached) if base_topic(partition) in query.topics]:
            self._reached.pop(partition, None)
        for batch in [batch for batch in list(self._withheld) if batch[0] == query.name]:
            self._withheld.pop(batch, None)
        self.service.forget(query.name)

    def _without_batch(self, query: Query, checkpoint: str) -> FallbackResult:
        committed, reached = committed_positions(checkpoint), self._reached
        partitions = [partition for topic in query.topics for partition in self.admin.last_positions(topic)]
        ranges = {
            name: Range(max(committed.get(name, BEFORE_ALL), reached.get(name, BEFORE_ALL)), _AFTER_ALL)
            for name in partitions
        }
        spans = stored_spans(self.admin, ranges)
        if spans:
            entries = self._process(query.name, next_number(checkpoint), spans)
            log.info("%s: no batch could be started; the fallback read %s entries", query.topics[0], entries)
        # nothing was committed, so the next fallback would read these entries again
        reached |= {name: (entries[-1].ledger, entries[-1].last) for name, entries in spans.items()}
        return FallbackResult(
            bool(spans),
            may_start=all(self.reports_last_message(name) for name in partitions),
            reached={name: reached[name] for name in partitions if name in reached},
        )

    def _process(self, query: str, number: int, spans: Spans) -> int:
        """Process these entries as a batch with this number; return how many there are."""
        if spans:
            self.service.describe(query, number, "reading entries without the connector")
            rows = self._rows(query, number, spans)
            try:
                self.service.take(query, rows, number)
            finally:
                rows.unpersist()
            self.service.note(spans)
        return sum(count_of(entries) for entries in spans.values())

    def _rows(self, query: str, number: int, spans: Spans) -> DataFrame:
        withheld = self._withheld.pop((query, number), None) or Withheld()
        try:
            return withheld.read(lambda gives_up: self.read(query, spans, gives_up=gives_up), self.monotonic())
        finally:
            if withheld.since_s is not None:
                self._withheld[query, number] = withheld


def _require_own(query: Query, checkpoint: str) -> None:
    foreign = sorted({base_topic(partition) for partition in partitions_of(checkpoint)} - {*query.topics})
    if foreign:
        raise SafetyError(
            f"{shown(checkpoint)} has read {', '.join(foreign)}, which query {query.name} does not read: the fallback "
            "reads and commits nothing of another query"
        )
