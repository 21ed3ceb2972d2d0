"""The batches of our Spark source, which are complete: reads them in slots, and reports what Pulsar deleted unread."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.queries.delivery.completion import Completed, Extent
from streaming.queries.delivery.read_end import ReadEnd, end_in
from streaming.queries.delivery.slots import ReadSlots
from streaming.queries.delivery.withheld import Withheld
from streaming.state.notes.lost_entries import Loss
from udfs import columns as c

Losses = Mapping[str, Sequence[Loss]]  # by partition


@dataclass(slots=True, kw_only=True)
class SourceBatches:
    """Implements deletion.service.Complete. One per service; queries are known by name.

    Args:
        report: called with what Pulsar deleted before it was read, before the batch is processed.
    """

    slots: ReadSlots
    report: Callable[[Losses], None]
    monotonic: Callable[[], float] = time.monotonic
    _withheld: dict[str, Withheld] = field(default_factory=dict)

    def __call__(self, query: str, _batch_id: int, delivered: DataFrame) -> Completed:
        """Return the messages of a batch, whose rows Spark computes and keeps during this call."""
        ends = self._ends(query, delivered)
        if lost := {partition: end.lost for partition, end in ends.items() if end.lost}:
            self.report(lost)
        ledgers = [end.oldest_ledger for end in ends.values() if end.oldest_ledger is not None]
        last_rows = {partition: end.last_row for partition, end in ends.items() if end.last_row >= 0}
        return Completed(
            delivered.where(F.col(c.POSITION_BATCH).isNotNull()),
            Extent(last_rows, min(ledgers)) if ledgers else None,
            {partition: end.empty for partition, end in ends.items() if end.empty},
        )

    def gives_up(self, query: str) -> bool:
        """Whether the query's next start is to give up entries that brokers have not returned for long."""
        withheld = self._withheld.get(query)
        return withheld is not None and withheld.is_too_long(self.monotonic())

    def forget(self, query: str) -> None:
        """Drop what is known about a query whose topic is gone."""
        self._withheld.pop(query, None)

    def _ends(self, query: str, delivered: DataFrame) -> dict[str, ReadEnd]:
        withheld = self._withheld.setdefault(query, Withheld())
        ends = delivered.where(F.col(c.POSITION_BATCH).isNull()).select(c.SOURCE, c.PAYLOAD)
        with self.slots.of(query, delivered.rdd.getNumPartitions()), withheld.noted(self.monotonic()):
            return {row[c.SOURCE]: end_in(row) for row in ends.collect()}
