"""Checks whether the connector delivered every entry of a batch; the fallback reads entries that it skipped silently.

The runs of entries that were delivered whole are compared with what the broker stores of the range. An entry is whole
if no index of its producer's batch is missing.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming import schemas
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import TopicAdmin
from streaming.queries.checkpoints import location_of
from streaming.queries.delivery.batches import Batch, unfinished
from streaming.queries.delivery.fallback_reads import kept, numbered
from streaming.queries.delivery.slots import ReadSlots
from streaming.spark.job_limit import limited
from streaming.spark.submitted import is_local
from udfs import columns as c
from udfs.entry_ranges import EntrySpan, Range, bytes_of, count_of, spans_of, whole_of, without
from udfs.spark import entry_runs

log = logging.getLogger("ledger-reaper")

_RUN = from_arrow_schema(schemas.RUN)
# On a cluster a task counts as running while its executor fetches this program and its jars, 0.5 GB, and until Spark
# notices that the host is silent, two minutes by default.
_MORE_SECONDS_ON_A_CLUSTER = 210.0
_SECONDS_PER_ENTRY = 0.005
_SECONDS_PER_BYTE = 10e-6  # an entry may contain a thousand requests, in 10 KB or more
# Limits for batches of any size: the fallback reads what the connector has not read by then, in slots that it shares
# only with other queries that have failed. Bytes that compress well are cheap for their sender, and requests of others
# wait behind them in the same topic. If other queries wait for its slots, a read that hangs ends 30 s
# after the time that a single entry may take.
_MOST_SECONDS_FOR_BYTES = 30.0
_MOST_SECONDS = 120.0
MOST_SECONDS_WHILE_OTHERS_WAIT = 30.0

Spans = Mapping[str, Sequence[EntrySpan]]  # by partition


class Read(Protocol):
    """Reads entries without the connector (queries.delivery.fallback_reads.ReadRows)."""

    def __call__(self, query: str, spans: Spans, /, *, gives_up: bool = False) -> DataFrame:
        """Return the rows of the entries' messages, kept until unpersist.

        gives_up: give up unreadable entries even if the broker shows no other entry (adapters.pulsar.readers.entries).
        """
        ...


@dataclass(frozen=True, slots=True)
class Extent:
    """Bounds of a batch."""

    last_rows: Mapping[str, int]  # by source: no row of it has a greater number (columns.ROW)
    oldest_ledger: int  # no message of the batch is in an older ledger


@dataclass(frozen=True, slots=True)
class Completed:
    """A complete batch."""

    rows: DataFrame  # schemas.MESSAGE
    extent: Extent | None = None  # if it is known
    # the batch's entries, if the fallback read some of them: those entries need not contain a message
    worked_off: Spans = field(default_factory=dict)
    # called after the rows were processed; raises UnavailableError if not all of them were the rows of one read
    confirm: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Adds to a batch the rows that the connector did not deliver. One per service."""

    spark: SparkSession
    settings: Settings
    admin: TopicAdmin
    read: Read
    slots: ReadSlots
    # repeats a step while Pulsar is unavailable (deletion.gate.Outages.wait_through)
    patiently: Callable[[Callable[[], None]], None] = lambda step: step()

    def __call__(self, query: str, batch_id: int, delivered: DataFrame) -> Completed:
        """Return a batch's rows with those that were not delivered; `delivered` itself if no row is missing.

        The caller unpersists rows other than `delivered`. The connector reads the batch during this call.
        Raises UnavailableError, RefusedError, and what the connector raises.
        """
        batch = unfinished(location_of(self.settings, query))
        if batch is None or batch.number != batch_id:
            raise ReaperError(f"{query}: the checkpoint does not name the range of batch {batch_id}: {batch}")
        stored, size = self._stored(batch)
        total = sum(count_of(spans) for spans in stored.values())
        what = f"{query}, batch {batch_id}: reading"
        master = self.spark.sparkContext.master or ""
        with self.slots.of(query, len(batch.ranges)) as others_wait:
            least = self.settings.service.reading_seconds

            def seconds() -> float:
                return allowed_seconds(total, size, master, least, others_wait=others_wait())

            # the connector never finishes some batches
            with limited(self.spark, seconds, what):
                runs = delivered_runs(delivered).collect()
        missing = _missing(stored, runs)
        if not missing:
            return Completed(delivered, _extent(runs))
        log.info(
            "%s, batch %s: the connector did not deliver %s of %s entries; the fallback reads them",
            query,
            batch_id,
            sum(count_of(spans) for spans in missing.values()),
            total,
        )
        read = self.read(query, missing)
        try:
            # of an entry that was delivered in part, only the missing messages are added
            undelivered = read.join(delivered.select(*c.POSITION), list(c.POSITION), "left_anti")
            rows = kept(numbered(delivered.unionByName(undelivered)))
        finally:
            read.unpersist()
        return Completed(rows, worked_off=stored)

    def _stored(self, batch: Batch) -> tuple[Spans, int]:
        results: list[tuple[Spans, int]] = []
        self.patiently(lambda: results.append(_stored(self.admin, batch.ranges)))
        return results[-1]


def allowed_seconds(entries: int, size: int, master: str, least: float, *, others_wait: bool) -> float:
    """Return how long the connector may take to read entries.

    Args:
        size: bytes of the entries together, as they are stored.
        least: seconds for one entry.
        others_wait: whether other queries wait for the slots of this read.
    """
    base = base_seconds(master, least)
    most = MOST_SECONDS_WHILE_OTHERS_WAIT if others_wait else _MOST_SECONDS
    for_bytes = min(_SECONDS_PER_BYTE * size, _MOST_SECONDS_FOR_BYTES)
    return base + min(_SECONDS_PER_ENTRY * entries + for_bytes, most)


def base_seconds(master: str, least: float) -> float:
    """Return how long the read of a single entry may take. least: the same in the driver's process."""
    return least if is_local(master) else least + _MORE_SECONDS_ON_A_CLUSTER


def stored_spans(admin: TopicAdmin, ranges: Mapping[str, Range]) -> Spans:
    """Return which entries of the ranges are stored. Raises what TopicAdmin does."""
    return _stored(admin, ranges)[0]


def _stored(admin: TopicAdmin, ranges: Mapping[str, Range]) -> tuple[Spans, int]:
    """Return which entries of the ranges are stored, and about how many bytes they take."""
    stored: dict[str, list[EntrySpan]] = {}
    size = 0
    for partition, entries in ranges.items():
        stats = admin.internal_stats(partition)
        if spans := list(spans_of(stats.ledgers, entries)):
            stored[partition] = spans
            size += bytes_of(spans, stats)
    return stored, size


def delivered_runs(delivered: DataFrame) -> DataFrame:
    """Return the delivered entries as runs (schemas.RUN)."""
    # A partition is read by a single task, in order of position, so no shuffle is needed. The plan is the same for all
    # batches, so Spark compiles code for it once.
    return delivered.select(*c.POSITION, c.ROW).mapInArrow(partial(entry_runs, schema=schemas.RUN), _RUN)


def _extent(runs: Iterable[Row]) -> Extent | None:
    last_rows: dict[str, int] = {}
    ledgers: set[int] = set()
    for partition, ledger, *_, row in runs:
        last_rows[partition] = max(row, last_rows.get(partition, 0))
        ledgers.add(ledger)
    return Extent(last_rows, min(ledgers)) if ledgers else None


def _missing(stored: Spans, runs: Iterable[Row]) -> dict[str, list[EntrySpan]]:
    """Return the stored entries that were not delivered whole.

    runs: rows of schemas.RUN. They may exceed the batch's range: the connector also reads the last entry before it.
    """
    delivered: dict[str, list[tuple[EntrySpan, bool]]] = {}
    for partition, ledger, first, last, is_whole, _row in runs:
        delivered.setdefault(partition, []).append((EntrySpan(ledger, first, last), is_whole))
    missing = {
        partition: list(without(spans, whole_of(delivered.get(partition, ())))) for partition, spans in stored.items()
    }
    return {partition: spans for partition, spans in missing.items() if spans}
