"""Publishes what receipts say is to go to RETRY and DLQ, exactly once.

Sequence id = chunk number * 2^20 + place in the chunk: chunks ascend over the life of the receipts table and their
rows have one order, so a second try sends the same ids and the broker drops what it has (DESIGN.md: why not the
source position). The producer's name carries the table's id: another table starts another count.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming import columns as c
from streaming.adapters.pulsar_publish import Copy, publish
from streaming.config import PulsarSettings
from streaming.errors import ReaperError

MAX_ROWS_PER_CHUNK = 1 << 20
MAX_CHUNK = (1 << 63) // MAX_ROWS_PER_CHUNK - 1


def sequence_id(chunk: int, place: int) -> int:
    """Pack chunk (1 …) and place in it (0 …) into 63 bits. Raises ReaperError for what does not fit."""
    if not 1 <= chunk <= MAX_CHUNK or not 0 <= place < MAX_ROWS_PER_CHUNK:
        raise ReaperError(f"chunk {chunk}, row {place} does not fit a sequence id; lower service.chunk_rows")
    return chunk * MAX_ROWS_PER_CHUNK + place


def publish_copies(receipts: DataFrame, settings: PulsarSettings, producer_prefix: str) -> None:
    """Send every receipt's copy to its target partition. Raises what the executors raise."""
    (
        receipts.where(F.col(c.TARGET).isNotNull())
        .repartition(c.TARGET, c.TARGET_PARTITION)
        .sortWithinPartitions(c.TARGET, c.TARGET_PARTITION, *c.POSITION)
        .foreachPartition(_Publisher(settings, producer_prefix))
    )


@dataclass(frozen=True, slots=True)
class _Publisher:
    settings: PulsarSettings
    producer_prefix: str

    def __call__(self, rows: Iterable[Row]) -> None:
        for (topic, partition), group in groupby(rows, key=lambda row: (row[c.TARGET], row[c.TARGET_PARTITION])):
            name = topic if partition < 0 else f"{topic}-partition-{partition}"
            publish(self.settings, name, f"{self.producer_prefix}-{partition}", self._copies(group))

    @staticmethod
    def _copies(rows: Iterator[Any]) -> Iterator[Copy]:
        for place, row in enumerate(rows):
            yield Copy(
                sequence_id(row[c.CHUNK], place),
                row[c.MESSAGE_KEY],
                bytes(row[c.PAYLOAD] or b""),
                row[c.MESSAGE_PROPERTIES] or {},
                row[c.DELAY_MS] or 0,
            )
