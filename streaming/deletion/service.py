"""Processes batches of requests, chunk by chunk, so that no request is lost and none is processed twice.

1. A chunk is swept in the executors (chunks/chunk.py), and the sweep ends with a single commit of receipts. Then the
   chunk is counted and published (chunks/outbox.py), and only then the next chunk starts.
2. Chunks of all queries run one after the other; the queries share a fair lock (fair_lock.py).
3. A batch of RETRY is kept until its messages are due (retries.py), and then processed in the same way.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.clock import Clock
from streaming.deletion.chunks.follow_up import FollowUp
from streaming.deletion.chunks.outbox import Outbox
from streaming.deletion.fair_lock import FairLock
from streaming.deletion.gate import Gate, Outages
from streaming.deletion.retries import Retries
from streaming.errors import SafetyError
from streaming.prometheus import table
from streaming.queries.delivery.completion import Completed, Extent, Spans
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.streams import Describe, chunks_of, messages
from streaming.schemas import RETRY
from streaming.state.receipts import Receipts
from udfs import columns as c
from udfs.units import CHUNK_REMAINDER, MAX_ROWS_PER_CHUNK


class Sweep(Protocol):
    """Sweeps the rows of a chunk, and commits their receipts if there are rows: deletion.chunks.chunk.ChunkSweep."""

    def __call__(self, query: str, batch_id: int, rows: DataFrame, chunk: int, /) -> None:
        """Raises what ChunkSweep does."""
        ...


class Complete(Protocol):
    """Adds to the delivered rows of a batch those that were not delivered: queries.delivery.completion.Completion."""

    def __call__(self, query: str, batch_id: int, delivered: DataFrame, /) -> Completed:
        """Return the rows of the batch. The caller unpersists rows other than `delivered`."""
        ...


class AsMessages(Protocol):
    """Converts the rows of a source to schemas.MESSAGE: queries.streams.messages, or for our own source coalesced."""

    def __call__(self, source: DataFrame, most_bytes: int, most_tasks: int, /) -> DataFrame:
        """Return the messages. most_bytes, most_tasks: as queries.streams.messages."""
        ...


class NoteFallbackReads(Protocol):
    """Records the entries of a batch that the fallback read: state.notes.worked_off.WorkedOff.note."""

    def __call__(self, spans: Spans, /) -> None:
        """Record them."""
        ...


def _as_delivered(_query: str, _batch_id: int, delivered: DataFrame) -> Completed:
    return Completed(delivered)


@dataclass(slots=True, kw_only=True)
class LedgerDeletionService:
    """One per application. Spark's foreachBatch calls process()."""

    receipts: Receipts
    sweep: Sweep
    outbox: Outbox
    follow_up: FollowUp
    retries: Retries
    gate: Gate
    outages: Outages
    lock: FairLock
    clock: Clock
    describe: Describe
    chunk_rows: int
    most_rows: Mapping[str, int] = field(default_factory=dict)  # of a chunk, for queries with smaller chunks
    # by query: called before each of its chunks, waits for chunks of others to come first
    give_way: dict[str, Callable[[], None]] = field(default_factory=dict)
    max_request_bytes: int
    messages: AsMessages = messages
    completed: Complete = _as_delivered
    note: NoteFallbackReads = lambda _spans: None
    slots: ReadSlots = field(default_factory=lambda: ReadSlots(threading.Event(), lambda: 2))
    _started: set[str] = field(default_factory=set)

    def process(self, query: str, source: DataFrame, batch_id: int) -> None:
        """Process a batch of a query. Raises StopRequestedError to keep Spark from committing it."""
        self.gate.check_stop()
        self.describe(query, batch_id, "reading messages")
        delivered = self.messages(source, self.max_request_bytes, self.slots.most_tasks(query)).persist()
        rows = delivered
        try:
            # first, so that all messages of the batch are processed before
            # Spark commits it (queries/delivery/completion.py)
            completed = self.completed(query, batch_id, delivered)
            rows = completed.rows
            self.take(query, rows, batch_id, completed.extent)
            completed.confirm()
            if completed.worked_off:
                self.note(completed.worked_off)
        finally:
            delivered.unpersist()
            if rows is not delivered:
                rows.unpersist()

    def take(self, query: str, rows: DataFrame, batch_id: int, extent: Extent | None = None) -> None:
        """Process the rows of one batch (schemas.MESSAGE), however they were read. Raises what process does.

        The caller persists the rows, because they are read several times.
        """
        self.gate.check_stop()
        started_ms = self.clock.now_ms()
        try:
            if query == RETRY:
                self.retries.keep(rows, batch_id)
            else:
                self._take_requests(query, rows, batch_id, extent)
            self.follow_up.metrics.took(table.BATCH_SECONDS, query, (self.clock.now_ms() - started_ms) / 1000)
        except SafetyError as error:
            # here, because Spark reports a query's failure as text, and that text may quote a sender
            self.outages.fail(error)
            raise

    def _take_requests(self, query: str, rows: DataFrame, batch_id: int, extent: Extent | None) -> None:
        if query in self._started:
            self.process_rows(query, batch_id, rows, extent)
            return
        # a run that was killed may have processed the first batch before Spark committed it
        left = self.receipts.without_done(rows, None if extent is None else extent.oldest_ledger).persist()
        try:
            self.process_rows(query, batch_id, left, extent)
            self._started.add(query)
        finally:
            left.unpersist()

    def restart(self, query: str) -> None:
        """Expect, as at a start, that messages of the restarted query's first batch may have receipts already."""
        self._started.discard(query)
        if query == RETRY:
            self.retries.restart()

    def forget(self, query: str) -> None:
        """Drop what is known about a query, by name, whose topic is gone."""
        self._started.discard(query)
        self.slots.forget(query)

    def process_due(self) -> None:
        """Run a pass over the waiting retries that are due now."""
        self.retries.process_due(self.process_rows)

    def process_rows(self, query: str, batch_id: int, rows: DataFrame, extent: Extent | None = None) -> None:
        """Process messages (schemas.MESSAGE) in chunks of about chunk_rows (bounds_of), or fewer (most_rows).

        If there are more source partitions than chunk_rows, a chunk has one message of each. A large message counts as
        several rows (units.ROW_BYTES), so a chunk is bounded in bytes too.

        extent: bounds of these rows, or of a batch that contains them.
        """
        last_rows = _last_rows(rows) if extent is None else extent.last_rows
        if not last_rows:
            # the batch was committed and perhaps not published, and no later chunk may come
            with self.lock:
                self._finish_interrupted()
            return
        chunk_rows = self.most_rows.get(query, self.chunk_rows)
        give_way = self.give_way.get(query, lambda: None)
        for chunk in chunks_of(rows, bounds_of(last_rows.values(), chunk_rows)):
            give_way()
            self._chunk(query, batch_id, chunk)

    def _chunk(self, query: str, batch_id: int, rows: DataFrame) -> None:
        with self.lock:
            # copies are published in the order of chunk numbers, because brokers drop a copy with a lower sequence id
            self._finish_interrupted()
            started_ms = self.clock.now_ms()
            chunk = self.receipts.newest_chunk + 1

            def commit() -> None:
                self.receipts.catch_up()  # an earlier try may have committed although its answer was lost
                if self.receipts.newest_chunk < chunk:
                    self.sweep(query, batch_id, rows, chunk)

            # an unavailable service uses up no request's tries: the chunk is tried again as a whole (decision 11)
            self.outages.wait_through(commit)
            if self.receipts.newest_chunk < chunk:  # the chunk has no rows
                return
            swept_ms = self.clock.now_ms()
            self.describe(query, batch_id, "publishing copies")
            summary = self.outbox.finish(chunk)
        ended_ms = self.clock.now_ms()
        took = f"swept in {(swept_ms - started_ms) / 1000:.1f} s, in all {(ended_ms - started_ms) / 1000:.1f} s"
        self.follow_up.metrics.took(table.CHUNK_SECONDS, query, (ended_ms - started_ms) / 1000)
        self.follow_up.report(query, chunk, summary, took)
        self.follow_up.look_after(chunk, summary)

    def _finish_interrupted(self) -> None:
        """Finish the chunks of queries that were interrupted after their commit, so that no chunk overtakes another."""
        self.gate.check_stop()
        self.outages.wait_through(self.receipts.catch_up)
        while chunk := self.outbox.oldest_unfinished:
            summary = self.outbox.finish(chunk)
            self.follow_up.metrics.count(table.OTHER, summary)  # the receipts name no query
            self.follow_up.look_after(chunk, summary)


def bounds_of(last_rows: Collection[int], chunk_rows: int) -> list[int]:
    """Return the row numbers that divide a batch into chunks of about the same size; empty if it fits into one chunk.

    last_rows: the greatest row number of each source.
    """
    counts = [last + 1 for last in last_rows]
    total, longest = sum(counts), max(counts)
    # a bound is a row number of every source, so a chunk can be larger by one row per source
    most = min(chunk_rows + chunk_rows // CHUNK_REMAINDER, MAX_ROWS_PER_CHUNK - len(counts))
    chunks = -(-total // most)

    def rows_below(bound: int) -> int:
        return sum(min(count, bound) for count in counts)

    sizes = (total * number // chunks for number in range(1, chunks))
    bounds = dict.fromkeys(bisect_left(range(longest), size, key=rows_below) for size in sizes)
    return [bound for bound in bounds if 0 < bound < longest]


def _last_rows(rows: DataFrame) -> dict[str, int]:
    """Return the greatest row number of each source."""
    return {row[c.SOURCE]: row[1] for row in rows.groupBy(c.SOURCE).agg(F.max(c.ROW)).collect()}
