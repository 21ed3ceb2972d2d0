"""Publishes what receipts say is to go to RETRY and DLQ, exactly once.

Sequence id = chunk number * 2^20 + place in the chunk: chunks ascend over the life of the receipts table and their
rows have one order, so a second try sends the same ids and the broker drops what it has (DESIGN.md: why not the
source position). The producer's name carries the table's id: another table starts another count.
How far this got is marked outside the table: a table that knows less than the mark has lost commits.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming import columns as c
from streaming.adapters.pulsar_publish import Copy, last_sequence_ids, publish
from streaming.config import PulsarSettings
from streaming.errors import ReaperError, SafetyError
from udfs.retry import fitting

MAX_ROWS_PER_CHUNK = 1 << 20
MAX_CHUNK = (1 << 63) // MAX_ROWS_PER_CHUNK - 1

_MARK = re.compile(r"([^:]+):(\d+)(?::(\d+))?")
_OUTDATED = (
    "An older state.dir was restored, or a power loss took its last commits; new copies for RETRY and DLQ would be "
    "dropped as duplicates. Restore the newer state.dir; if it is gone, move state.dir and the checkpoints away and "
    "start again: all that the topics still hold is then looked at anew (checkpoints/README.md)"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far publishing got: chunks of a table up to `done` have gone out, up to `begun` may have."""

    table_id: str
    done: int
    begun: int

    @classmethod
    def parse(cls, text: str, table_id: str) -> Self | None:
        """What is marked of that table; None: nothing."""
        found = _MARK.fullmatch(text)
        if found is None or found[1] != table_id:
            return None
        return cls(table_id, int(found[2]), max(int(found[2]), int(found[3] or 0)))

    def __str__(self) -> str:
        """`<table>:<done>`, and `:<begun>` where that is further."""
        return f"{self.table_id}:{self.done}" + (f":{self.begun}" if self.begun > self.done else "")

    def check(self, newest_chunk: int) -> None:
        """Raise SafetyError where the table knows less than was published from it."""
        if self.begun > newest_chunk:
            raise SafetyError(
                f"the receipts in state.dir end with chunk {newest_chunk}, and chunk {self.begun} has been published. "
                f"{_OUTDATED}"
            )


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


def refuse_outdated(
    targets: Mapping[str, int], settings: PulsarSettings, producer_prefix: str, newest_chunk: int
) -> None:
    """Raise SafetyError where a broker has copies of chunks that the table does not know.

    targets: topic -> how many partitions, 0: none. Takes the producers from any other instance. Asked before the first
    publication: while one goes on the client sends again by itself what it has no answer to, and is told of duplicates.
    """
    names = [
        (_partition(topic, number), f"{producer_prefix}-{number}")
        for topic, partitions in targets.items()
        for number in (range(partitions) if partitions else (-1,))
    ]
    for name, last in last_sequence_ids(settings, dict(names)).items():
        if last >= sequence_id(newest_chunk + 1, 0):
            raise SafetyError(
                f"the receipts in state.dir end with chunk {newest_chunk}, and {name} has copies of chunk "
                f"{last // MAX_ROWS_PER_CHUNK}. {_OUTDATED}"
            )


def _partition(topic: str, number: int) -> str:
    return topic if number < 0 else f"{topic}-partition-{number}"


@dataclass(frozen=True, slots=True)
class _Publisher:
    settings: PulsarSettings
    producer_prefix: str

    def __call__(self, rows: Iterable[Row]) -> None:
        for (topic, partition), group in groupby(rows, key=lambda row: (row[c.TARGET], row[c.TARGET_PARTITION])):
            publish(
                self.settings, _partition(topic, partition), f"{self.producer_prefix}-{partition}", self._copies(group)
            )

    @staticmethod
    def _copies(rows: Iterator[Any]) -> Iterator[Copy]:
        for place, row in enumerate(rows):
            payload, key, properties = fitting(
                bytes(row[c.PAYLOAD] or b""), bytes(row[c.MESSAGE_KEY] or b""), row[c.MESSAGE_PROPERTIES] or {}
            )
            yield Copy(sequence_id(row[c.CHUNK], place), key, payload, properties, row[c.DELAY_MS] or 0)
