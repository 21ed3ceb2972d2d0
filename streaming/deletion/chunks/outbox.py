"""Uses the receipts as an outbox: counts each committed chunk, then publishes its copies for RETRY and DLQ, each once.

1. No chunk starts before the previous chunk was published; after an interruption, `finish` completes the open chunk.
2. A copy's sequence id = chunk number * 2^20 + index in the chunk. Chunk numbers ascend over the life of the receipts
   table and the rows of a chunk have a fixed order, so a second try sends the same ids and the broker drops those that
   it has.
3. streaming/sweep/messages.py makes the copies; their contents and due times: udfs/requests/retry.py.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from streaming.adapters.pulsar.publish import last_sequence_ids, publish
from streaming.adapters.pulsar.readers.frames import largest_message
from streaming.adapters.pulsar.readers.read import numbered, read
from streaming.clients import admin_for
from streaming.config.sections import PulsarSettings
from streaming.config.settings import Settings
from streaming.deletion.gate import Gate, Outages
from streaming.deletion.instance import Coordination
from streaming.errors import FencedError, ReaperError, SafetyError
from streaming.limits.enforcement import BlastRadius
from streaming.ports import Copy
from streaming.state.receipts import ChunkSummary, Receipts
from udfs import columns as c
from udfs.records import Outcome
from udfs.requests.retry import COPY_ID, DEFAULT_MESSAGE_BYTES, MAX_SHOWN_BYTES, fitting
from udfs.units import MAX_ROWS_PER_CHUNK

MAX_CHUNK = (1 << 63) // MAX_ROWS_PER_CHUNK - 1
_CLOCKS_DIFFER_MS = 3600 * 1000  # at most, between the clocks of a killed run's machine and of ZooKeeper
_MARK = re.compile(r"([^:]+):(\d+)(?::(\d+))?")
_OUTDATED = (
    "An older state.dir was restored, or a power loss took its last commits; new copies for RETRY and DLQ would be "
    "dropped as duplicates. Restore the newer state.dir; if it is gone, move state.dir and the checkpoints away and "
    "start again: everything that the topics still contain is then processed again (checkpoints/README.md)"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Records how far publishing got."""

    table_id: str
    done: int  # chunks up to this number have been published
    started: int  # chunks up to this number may have been published

    @classmethod
    def parse(cls, text: str, table_id: str) -> Self | None:
        """Return the mark if it belongs to that table, else None."""
        match = _MARK.fullmatch(text)
        if match is None or match[1] != table_id:
            return None
        return cls(table_id, int(match[2]), max(int(match[2]), int(match[3] or 0)))

    def __str__(self) -> str:
        """Return `<table>:<done>`, followed by `:<started>` if that is greater."""
        return f"{self.table_id}:{self.done}" + (f":{self.started}" if self.started > self.done else "")

    def check(self, newest_chunk: int) -> None:
        """Raise SafetyError if the table contains less than was published from it."""
        if self.started > newest_chunk:
            raise SafetyError(
                f"the receipts in state.dir end with chunk {newest_chunk}, and chunk {self.started} has been "
                f"published. {_OUTDATED}"
            )


def refuse_outdated(copies: Mapping[str, int], newest_chunk: int) -> None:
    """Raise SafetyError if a partition has copies of chunks that the table does not contain.

    copies: partition -> sequence id of its newest copy.
    """
    for partition, last in copies.items():
        if chunk_of(last) > newest_chunk:
            raise SafetyError(
                f"the receipts in state.dir end with chunk {newest_chunk}, and {partition} has copies of chunk "
                f"{chunk_of(last)}. {_OUTDATED}"
            )


@dataclass(slots=True, kw_only=True)
class Outbox:
    """One per service; the caller must hold the fair lock."""

    receipts: Receipts
    copies: "PulsarCopies"
    coordination: Coordination
    blast_radius: BlastRadius
    gate: Gate
    outages: Outages
    epoch: int  # the version that proves that this instance may delete
    _published: int = -1  # the newest published chunk; unknown before publish_again
    _counted: int = 0
    _started: int = 0  # the newest chunk whose copies may have been sent

    def publish_again(self) -> None:
        """At start: publish each chunk that is not known to be published; the broker drops copies that it has.

        Raises SafetyError if more was published than the receipts contain, StopRequestedError.
        """
        self.outages.wait_through(self.receipts.sync)
        self.outages.wait_through(self._find_out_what_is_published)
        # published chunks are not sent again: a broker forgets a producer after hours of silence, and would then store
        # their copies twice
        while self._published < self.receipts.newest_chunk:
            self._publish(self._published + 1)

    @property
    def oldest_unfinished(self) -> int:
        """The first committed chunk that has not been published; 0 if all have been."""
        if self._published < 0:
            raise AssertionError("oldest_unfinished was read before publish_again was called")
        return self._published + 1 if self._published < self.receipts.newest_chunk else 0

    def finish(self, chunk: int) -> ChunkSummary:
        """Count and publish a committed chunk. After an interruption, the next holder of the fair lock repeats it."""
        summary = self._own(chunk)
        # `deltalake` flushes nothing, and a copy must not outlive the receipt from which it was made (decision 8)
        self.outages.wait_through(self.receipts.sync)
        if self._counted < chunk:
            self.outages.wait_through(lambda: self._count(chunk, summary))
            self._counted = chunk
        if summary.copies:
            self._publish(chunk)
        else:
            self._mark(chunk)
        return summary

    def _find_out_what_is_published(self) -> None:
        newest, table_id = self.receipts.newest_chunk, self.receipts.table_id
        mark = Mark.parse(self.coordination.published(), table_id)
        # the mark is outside the receipts table: a table without a chunk that the mark names has lost commits, and
        # would reuse chunk numbers
        if mark is not None:
            mark.check(newest)
        refuse_outdated(self.copies.remembered(table_id), newest)
        # no chunk starts before the previous chunk was published
        self._published = max(0, newest - 1) if mark is None else mark.done
        self._started = newest if mark is None else mark.started
        self._counted = newest  # the blast radius has read earlier runs' deletes from receipts and journal

    def _publish(self, chunk: int) -> None:
        def send() -> None:
            self.gate.refuse_if_outdated()  # else a second try would take the producers from the newer instance
            # each try but the first asks brokers and topics again, because a broker may have forgotten the producer
            stored = self._stored(chunk) if chunk <= self._started else {}
            # before the first copy: after a kill, `started` names the chunk whose stored copies must be looked for
            self.coordination.mark_published(str(Mark(self.receipts.table_id, self._published, chunk)))
            self._started = chunk
            self.copies.send(self.receipts.of_chunk(chunk), self.receipts.table_id, stored)

        self.outages.wait_through(send)
        self._mark(chunk)

    def _stored(self, chunk: int) -> Mapping[str, int]:
        """Return the sequence id of the newest stored copy, for each partition whose broker forgot the producer.

        An earlier try may have sent copies hours ago. The other brokers drop the copies that they have.
        """
        table_id, newest = self.receipts.table_id, self.receipts.newest_chunk
        remembered = self.copies.remembered(table_id)
        refuse_outdated(remembered, newest)
        forgotten = [partition for partition, last in remembered.items() if last < 0]
        stored = self.copies.stored(forgotten, table_id, self.receipts.started_ms(chunk) - _CLOCKS_DIFFER_MS)
        refuse_outdated(stored, newest)
        return stored

    def _mark(self, chunk: int) -> None:
        mark = str(Mark(self.receipts.table_id, chunk, chunk))
        self.outages.wait_through(lambda: self.coordination.mark_published(mark))
        self._published = chunk

    def _own(self, chunk: int) -> ChunkSummary:
        """Return the summary of this run's chunk. Raises FencedError if another run wrote the chunk."""
        summary = self.receipts.summary(chunk)  # if another run wrote the chunk, that run or this one is outdated
        if summary.epochs != {self.epoch}:
            failure = FencedError(f"chunk {chunk} of the receipts was written by another run; this one stops")
            self.outages.fail(failure)
            raise failure
        return summary

    def _count(self, chunk: int, summary: ChunkSummary) -> None:
        """Count the chunk in the blast radius, before another chunk is judged."""
        # a task that ran twice reports its own deletes as ALREADY_GONE
        is_doubtful = any(outcome == Outcome.ALREADY_GONE for outcome, _ in summary.outcomes)
        self.blast_radius.count(self.receipts.deleted_by_owner(chunk), is_doubtful=is_doubtful)


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
        """Send each receipt's copy, if it has one, to the copy's target partition. Raises what the executors raise.

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
        # a delayed request must be readable later, whatever messages others write into RETRY before it
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
