"""Sends copies of messages to RETRY and DLQ exactly once, and finds out which copies the brokers have.

Sequence id = chunk number * 2^20 + index in the chunk. Chunk numbers ascend over the life of the receipts table and the
rows of a chunk have a fixed order, so a second try sends the same ids and the broker drops those that it has.
streaming/sweep/receipt_and_copy.py makes the copies; their contents and due times: udfs/requests/retry.py and
udfs/requests/disposition.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming.adapters.pulsar.publish import last_sequence_ids, publish
from streaming.adapters.pulsar.readers.frames import largest_message
from streaming.adapters.pulsar.readers.read import numbered, read
from streaming.clients import admin_for
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import Copy
from udfs import columns as c
from udfs.requests.retry import COPY_ID, DEFAULT_MESSAGE_BYTES, MAX_SHOWN_BYTES, fitting
from udfs.units import MAX_ROWS_PER_CHUNK

MAX_CHUNK = (1 << 63) // MAX_ROWS_PER_CHUNK - 1


def sequence_id(chunk: int, index: int) -> int:
    """Pack a chunk (1 …) and an index in it (0 …) into 63 bits. Raises ReaperError if they do not fit."""
    if not 1 <= chunk <= MAX_CHUNK or not 0 <= index < MAX_ROWS_PER_CHUNK:
        raise ReaperError(f"chunk {chunk}, row {index} does not fit a sequence id; lower service.chunk_rows")
    # not the source position: retries do not fall due in the order in which they were written, and ids must ascend
    return chunk * MAX_ROWS_PER_CHUNK + index


def chunk_of(sequence_id: int) -> int:
    """Return the chunk of a copy with this sequence id."""
    return sequence_id // MAX_ROWS_PER_CHUNK


@dataclass(frozen=True, slots=True)
class PulsarCopies:
    """Sends copies to the target topics, and finds stored copies there."""

    settings: Settings
    targets: Mapping[str, int]  # topic -> its number of partitions; 0: not partitioned

    def send(self, receipts: DataFrame, table_id: str, stored: Mapping[str, int]) -> None:
        """Send the copy of every receipt that has one to its target partition. Raises what the executors raise.

        stored: partition -> sequence id of its newest stored copy; copies up to this id are not sent.
        """
        (
            receipts.where(F.col(c.TARGET).isNotNull())
            # a producer for each target partition: with producers for source partitions, two queries would fence each
            # other
            .repartition(c.TARGET, c.TARGET_PARTITION)
            # a second try must give each row the same index, and so the same sequence id
            .sortWithinPartitions(c.TARGET, c.TARGET_PARTITION, *c.POSITION)
            .foreachPartition(
                _Publisher(
                    settings=self.settings.pulsar,
                    table_id=table_id,
                    producer_prefix=self._producer_prefix(table_id),
                    stored=dict(stored),
                    limits=self._limits(),
                    retry_topic=self.settings.topics.retry,
                )
            )
        )

    def _limits(self) -> dict[str, int]:
        """Return, for each topic whose own policy limits the size of messages, that size in bytes."""
        with admin_for(self.settings) as admin:
            return {topic: most for topic in self.targets if (most := admin.max_message_bytes(topic))}

    def remembered(self, table_id: str) -> dict[str, int]:
        """Return, by partition, the sequence id of the newest copy that its broker remembers; -1 if it remembers none.

        Takes the producers from any other instance. Call it before a try sends its first copy: the Pulsar client sends
        a copy again if the acknowledgement is missing, so later the caller could not tell a copy of this try, which the
        client has sent twice, from a copy of an earlier try.
        """
        names = [
            (_partition(topic, number), f"{self._producer_prefix(table_id)}-{number}")
            for topic, partitions in self.targets.items()
            for number in (range(partitions) if partitions else (-1,))
        ]
        return last_sequence_ids(self.settings.pulsar, dict(names))

    def stored(self, partitions: Iterable[str], table_id: str, since_ms: int) -> dict[str, int]:
        """Return, by partition, the sequence id of the newest of the table's copies published since `since_ms`.

        Partitions without such a copy are omitted. Copies are stored in the order of their sequence ids, so all earlier
        copies are stored too. Raises UnavailableError, RefusedError.
        """
        newest: dict[str, int] = {}
        with admin_for(self.settings) as admin:
            for partition in partitions:
                # a broker forgets a producer after hours of silence; then only the COPY_ID of stored messages shows
                # which copies exist
                ledger_id, entry_id = admin.position_at(partition, since_ms)
                after = {partition: (ledger_id, entry_id - 1)}
                messages = read(self.settings.pulsar, admin.last_positions(partition), after=after)
                for number, _message in numbered(messages, COPY_ID, table_id):
                    newest[partition] = max(newest.get(partition, 0), number)
        return newest

    def _producer_prefix(self, table_id: str) -> str:
        # the name contains the table's id, because the sequence ids of a new table start again at 1
        return f"ledger-reaper-{self.settings.service.name}-{table_id}"


def _partition(topic: str, number: int) -> str:
    return topic if number < 0 else f"{topic}-partition-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publisher:
    """Publishes, in an executor, the copies of the receipts of one or more target partitions, in order."""

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
        """Return how large a copy may be."""
        # the broker is asked each time, because its configuration may change: a copy that is too large would be refused
        # again and again and block all other requests
        return min(largest_message(self.settings, partition), self.limits.get(topic) or DEFAULT_MESSAGE_BYTES)

    def _most_shown(self, topic: str) -> int | None:
        # a delayed request must be readable later, with any messages that others write into RETRY before it
        return MAX_SHOWN_BYTES if topic == self.retry_topic else None

    def _copies(
        self,
        partition: str,
        rows: Iterator[Any],
        most_bytes: int = DEFAULT_MESSAGE_BYTES,
        most_shown: int | None = None,
    ) -> Iterator[Copy]:
        last = self.stored.get(partition, 0)
        for index, row in enumerate(rows):
            number = sequence_id(row[c.CHUNK], index)
            if number <= last:
                continue
            payload, key, properties = fitting(
                bytes(row[c.PAYLOAD] or b""),
                bytes(row[c.MESSAGE_KEY] or b""),
                row[c.MESSAGE_PROPERTIES] or {},
                most_bytes,
                most_shown=most_shown,
            )
            yield Copy(
                sequence_id=number,
                key=key,
                payload=payload,
                properties=properties | {COPY_ID: f"{self.table_id}/{number}"},
                delay_ms=row[c.DELAY_MS] or 0,
            )
