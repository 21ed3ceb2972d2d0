"""The receipts as an outbox: each committed chunk is counted, then its copies for RETRY and DLQ are published.

No chunk is begun before the one before it has been published; `settle` sees to what an interrupted one left undone.
How far publishing got is marked outside the receipts table: a table that knows less than the mark has lost commits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from streaming.deletion.copies import PulsarCopies, chunk_of
from streaming.deletion.gate import Gate
from streaming.deletion.instance import Coordination
from streaming.deletion.outages import Outages
from streaming.errors import FencedError, SafetyError
from streaming.limits.blast_radius import BlastRadius
from streaming.state.receipts import ChunkSummary, Receipts
from udfs.records import Outcome

_CLOCKS_DIFFER_MS = 3600 * 1000  # at most: the clock of a killed run's machine, and ZooKeeper's
_MARK = re.compile(r"([^:]+):(\d+)(?::(\d+))?")
_OUTDATED = (
    "An older state.dir was restored, or a power loss took its last commits; new copies for RETRY and DLQ would be "
    "dropped as duplicates. Restore the newer state.dir; if it is gone, move state.dir and the checkpoints away and "
    "start again: all that the topics still hold is then looked at anew (checkpoints/README.md)"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far publishing got: chunks of a table up to `done` have gone out, and those up to `begun` may have."""

    table_id: str
    done: int
    begun: int

    @classmethod
    def parse(cls, text: str, table_id: str) -> Self | None:
        """The mark of that table; None where there is none."""
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


def refuse_outdated(copies: Mapping[str, int], newest_chunk: int) -> None:
    """Raise SafetyError where a partition has copies of chunks that the table does not know.

    copies: partition -> sequence id of its newest copy.
    """
    for partition, last in copies.items():
        if chunk_of(last) > newest_chunk:
            raise SafetyError(
                f"the receipts in state.dir end with chunk {newest_chunk}, and {partition} has copies of chunk "
                f"{chunk_of(last)}. {_OUTDATED}"
            )


@dataclass(slots=True)
class Outbox:
    """One per service; only whoever has the turn may call it. epoch: the version that proves that we are the one."""

    receipts: Receipts
    copies: PulsarCopies
    coordination: Coordination
    blast_radius: BlastRadius
    gate: Gate
    outages: Outages
    epoch: int
    _published: int = -1  # the newest chunk that has gone out; not known before publish_again
    _counted: int = 0
    _begun: int = 0  # the newest chunk of which copies may have been sent

    def publish_again(self) -> None:
        """At start: publish each chunk that is not known to have gone out; the broker drops the copies that it has.

        What is known to have gone out is not sent again: a broker forgets a producer after hours of silence, and would
        store it twice. For the same reason each try but a chunk's first asks brokers and topics again.
        Raises SafetyError where more has gone out than the receipts know, StopRequestedError.
        """
        self.outages.wait_through(self.receipts.sync)
        self.outages.wait_through(self._find_out_what_is_published)
        while self._published < self.receipts.newest_chunk:
            self._publish(self._published + 1)

    @property
    def oldest_unfinished(self) -> int:
        """The first committed chunk that has not been published; 0 where all have been."""
        if self._published < 0:
            raise AssertionError("a chunk before publish_again")
        return self._published + 1 if self._published < self.receipts.newest_chunk else 0

    def finish(self, chunk: int) -> ChunkSummary:
        """Count and publish a committed chunk. Where this breaks off, whoever has the next turn calls it again."""
        summary = self._own(chunk)
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
        if mark is not None:
            mark.check(newest)
        refuse_outdated(self.copies.remembered(table_id), newest)
        # no chunk is begun before the one before it has gone out
        self._published = max(0, newest - 1) if mark is None else mark.done
        self._begun = newest if mark is None else mark.begun
        self._counted = newest  # receipts and journal told the blast radius what earlier runs deleted

    def _publish(self, chunk: int) -> None:
        def send() -> None:
            self.gate.refuse_if_outdated()  # else a second try would take the producers from the newer instance
            stored = self._stored(chunk) if chunk <= self._begun else {}
            self.coordination.mark_published(str(Mark(self.receipts.table_id, self._published, chunk)))
            self._begun = chunk
            self.copies.send(self.receipts.of_chunk(chunk), self.receipts.table_id, stored)

        self.outages.wait_through(send)
        self._mark(chunk)

    def _stored(self, chunk: int) -> Mapping[str, int]:
        """The newest stored copy of each partition whose broker has forgotten the producer.

        An earlier try may have sent copies, hours ago. The other brokers drop what they have.
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
        """The summary of a chunk that we committed. If another run wrote it, one of us is outdated: this one stops."""
        summary = self.receipts.summary(chunk)
        if summary.epochs != {self.epoch}:
            failure = FencedError(f"chunk {chunk} of the receipts was written by another run; this one stops")
            self.outages.fail(failure)
            raise failure
        return summary

    def _count(self, chunk: int, summary: ChunkSummary) -> None:
        """Tell the blast radius, before another chunk is judged."""
        # a task that ran twice finds ALREADY_GONE what it has deleted itself
        is_doubtful = any(outcome == Outcome.ALREADY_GONE for outcome, _ in summary.outcomes)
        self.blast_radius.count(self.receipts.deleted_by_owner(chunk), is_doubtful=is_doubtful)
