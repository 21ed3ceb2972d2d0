"""The batches of our Spark source, which are complete: reads them in slots, and reports what Pulsar deleted unread."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.errors import UnavailableError
from streaming.queries.delivery.completion import MOST_SECONDS_WHILE_OTHERS_WAIT, Completed, Extent, base_seconds
from streaming.queries.delivery.read_end import ReadEnd, end_in
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.delivery.withheld import Withheld
from streaming.spark.job_limit import limited
from streaming.spark.submitted import is_local
from streaming.state.notes.lost_entries import Loss
from udfs import columns as c

Losses = Mapping[str, Sequence[Loss]]  # by partition


@dataclass(slots=True, kw_only=True)
class SourceBatches:
    """Implements deletion.service.Complete. One per service; queries are known by name.

    Args:
        report: called with what Pulsar deleted before it was read, before the batch is processed.
        reading_seconds: service.reading_seconds.
    """

    slots: ReadSlots
    reading_seconds: float
    report: Callable[[Losses], None]
    monotonic: Callable[[], float] = time.monotonic
    _withheld: dict[str, Withheld] = field(default_factory=dict)

    def __call__(self, query: str, batch_id: int, delivered: DataFrame) -> Completed:
        """Return the messages of a batch, whose rows Spark computes and keeps during this call."""
        ends = self._ends(query, batch_id, delivered)
        if lost := {partition: end.lost for partition, end in ends.items() if end.lost}:
            self.report(lost)
        ledgers = [end.oldest_ledger for end in ends.values() if end.oldest_ledger is not None]
        last_rows = {partition: end.last_row for partition, end in ends.items() if end.last_row >= 0}

        def confirm() -> None:
            # Spark reads a partition again if its executor is lost. By then, Pulsar may have deleted entries, or may
            # return others than before; then numbers of rows shift between chunks, and messages would be in none.
            if not is_local(_master(delivered)) and self._ends(query, batch_id, delivered) != ends:
                raise UnavailableError(
                    f"{query}, batch {batch_id}: an executor was lost, and Pulsar returned other entries than before; "
                    "the batch runs again"
                )

        return Completed(
            delivered.where(F.col(c.POSITION_BATCH).isNotNull()),
            Extent(last_rows, min(ledgers)) if ledgers else None,
            {partition: end.empty for partition, end in ends.items() if end.empty},
            confirm,
        )

    def gives_up(self, query: str) -> bool:
        """Whether the query's next start is to give up entries that brokers have not returned for long."""
        withheld = self._withheld.get(query)
        return withheld is not None and withheld.is_too_long(self.monotonic())

    def forget(self, query: str) -> None:
        """Drop what is known about a query whose topic is gone."""
        self._withheld.pop(query, None)

    def _ends(self, query: str, batch_id: int, delivered: DataFrame) -> dict[str, ReadEnd]:
        withheld = self._withheld.setdefault(query, Withheld())
        spark = delivered.sparkSession
        base_s = base_seconds(_master(delivered), self.reading_seconds)
        with self.slots.of(query, delivered.rdd.getNumPartitions()) as others_wait:

            def seconds() -> float:
                # A sender's entries may take minutes, since brokers do not return some. Such a batch is read again in
                # the slots of queries that have failed, where it may take as long as it needs.
                may_wait = self.slots.is_slow(query) or not others_wait()
                return math.inf if may_wait else base_s + MOST_SECONDS_WHILE_OTHERS_WAIT

            what = f"{query}, batch {batch_id}: reading"
            with withheld.noted(self.monotonic()), limited(spark, seconds, what):
                return {row[c.SOURCE]: end_in(row) for row in ends_of(delivered).collect()}


def _master(rows: DataFrame) -> str:
    return rows.sparkSession.sparkContext.master or ""


def ends_of(delivered: DataFrame) -> DataFrame:
    """Return the last row of each partition's read (read_end.end_row)."""
    return delivered.where(F.col(c.POSITION_BATCH).isNull()).select(c.SOURCE, c.PAYLOAD)
