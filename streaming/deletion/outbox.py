"""Publishes what receipts say is to go to RETRY and DLQ, exactly once.

Sequence id = chunk number * 2^20 + place in the chunk: chunks ascend over the life of the receipts table and their
rows have one order, so a second try sends the same ids and the broker drops what it has
(docs/decisions/0010: why not the source position). The producer's name carries the table's id: another table starts
another count.
How far this got is marked outside the table: a table that knows less than the mark has lost commits.
A broker forgets a producer after hours of silence; each copy then tells by its COPY_ID that it is there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming.adapters.pulsar.publish import Copy, last_sequence_ids, publish
from streaming.adapters.pulsar.read import numbered, read
from streaming.clients import admin_for
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.errors import ReaperError, SafetyError
from udfs import columns as c
from udfs.retry import COPY_ID, fitting

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


def publish_copies(
    receipts: DataFrame, settings: PulsarSettings, table_id: str, producer_prefix: str, stored: Mapping[str, int]
) -> None:
    """Send every receipt's copy to its target partition, but for what is stored: up to which sequence id, by partition.

    Raises what the executors raise.
    """
    (
        receipts.where(F.col(c.TARGET).isNotNull())
        .repartition(c.TARGET, c.TARGET_PARTITION)
        .sortWithinPartitions(c.TARGET, c.TARGET_PARTITION, *c.POSITION)
        .foreachPartition(_Publisher(settings, table_id, producer_prefix, dict(stored)))
    )


def remembered_copies(targets: Mapping[str, int], settings: PulsarSettings, producer_prefix: str) -> dict[str, int]:
    """Sequence id of the newest copy that a broker remembers, by partition (full name); -1: of none.

    targets: topic -> how many partitions, 0: none. Takes the producers from any other instance. Asked before the first
    publication: while one goes on the client sends again by itself what it has no answer to, and is told of duplicates.
    """
    names = [
        (_partition(topic, number), f"{producer_prefix}-{number}")
        for topic, partitions in targets.items()
        for number in (range(partitions) if partitions else (-1,))
    ]
    return last_sequence_ids(settings, dict(names))


def refuse_outdated(remembered: Mapping[str, int], newest_chunk: int) -> None:
    """Raise SafetyError where a broker has copies of chunks that the table does not know."""
    for name, last in remembered.items():
        if last >= sequence_id(newest_chunk + 1, 0):
            raise SafetyError(
                f"the receipts in state.dir end with chunk {newest_chunk}, and {name} has copies of chunk "
                f"{last // MAX_ROWS_PER_CHUNK}. {_OUTDATED}"
            )


def stored_copies(settings: Settings, partitions: Iterable[str], table_id: str, since_ms: int) -> dict[str, int]:
    """Sequence id of the newest of a table's copies that was published since then, by partition; without: left out.

    Copies are stored in the order of their sequence ids. Raises UnavailableError, RefusedError.
    """
    found: dict[str, int] = {}
    with admin_for(settings) as admin:
        for partition in partitions:
            ledger_id, entry_id = admin.position_at(partition, since_ms)
            after = {partition: (ledger_id, entry_id - 1)}
            messages = read(settings.pulsar, admin.last_positions(partition), after=after)
            for number, _message in numbered(messages, COPY_ID, table_id):
                found[partition] = max(found.get(partition, 0), number)
    return found


def _partition(topic: str, number: int) -> str:
    return topic if number < 0 else f"{topic}-partition-{number}"


@dataclass(frozen=True, slots=True)
class _Publisher:
    settings: PulsarSettings
    table_id: str
    producer_prefix: str
    stored: Mapping[str, int]

    def __call__(self, rows: Iterable[Row]) -> None:
        for (topic, number), group in groupby(rows, key=lambda row: (row[c.TARGET], row[c.TARGET_PARTITION])):
            partition = _partition(topic, number)
            publish(self.settings, partition, f"{self.producer_prefix}-{number}", self._copies(partition, group))

    def _copies(self, partition: str, rows: Iterator[Any]) -> Iterator[Copy]:
        last = self.stored.get(partition, 0)
        for place, row in enumerate(rows):
            this = sequence_id(row[c.CHUNK], place)
            if this <= last:
                continue
            payload, key, properties = fitting(
                bytes(row[c.PAYLOAD] or b""), bytes(row[c.MESSAGE_KEY] or b""), row[c.MESSAGE_PROPERTIES] or {}
            )
            yield Copy(this, key, payload, properties | {COPY_ID: f"{self.table_id}/{this}"}, row[c.DELAY_MS] or 0)
