"""Whether the connector delivered every entry of a batch; what it passed over in silence is read another way.

1. We count the entries of each ledger that were delivered whole, and compare with what the broker stores of the range.
   An entry is whole where no index of its producer's batch is missing.
2. Reading has a limit, for the connector reads some batches without an end.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import TopicAdmin
from streaming.queries.another_way import numbered
from streaming.queries.batches import Batch, unfinished
from streaming.queries.checkpoints import location_of
from streaming.spark.job_limit import limited
from udfs import columns as c
from udfs.entry_ranges import Range, Span, count_of, spans_of, without

log = logging.getLogger("ledger-reaper")

_SECONDS = 30.0
_SECONDS_PER_ENTRY = 0.005

Spans = Mapping[str, Sequence[Span]]  # by partition


@dataclass(frozen=True, slots=True)
class Completion:
    """One per service. read: the messages of entries, by partition, as rows (schemas.MESSAGE).

    patiently: runs a step that asks Pulsar's admin API, again and again while that is away.
    """

    spark: SparkSession
    settings: Settings
    admin: TopicAdmin
    read: Callable[[Spans], DataFrame]
    patiently: Callable[[Callable[[], None]], None] = lambda step: step()

    def __call__(self, query: str, batch_id: int, delivered: DataFrame) -> DataFrame:
        """Return a batch's rows (schemas.MESSAGE) with those that were not delivered; `delivered` itself if none lacks.

        Runs the reading. Raises UnavailableError, RefusedError, and what the connector raises.
        """
        batch = unfinished(location_of(self.settings, query))
        if batch is None or batch.number != batch_id:
            raise ReaperError(f"{query}: the checkpoint does not say what batch {batch_id} is to read: {batch}")
        stored = self._stored(batch)
        total = sum(count_of(each) for each in stored.values())
        whole = _whole(delivered, batch)
        with limited(self.spark, _SECONDS + _SECONDS_PER_ENTRY * total, f"{query}, batch {batch_id}: reading"):
            per_ledger = whole.groupBy(c.SOURCE, c.POSITION_LEDGER).count().collect()
        counted = {(row[c.SOURCE], row[c.POSITION_LEDGER]): row["count"] for row in per_ledger}
        missing = _missing(whole, stored, counted)
        if not missing:
            return delivered
        lacking = sum(count_of(each) for each in missing.values())
        log.info(
            "%s, batch %s: the connector did not deliver %s of %s entries; they are read another way",
            query,
            batch_id,
            lacking,
            total,
        )
        return numbered(delivered.unionByName(self.read(missing)))

    def _stored(self, batch: Batch) -> Spans:
        stored: dict[str, list[Span]] = {}
        self.patiently(lambda: stored.update(stored_spans(self.admin, batch.ranges)))
        return stored


def stored_spans(admin: TopicAdmin, ranges: Mapping[str, Range]) -> dict[str, list[Span]]:
    """Return which entries of the ranges are stored. Raises what TopicAdmin does."""
    found = {
        partition: list(spans_of(admin.internal_stats(partition).ledgers, wanted))
        for partition, wanted in ranges.items()
    }
    return {partition: spans for partition, spans in found.items() if spans}


def _whole(delivered: DataFrame, batch: Batch) -> DataFrame:
    """The entries of a batch's ranges that were delivered whole."""
    index = F.col(c.POSITION_BATCH)
    return (
        delivered.where(_within(batch))
        .groupBy(c.SOURCE, c.POSITION_LEDGER, c.POSITION_ENTRY)
        .agg(F.countDistinct(index).alias("messages"), F.greatest(F.max(index) + 1, F.lit(1)).alias("expected"))
        .where(F.col("messages") == F.col("expected"))
    )


def _within(batch: Batch) -> Column:
    """Whether a message lies in a batch's ranges; the connector reads the last entry before a range, too."""
    place = F.struct(c.POSITION_LEDGER, c.POSITION_ENTRY)

    def position(ledger: int, entry: int) -> Column:
        return F.struct(
            F.lit(ledger).cast("long").alias(c.POSITION_LEDGER), F.lit(entry).cast("long").alias(c.POSITION_ENTRY)
        )

    ranges = [
        (F.col(c.SOURCE) == partition) & (place > position(*each.after)) & (place <= position(*each.upto))
        for partition, each in batch.ranges.items()
    ]
    return reduce(or_, ranges, F.lit(False))


def _missing(whole: DataFrame, stored: Spans, counted: Mapping[tuple[str, int], int]) -> dict[str, list[Span]]:
    """Which stored entries are not among the whole ones. counted: (partition, ledger) -> how many of them are."""
    missing: dict[str, list[Span]] = {}
    for partition, spans in stored.items():
        for span in spans:
            read = counted.get((partition, span.ledger), 0)
            if read < len(span):
                of_ledger = (F.col(c.SOURCE) == partition) & (F.col(c.POSITION_LEDGER) == span.ledger)
                rows = whole.where(of_ledger).select(c.POSITION_ENTRY).collect() if read else []
                missing.setdefault(partition, []).extend(without(span, {row[c.POSITION_ENTRY] for row in rows}))
    return missing
