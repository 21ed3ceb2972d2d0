"""A request for one message of a snapshot topic on its way through a sweep, and the ports of that sweep."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.state.journal import SnapshotEntry
from streaming.sweep.jobs import Job, OpenJob
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.owners.references import key_of
from udfs.paths import topic_of
from udfs.records import SnapshotContext
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import ReadValue


class Snapshots(Protocol):
    """The snapshot topics of namespaces. Every method raises UnavailableError, RefusedError."""

    def kinds(self, namespace: str) -> set[SnapshotKind]:
        """Return which of the topics the namespace has."""
        ...

    def last(self, namespace: str, kind: SnapshotKind) -> Position:
        """Return the position of the topic's newest entry."""
        ...

    def compacted(self, namespace: str, kind: SnapshotKind, with_bytes_of: Collection[str] = ()) -> Iterator[ReadValue]:
        """Yield the messages that a compacted reader gets: the last message of a key counts."""
        ...

    def stored(
        self, namespace: str, kind: SnapshotKind, after: Position = BEFORE_ALL, with_bytes_of: Collection[str] = ()
    ) -> Iterator[ReadValue]:
        """Yield the messages after a position in the topic's own ledgers."""
        ...

    def is_guarded(self, namespace: str) -> bool:
        """Whether a guard retains the segments that indexes name."""
        ...

    def send(self, namespace: str, kind: SnapshotKind, key: str, value: bytes | None) -> Position:
        """Send a value, or a tombstone (None), and return its position once it is stored."""
        ...

    def compact(self, namespace: str, kind: SnapshotKind) -> bool:
        """Have the topic compacted; False if the compaction did not end in time."""
        ...


class SnapshotJournal(Protocol):
    """Records messages before their keys get tombstones."""

    def write_snapshots(self, entries: Sequence[SnapshotEntry]) -> None:
        """Make entries durable; returns only then. Raises UnavailableError."""
        ...

    def newest_snapshots(self, topic: str, keys: Collection[str]) -> Mapping[str, tuple[Position, bytes]]:
        """Return position and bytes of the newest entry of each key that has one. Raises UnavailableError."""
        ...


@dataclass(slots=True, kw_only=True)
class SnapshotJob(OpenJob):
    """A job for one message."""

    context: SnapshotContext
    data: bytes = b""  # the bytes of the message, once they were read
    sent_at: Position | None = None  # the position of its tombstone
    is_verified: bool = False  # the tombstone was found afterwards, and until then nothing needed the message
    is_unsettled: bool = False  # a tombstone may exist, and whether anything needed the message is not known

    @property
    def topic(self) -> str:
        """Return the owner's full name."""
        return topic_of(self.request.managed_ledger)

    @property
    def kind(self) -> SnapshotKind:
        """Return which of the topics holds the message."""
        return SnapshotKind(self.context.kind)

    @property
    def position(self) -> Position:
        """Return the position that the request names."""
        return self.request.ledger_id, self.context.entry_id

    @property
    def message(self) -> str:
        """Return a name that no other message of its namespace has."""
        return f"{self.context.kind}/{self.position[0]}:{self.position[1]}/{self.context.key}"

    def journal_entry(self, namespace: str) -> SnapshotEntry:
        """Return the entry that the journal has to hold before the tombstone is sent."""
        if self.judged_on is None:
            raise AssertionError(f"{self.message} was not judged")
        ledger_id, entry_id = self.position
        return SnapshotEntry(
            topic=system_topic(namespace, self.kind),
            key=self.context.key,
            ledger_id=ledger_id,
            entry_id=entry_id,
            uuid=self.request.part or "",
            value=self.data,
            reference=self.judged_on,
        )


def opened(job: Job) -> SnapshotJob:
    """Open a job."""
    context = job.request.snapshot_context
    if context is None:
        raise AssertionError(f"{job.request} names no message")
    return SnapshotJob(job, key_of(job.request), context=context)
