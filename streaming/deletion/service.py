"""LedgerDeletionService: works off batches of requests, chunk by chunk, so that none is lost and none is done twice.

1. A chunk is swept in the executors (chunk.py), which ends in one commit of receipts. It is then counted and published
   (outbox.py), and only then the next one is begun: chunk numbers are the order of what is published.
2. Chunks of all queries run one after the other, in the order in which the queries asked for their turn (turn.py).
3. A service that is away is waited for (outages.py); no request's tries are used up meanwhile.
4. A batch of RETRY is kept until its messages are due (retries.py), and then worked off in the same way.
5. What the connector did not deliver of a batch is read another way first (queries/completion.py).
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.clock import Clock
from streaming.deletion.follow_up import FollowUp
from streaming.deletion.gate import Gate
from streaming.deletion.outages import Outages
from streaming.deletion.outbox import Outbox
from streaming.deletion.retries import Retries
from streaming.deletion.turn import Turn
from streaming.errors import SafetyError
from streaming.queries.completion import Completed, Extent, Spans
from streaming.queries.slots import ReadSlots
from streaming.queries.streams import Describe
from streaming.queries.transforms import messages, slices_of
from streaming.schemas import RETRY
from streaming.state.receipts import Receipts
from udfs import columns as c
from udfs.units import CHUNK_REMAINDER, MAX_ROWS_PER_CHUNK

Sweep = Callable[[str, int, DataFrame, int], None]
"""(query, batch id, rows, chunk): sweeps the rows and commits their receipts, if there are rows (chunk.ChunkSweep)."""

Complete = Callable[[str, int, DataFrame], Completed]
"""(query, batch id, rows as delivered): rows with those that were not delivered (queries.completion.Completion)."""


def _as_delivered(_query: str, _batch_id: int, delivered: DataFrame) -> Completed:
    return Completed(delivered)


@dataclass(slots=True)
class LedgerDeletionService:
    """One per application. process() is what foreachBatch calls.

    note: is told of entries, by partition, that were worked off in a batch of which some were read another way.
    reading: who reads when, and in how many tasks.
    """

    receipts: Receipts
    sweep: Sweep
    outbox: Outbox
    follow_up: FollowUp
    retries: Retries
    gate: Gate
    outages: Outages
    turn: Turn
    clock: Clock
    describe: Describe
    chunk_rows: int
    max_request_bytes: int
    completed: Complete = _as_delivered
    note: Callable[[Spans], None] = lambda _spans: None
    reading: ReadSlots = field(default_factory=lambda: ReadSlots(threading.Event(), lambda: 2))
    _started: set[str] = field(default_factory=set)

    def process(self, query: str, source: DataFrame, batch_id: int) -> None:
        """Work off one batch of one query. Raises StopRequestedError to keep Spark from committing it."""
        self.gate.check_stop()
        self.describe(query, batch_id, "reading messages")
        delivered = messages(source, self.max_request_bytes, self.reading.most_tasks(query)).persist()
        rows = delivered
        try:
            completed = self.completed(query, batch_id, delivered)
            rows = completed.rows
            self.take(query, rows, batch_id, completed.extent)
            if completed.worked_off:
                self.note(completed.worked_off)
        finally:
            delivered.unpersist()
            if rows is not delivered:
                rows.unpersist()

    def take(self, query: str, rows: DataFrame, batch_id: int, extent: Extent | None = None) -> None:
        """Do so with the messages of a batch (schemas.MESSAGE), whichever way they were read. Raises as process.

        The caller keeps the rows: they are looked at several times. What concerns safety ends the service here: what a
        query failed of is told as a text, in which a sender's words may stand.
        """
        self.gate.check_stop()
        try:
            if query == RETRY:
                self.retries.keep(rows, batch_id)
            else:
                self._take_requests(query, rows, batch_id, extent)
        except SafetyError as error:
            self.outages.fail(error)
            raise

    def _take_requests(self, query: str, rows: DataFrame, batch_id: int, extent: Extent | None) -> None:
        if query in self._started:
            self.work_off(query, batch_id, rows, extent)
            return
        left = self.receipts.without_done(rows, None if extent is None else extent.oldest_ledger).persist()
        try:
            self.work_off(query, batch_id, left, extent)
            self._started.add(query)
        finally:
            left.unpersist()

    def begin_again(self, query: str) -> None:
        """A query is started once more: as at a start, messages of its first batch may have receipts already."""
        self._started.discard(query)
        if query == RETRY:
            self.retries.begin_again()

    def forget(self, query: str) -> None:
        """The query, by name, is gone with its topic."""
        self._started.discard(query)
        self.reading.forget(query)

    def work_off_due(self) -> None:
        """Make one pass over the waiting retries that are due now."""
        self.retries.work_off_due(self.work_off)

    def work_off(self, query: str, batch_id: int, rows: DataFrame, extent: Extent | None = None) -> None:
        """Work off messages (schemas.MESSAGE) in chunks of chunk_rows, or of one message of each source partition.

        A large message counts as several rows (units.ROW_BYTES), so a chunk is bounded in bytes too. extent: of these
        rows, or of more.
        """
        last_rows = _last_rows(rows) if extent is None else extent.last_rows
        for piece in slices_of(rows, bounds_of(last_rows.values(), self.chunk_rows)) if last_rows else ():
            self._chunk(query, batch_id, piece)

    def _chunk(self, query: str, batch_id: int, rows: DataFrame) -> None:
        with self.turn:
            self._finish_interrupted()
            started_ms = self.clock.now_ms()
            chunk = self.receipts.newest_chunk + 1

            def commit() -> None:
                self.receipts.catch_up()  # an earlier try may have committed, and only its answer was lost
                if self.receipts.newest_chunk < chunk:
                    self.sweep(query, batch_id, rows, chunk)

            self.outages.wait_through(commit)
            if self.receipts.newest_chunk < chunk:  # there are no such rows
                return
            swept_ms = self.clock.now_ms()
            self.describe(query, batch_id, "publishing copies")
            summary = self.outbox.finish(chunk)
        ended_ms = self.clock.now_ms()
        took = f"swept in {(swept_ms - started_ms) / 1000:.1f} s, in all {(ended_ms - started_ms) / 1000:.1f} s"
        self.follow_up.report(query, chunk, summary, took)
        self.follow_up.look_after(chunk, summary)

    def _finish_interrupted(self) -> None:
        """Finish the chunks of queries that broke off after their commit, so that no chunk overtakes another."""
        self.gate.check_stop()
        self.outages.wait_through(self.receipts.catch_up)
        while chunk := self.outbox.oldest_unfinished:
            self.follow_up.look_after(chunk, self.outbox.finish(chunk))


def bounds_of(last_rows: Collection[int], chunk_rows: int) -> list[int]:
    """Return by which row numbers a batch is divided into chunks that are about the same size; none: it is one chunk.

    last_rows: of each source.
    """
    counts = [last + 1 for last in last_rows]
    total, longest = sum(counts), max(counts)
    # a bound is a row number of every source, so a chunk can be larger by one row of each
    most = min(chunk_rows + chunk_rows // CHUNK_REMAINDER, MAX_ROWS_PER_CHUNK - len(counts))
    pieces = -(-total // most)

    def upto(bound: int) -> int:
        return sum(min(count, bound) for count in counts)

    wanted = (total * number // pieces for number in range(1, pieces))
    bounds = dict.fromkeys(bisect_left(range(longest), rows, key=upto) for rows in wanted)
    return [bound for bound in bounds if 0 < bound < longest]


def _last_rows(rows: DataFrame) -> dict[str, int]:
    """Return the greatest row number of each source."""
    return {row[c.SOURCE]: row[1] for row in rows.groupBy(c.SOURCE).agg(F.max(c.ROW)).collect()}
