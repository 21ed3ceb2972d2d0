"""What repair and undo have in common: an index is replaced only once the journal has it, and a guard comes first.

Nothing else in this package sends to the topic of indexes, but for what `undo --removed` puts back.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.journal import Act, Entry, RepairJournal
from streaming.snapshots.repair.topic_state import Looks
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import namespace_of
from udfs.snapshots.codec import Index, decode_index
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import ReadValue


class TopicLoader(Protocol):
    """How a topic is unloaded and loaded."""

    def unload(self, topic: str) -> bool:
        """Let its broker close it; False if no broker had it loaded. Raises UnavailableError, RefusedError."""
        ...

    def load(self, topic: str) -> None:
        """Ask for it once, as a client does. Raises UnavailableError, RefusedError."""
        ...

    def delivered(self, topic: str) -> Iterator[tuple[int, int] | None]:
        """Yield the transaction's id of each entry that a reader gets; None: it has none.

        Raises UnavailableError where that is not all up to the end that the topic had.
        """
        ...


class Sent(StrEnum):
    """Whether what an entry of the journal announces was published."""

    YES = "YES"
    NO = "NO"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """Replaces indexes. sender: opens a producer on a system topic. journal: its folder outlives us."""

    topics: SnapshotTopics
    store: MetadataStore
    broker: Broker
    loader: TopicLoader
    sender: Callable[[str], AbstractContextManager[Sender]]
    journal: RepairJournal
    clock: Clock

    @property
    def looks(self) -> Looks:
        """Reads what decides about a topic."""
        return Looks(self.topics, self.store)

    def guard(self, topic: str) -> None:
        """Guard what indexes name. Raises UnavailableError where there is no guard."""
        self._guards.require(namespace_of(topic))

    def hold(self, topic: str, index: Index) -> None:
        """Guard the segments that an index names or will name, too. Raises UnavailableError, RefusedError."""
        places = [place for _number, place, _marker in places_of(index)]
        if not places:
            return
        try:
            self._guards.hold(namespace_of(topic), places)
        except SafetyError as error:  # nothing is wrong with the topic; it lacks a guard
            raise UnavailableError(f"no guard for {topic}: {error}") from error

    def latest(self, topic: str) -> ReadValue:
        """Return the index that is there now. Raises SafetyError where it can't be kept in the journal."""
        index = self.looks.latest_index(topic)
        if index is None:
            raise SafetyError(f"{topic} has no index now: somebody took away the one that the repair published")
        if not isinstance(index.value, Index):
            raise SafetyError(f"{topic}: its index can't be read ({index.fault}), so it is not replaced")
        return index

    def write_down(self, topic: str, old: ReadValue, new: bytes, act: Act) -> str:
        """Keep what is about to be replaced; returns the entry's name once it is on disk."""
        lost = self.looks.lost_in(topic, old.value)
        return self.journal.write(old, new, lost, act, self._end(topic))

    def unload(self, topic: str) -> None:
        """Let its broker close a topic, where it has it loaded. Raises UnavailableError, RefusedError.

        A broker that is to unload a topic which it does not have loads it first, and so from the index that is there.
        """
        if self.topics.more.buffer(topic) is not None:
            self.loader.unload(topic)

    def send(self, topic: str, value: bytes) -> Position:
        """Publish an index; returns its place. Whoever calls it says why that is allowed there.

        The guard stands before what it names afterwards: whoever calls it has held that, and as long as no index
        named these segments, a guard that was moved meanwhile went over them. Raises UnavailableError, RefusedError.
        """
        index = decode_index(value)
        try:
            with self.sender(system_topic(namespace_of(topic), SnapshotKind.INDEX)) as sender:
                return sender.send(topic, value)
        finally:
            self.hold(topic, index)

    def was_sent(self, entry: Entry, now: bytes) -> Sent:
        """Whether an entry's index was published, as far as that can be told. now: the index that is there.

        One that was killed between the broker's answer and the mark left its index in the topic. That it is not there
        says something only as long as the topic reaches back to where it had to be.
        """
        if entry.was_sent or entry.by == now:
            return Sent.YES
        behind = entry.position if entry.end == BEFORE_ALL else entry.end
        for read in self.topics.stored(namespace_of(entry.topic), SnapshotKind.INDEX):
            if read.topic == entry.topic and read.data == entry.by and read.position > behind:
                return Sent.YES
        ledgers = dict(self.topics.admin.internal_stats(_indexes(entry.topic)).ledgers)  # what is there after the look
        return Sent.NO if behind[0] in ledgers else Sent.UNKNOWN

    @property
    def _guards(self) -> Guards:
        return Guards(self.topics, self.store, self.broker, self.clock)

    def _end(self, topic: str) -> Position:
        """The last place of the indexes topic; of the ledger that is being written, though it may be empty."""
        ledgers = self.topics.admin.internal_stats(_indexes(topic)).ledgers
        return (ledgers[-1][0], ledgers[-1][1] - 1) if ledgers else BEFORE_ALL


def index_of(name: str, data: bytes) -> Index:
    """Read the index in an entry of that name. Raises SafetyError."""
    try:
        return decode_index(data)
    except FormatError as error:
        raise SafetyError(f"the journal's file {name} holds no index ({error}): look at it, or move it away") from error


@contextmanager
def cut_short(topic: str, what: str, became: str) -> Iterator[None]:
    """Say of a repair or an undo that is cut short in the block what became of it, in a sentence: became."""
    try:
        yield
    except KeyboardInterrupt:
        raise UnavailableError(f"{topic}: the {what} was interrupted. {became}") from None
    except (UnavailableError, RefusedError) as error:
        raise UnavailableError(f"{error}. {became}") from error


def _indexes(topic: str) -> str:
    return system_topic(namespace_of(topic), SnapshotKind.INDEX)
