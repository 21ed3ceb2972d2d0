"""Uses the receipts as an outbox: counts each committed chunk, then publishes its copies for RETRY and DLQ.

No chunk starts before the previous chunk was published; after an interruption, `finish` completes the open chunk.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from streaming.deletion.chunks.copies import PulsarCopies, chunk_of
from streaming.deletion.gate import Gate
from streaming.deletion.instance import Coordination
from streaming.deletion.outages import Outages
from streaming.errors import FencedError, SafetyError
from streaming.limits.enforcement import BlastRadius
from streaming.state.receipts import ChunkSummary, Receipts
from udfs.records import Outcome

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
    copies: PulsarCopies
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
        # not the published chunks: a broker forgets a producer after hours of silence, and would then store the copies
        # twice
        while self._published < self.receipts.newest_chunk:
            self._publish(self._published + 1)

    @property
    def oldest_unfinished(self) -> int:
        """The first committed chunk that has not been published; 0 if all have been."""
        if self._published < 0:
            raise AssertionError("a chunk before publish_again")
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
        # the mark is outside the receipts table: a table that contains less has lost commits, and would reuse chunk
        # numbers
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
        """Return the newest stored copy of each partition whose broker has forgotten the producer.

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
        summary = self.receipts.summary(chunk)  # if another run wrote it, one of the two is outdated
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
