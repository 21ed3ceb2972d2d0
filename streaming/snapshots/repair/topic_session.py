"""One topic during a repair or an undo: what is known about it, and each step that changes anything.

No index is replaced before the journal has it and a guard keeps the segments that the new index names. Nothing else in
this package publishes indexes, except for blocking.py and what `undo --removed` publishes again (restore.py).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.repair_journal import Act, RepairEntry, RepairJournal
from streaming.snapshots.repair.topic_state import TopicReader, TopicState
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import namespace_of
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.segments import named_segments
from udfs.snapshots.values import ReadValue


class TopicLoader(Protocol):
    """Unloads, loads and reads topics. Every method raises UnavailableError, RefusedError."""

    def unload(self, topic: str) -> bool:
        """Make the topic's broker close it; False if no broker had it loaded."""
        ...

    def load(self, topic: str) -> None:
        """Request the topic once, as a client does."""
        ...

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        """Yield the transaction id of each entry that a reader gets; None for entries without a transaction.

        Raises UnavailableError if the reader does not reach the end that the topic had.
        """
        ...


class Sent(StrEnum):
    """Whether the index of a journal entry was published."""

    YES = "YES"
    NO = "NO"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One topic. Every method raises UnavailableError, RefusedError."""

    topic: str
    topics: SnapshotTopics
    store: MetadataStore
    broker: Broker
    loader: TopicLoader
    sender: Callable[[str], AbstractContextManager[Sender]]  # opens a producer on a system topic
    journal: RepairJournal
    clock: Clock
    sleep: Callable[[float], None]
    say: Callable[[str], object]  # receives progress messages

    @property
    def namespace(self) -> str:
        """The namespace of the topic."""
        return namespace_of(self.topic)

    @property
    def reader(self) -> TopicReader:
        """Reads the state of topics."""
        return TopicReader(self.topics, self.store)

    def state(self) -> TopicState:
        """Read everything that decides about the topic."""
        return self.reader.read(self.topic)

    def latest(self) -> ReadValue:
        """Return the current index. Raises SafetyError if there is none that the journal could keep."""
        index = self.reader.latest_index(self.topic)
        if index is None:
            raise SafetyError(f"{self.topic} has no index now: another client removed the repair's index")
        if not isinstance(index.value, Index):
            raise SafetyError(f"{self.topic}: its index can't be read ({index.fault}), so it is not replaced")
        return index

    def lost_in(self, index: object) -> int:
        """Count the segments that an index names, that the topic still needs, and that can't be read."""
        return self.reader.lost_in(self.topic, index)

    def guard(self) -> None:
        """Guard all segments that indexes of the namespace name. Raises UnavailableError if there is no guard."""
        self._guards.require(self.namespace)

    def hold(self, index: Index) -> None:
        """Also guard the segments that an index names or will name."""
        places = [position for _number, position, _marker in named_segments(index)]
        if not places:
            return
        try:
            self._guards.hold(self.namespace, places)
        except SafetyError as error:  # the topic is sound, only its guard is missing
            raise UnavailableError(f"no guard for {self.topic}: {error}") from error

    def unload(self) -> None:
        """Make the broker close the topic, if it has it loaded."""
        # a broker that is asked to unload a topic which it does not have loads it first, from the current index
        if self.topics.more.buffer(self.topic) is not None:
            self.loader.unload(self.topic)

    def record(self, old: ReadValue, new: bytes, act: Act) -> str:
        """Write an index that is about to be replaced to the journal; returns the entry's name once it is on disk."""
        return self.journal.write(old, new, self.lost_in(old.value), act, self._end())

    def publish(self, value: bytes) -> Position:
        """Publish an index, and return its position. The caller states why that is allowed there.

        The caller has held the segments that the index names.
        """
        index = decode_index(value)
        try:
            with self.sender(system_topic(self.namespace, SnapshotKind.INDEX)) as sender:
                return sender.send(self.topic, value)
        # held again afterwards: a guard may have moved past the segments while no index named them
        finally:
            self.hold(index)

    def publication_of(self, entry: RepairEntry, now: bytes) -> Sent:
        """Find out whether the index of a journal entry was published. now: the current index.

        The absence of the index is conclusive only while the topic still retains that position.
        """
        if entry.was_sent or entry.by == now:
            return Sent.YES
        after = entry.position if entry.end == BEFORE_ALL else entry.end
        for read in self.topics.stored(self.namespace, SnapshotKind.INDEX):
            # the process was killed between the broker's acknowledgement and the mark
            if read.topic == entry.topic and read.data == entry.by and read.position > after:
                return Sent.YES
        ledgers = dict(self._index_ledgers())  # requested after the read, so that no trim in between goes unnoticed
        return Sent.NO if after[0] in ledgers else Sent.UNKNOWN

    @property
    def _guards(self) -> Guards:
        return Guards(self.topics, self.store, self.broker, self.clock)

    def _index_ledgers(self) -> tuple[tuple[int, int], ...]:
        return self.topics.admin.internal_stats(system_topic(self.namespace, SnapshotKind.INDEX)).ledgers

    def _end(self) -> Position:
        """Return the last position of the indexes topic, in the ledger that is being written even if that is empty."""
        ledgers = self._index_ledgers()
        return (ledgers[-1][0], ledgers[-1][1] - 1) if ledgers else BEFORE_ALL


def index_of(name: str, data: bytes) -> Index:
    """Decode the index in the journal entry of that name. Raises SafetyError."""
    try:
        return decode_index(data)
    except FormatError as error:
        raise SafetyError(
            f"the journal's file {name} contains no index ({error}): check it, or move it away"
        ) from error


@contextmanager
def interruption(topic: str, what: str, result: str) -> Iterator[None]:
    """Add to the error of an interrupted repair or undo what state it left. result: a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        raise UnavailableError(f"{topic}: the {what} was interrupted. {result}") from None
    except (UnavailableError, RefusedError) as error:
        raise UnavailableError(f"{error}. {result}") from error
