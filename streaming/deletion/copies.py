"""Copies of messages for RETRY and DLQ, on the brokers: sends them exactly once, and finds out which are there.

Sequence id = chunk number * 2^20 + place in the chunk. Chunk numbers ascend over the life of the receipts table and the
rows of a chunk have one order, so a second try sends the same ids and the broker drops those that it has. (The source
position would not do: retries fall due in another order than they were written.) The producer's name carries the
table's id, so that another table starts another count.
What a copy contains and when it is due: streaming/sweep/receipt.py, udfs/retry.py and udfs/disposition.py.
A broker forgets a producer after hours of silence; then the COPY_ID of the stored copies tells which are there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming.adapters.pulsar.frames import largest_message
from streaming.adapters.pulsar.publish import Copy, last_sequence_ids, publish
from streaming.adapters.pulsar.read import numbered, read
from streaming.clients import admin_for
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from udfs import columns as c
from udfs.retry import COPY_ID, DEFAULT_MESSAGE_BYTES, MAX_SHOWN_BYTES, fitting
from udfs.units import MAX_ROWS_PER_CHUNK

MAX_CHUNK = (1 << 63) // MAX_ROWS_PER_CHUNK - 1


def sequence_id(chunk: int, place: int) -> int:
    """Pack chunk (1 …) and place in it (0 …) into 63 bits. Raises ReaperError for what does not fit."""
    if not 1 <= chunk <= MAX_CHUNK or not 0 <= place < MAX_ROWS_PER_CHUNK:
        raise ReaperError(f"chunk {chunk}, row {place} does not fit a sequence id; lower service.chunk_rows")
    return chunk * MAX_ROWS_PER_CHUNK + place


def chunk_of(sequence_id: int) -> int:
    """The chunk of a copy with this sequence id."""
    return sequence_id // MAX_ROWS_PER_CHUNK


@dataclass(frozen=True, slots=True)
class PulsarCopies:
    """The copies in the target topics. targets: topic -> how many partitions it has, 0: not partitioned."""

    settings: Settings
    targets: Mapping[str, int]

    def send(self, receipts: DataFrame, table_id: str, stored: Mapping[str, int]) -> None:
        """Send the copy of every receipt that has one to its target partition. Raises what the executors raise.

        stored: partition -> sequence id of the newest copy that is there already; no copy up to that one is sent.
        """
        (
            receipts.where(F.col(c.TARGET).isNotNull())
            .repartition(c.TARGET, c.TARGET_PARTITION)
            .sortWithinPartitions(c.TARGET, c.TARGET_PARTITION, *c.POSITION)
            .foreachPartition(
                _Publisher(
                    self.settings.pulsar,
                    table_id,
                    self._producer_prefix(table_id),
                    dict(stored),
                    self._limits(),
                    self.settings.topics.retry,
                )
            )
        )

    def _limits(self) -> dict[str, int]:
        """Topic -> how many bytes its own policy lets a message have, where it has one."""
        with admin_for(self.settings) as admin:
            return {topic: most for topic in self.targets if (most := admin.max_message_bytes(topic))}

    def remembered(self, table_id: str) -> dict[str, int]:
        """Partition -> sequence id of the newest copy that its broker remembers; -1 where it remembers none.

        Takes the producers from any other instance. To be asked before the first copy is sent, not afterwards: the
        client sends again by itself what has no answer yet, and its own second try then looks like a duplicate.
        """
        names = [
            (_partition(topic, number), f"{self._producer_prefix(table_id)}-{number}")
            for topic, partitions in self.targets.items()
            for number in (range(partitions) if partitions else (-1,))
        ]
        return last_sequence_ids(self.settings.pulsar, dict(names))

    def stored(self, partitions: Iterable[str], table_id: str, since_ms: int) -> dict[str, int]:
        """Partition -> sequence id of the newest of the table's copies that was published since then.

        Partitions without one are left out. Copies are stored in the order of their sequence ids, so all earlier ones
        are there too. Raises UnavailableError, RefusedError.
        """
        found: dict[str, int] = {}
        with admin_for(self.settings) as admin:
            for partition in partitions:
                ledger_id, entry_id = admin.position_at(partition, since_ms)
                after = {partition: (ledger_id, entry_id - 1)}
                messages = read(self.settings.pulsar, admin.last_positions(partition), after=after)
                for number, _message in numbered(messages, COPY_ID, table_id):
                    found[partition] = max(found.get(partition, 0), number)
        return found

    def _producer_prefix(self, table_id: str) -> str:
        return f"ledger-reaper-{self.settings.service.name}-{table_id}"


def _partition(topic: str, number: int) -> str:
    return topic if number < 0 else f"{topic}-partition-{number}"


@dataclass(frozen=True, slots=True)
class _Publisher:
    """What an executor does with the receipts of one or more target partitions, in order."""

    settings: PulsarSettings
    table_id: str
    producer_prefix: str
    stored: Mapping[str, int]
    limits: Mapping[str, int] = field(default_factory=dict)
    retry_topic: str = ""

    def __call__(self, rows: Iterable[Row]) -> None:
        for (topic, number), group in groupby(rows, key=lambda row: (row[c.TARGET], row[c.TARGET_PARTITION])):
            partition = _partition(topic, number)
            most_bytes = self._most_bytes(topic, partition)
            copies = self._copies(partition, group, most_bytes, self._most_shown(topic))
            publish(self.settings, partition, f"{self.producer_prefix}-{number}", copies)

    def _most_bytes(self, topic: str, partition: str) -> int:
        """How large a copy may be. We ask each time: what is configured may change, and a copy that is too large would
        be refused again and again while nothing else is worked off.
        """
        return min(largest_message(self.settings, partition), self.limits.get(topic) or DEFAULT_MESSAGE_BYTES)

    def _most_shown(self, topic: str) -> int | None:
        """What is put off has to be read again, whatever others write into RETRY before it."""
        return MAX_SHOWN_BYTES if topic == self.retry_topic else None

    def _copies(
        self,
        partition: str,
        rows: Iterator[Any],
        most_bytes: int = DEFAULT_MESSAGE_BYTES,
        most_shown: int | None = None,
    ) -> Iterator[Copy]:
        last = self.stored.get(partition, 0)
        for place, row in enumerate(rows):
            this = sequence_id(row[c.CHUNK], place)
            if this <= last:
                continue
            payload, key, properties = fitting(
                bytes(row[c.PAYLOAD] or b""),
                bytes(row[c.MESSAGE_KEY] or b""),
                row[c.MESSAGE_PROPERTIES] or {},
                most_bytes,
                most_shown=most_shown,
            )
            yield Copy(this, key, payload, properties | {COPY_ID: f"{self.table_id}/{this}"}, row[c.DELAY_MS] or 0)
