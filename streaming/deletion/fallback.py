"""Works off another way what a query could not, while that does not run: a batch that the connector fails on, whole.

1. The batch that was begun and not committed: its range is read another way, worked off like any batch, and then
   committed in Spark's place (queries/batches.py). A crash before that changes nothing: the connector fails on the
   batch again, and what has a receipt is left out.
   Where the broker shows no entry at all, of other topics neither, its bookies are away, or there was never one that
   can be read. That is tried again for ten minutes, and only then are the entries given up. So is a batch with an entry
   for which there is only an answer that may as well be due to a topic that is being moved.
2. Where no batch could be planned, everything behind the last commit is worked off, and nothing is committed. The next
   batch that Spark plans begins at the same place.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from streaming.adapters.pulsar.entries import NOTHING_SHOWN, WITHHELD
from streaming.config.settings import Settings
from streaming.deletion.service import LedgerDeletionService
from streaming.errors import SafetyError
from streaming.ports import TopicAdmin
from streaming.queries.batches import commit, next_number, unfinished
from streaming.queries.checkpoints import committed_positions, location_of, partitions_of
from streaming.queries.completion import Read, Spans, stored_spans
from streaming.queries.names import Query
from streaming.queries.parked import FallbackResult
from streaming.state.filesystem import shown
from udfs.entry_ranges import Range, count_of
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import base_topic

log = logging.getLogger("ledger-reaper")

_BEHIND_ALL: Position = (1 << 62, 1 << 62)
_GIVES_UP_S = 600.0


@dataclass(slots=True)
class Fallback:
    """One per service: what queries.parked calls a rescue.

    read: reads, for a query, the messages of entries, by partition, as rows (schemas.MESSAGE). tells_last: whether the
    broker can say what a partition's last message is; else the connector can't plan a batch.
    """

    settings: Settings
    admin: TopicAdmin
    service: LedgerDeletionService
    read: Read
    tells_last: Callable[[str], bool]
    monotonic: Callable[[], float] = time.monotonic
    _reached: dict[str, Position] = field(default_factory=dict)
    _withheld_since_s: dict[tuple[str, int], float] = field(default_factory=dict)  # by query and batch

    def __call__(self, query: Query) -> FallbackResult:
        """Work off what waits for the query. Raises what LedgerDeletionService.process, Pulsar and the disk do.

        Raises SafetyError if the checkpoint has read a topic that is not the query's.
        """
        checkpoint = location_of(self.settings, query.name)
        _require_own(query, checkpoint)
        self.service.begin_again(query.name)  # part of it may have receipts
        batch = unfinished(checkpoint)
        if batch is None:
            return self._without_batch(query, checkpoint)
        entries = self._work_off(query.name, batch.number, stored_spans(self.admin, batch.ranges))
        commit(checkpoint, batch.number)
        log.info("%s: batch %s was read another way, %s entries", query.topics[0], batch.number, entries)
        return FallbackResult(has_news=True)

    def forget(self, query: Query) -> None:
        """The query is gone with its topic."""
        for partition in [each for each in list(self._reached) if base_topic(each) in query.topics]:
            self._reached.pop(partition, None)
        for batch in [each for each in list(self._withheld_since_s) if each[0] == query.name]:
            self._withheld_since_s.pop(batch, None)
        self.service.forget(query.name)

    def _without_batch(self, query: Query, checkpoint: str) -> FallbackResult:
        done = committed_positions(checkpoint)
        partitions = [partition for topic in query.topics for partition in self.admin.last_positions(topic)]
        begin = {each: max(done.get(each, BEFORE_ALL), self._reached.get(each, BEFORE_ALL)) for each in partitions}
        spans = stored_spans(self.admin, {each: Range(after, _BEHIND_ALL) for each, after in begin.items()})
        if spans:
            entries = self._work_off(query.name, next_number(checkpoint), spans)
            log.info("%s: no batch could be begun; %s entries were read another way", query.topics[0], entries)
        self._reached |= {each: (some[-1].ledger, some[-1].last) for each, some in spans.items()}
        may_begin = all(self.tells_last(each) for each in partitions)
        reached = {each: self._reached[each] for each in partitions if each in self._reached}
        return FallbackResult(bool(spans), may_begin=may_begin, reached=reached)

    def _work_off(self, query: str, number: int, spans: Spans) -> int:
        """Work off these entries as that batch; returns how many there are."""
        if spans:
            self.service.describe(query, number, "reading entries another way")
            rows = self._rows(query, number, spans)
            try:
                self.service.take(query, rows, number)
            finally:
                rows.unpersist()
            self.service.note(spans)
        return sum(count_of(each) for each in spans.values())

    def _rows(self, query: str, number: int, spans: Spans) -> DataFrame:
        since_s = self._withheld_since_s.pop((query, number), None)
        now_s = self.monotonic()
        try:
            return self.read(query, spans, gives_up=since_s is not None and now_s - since_s >= _GIVES_UP_S)
        except Exception as error:
            if any(said in str(error) for said in (NOTHING_SHOWN, WITHHELD)):
                self._withheld_since_s[query, number] = now_s if since_s is None else since_s
            raise


def _require_own(query: Query, checkpoint: str) -> None:
    foreign = sorted({base_topic(partition) for partition in partitions_of(checkpoint)} - {*query.topics})
    if foreign:
        raise SafetyError(
            f"{shown(checkpoint)} has read {', '.join(foreign)}, which query {query.name} does not read: nothing "
            "is read or committed for another query"
        )
