"""One topic during a repair or an undo: what is known about it, and each step that changes anything.

No index is replaced before the journal has it and a guard keeps the segments that the new index names. Nothing else in
this package publishes indexes, except for blocking.py and what `undo --removed` publishes again (restore.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.clock import Clock
from streaming.errors import RefusedError, SafetyError, UnavailableError
from streaming.ports import MetadataStore
from streaming.snapshots.guard.guards import Guards
from streaming.snapshots.parts.topic import Sender
from streaming.snapshots.repair.repair_journal import Act, RepairEntry, RepairJournal
from streaming.snapshots.snapshot_namespaces import listed
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.paths import managed_ledger_path, namespace_of
from udfs.records import Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, Segment, decode_index
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import KnownIds, Named, known_ids_of, lost_segments_of
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.topic_findings import NamedSegment, SnapshotFacts, TopicFacts
from udfs.snapshots.values import ReadValue


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic at one time."""

    facts: TopicFacts
    index: ReadValue | None  # the latest message under the topic's key; None: there is none
    values: Mapping[Named, Segment]  # that the index names, from their positions or from the compacted topic

    def known_ids(self, ledgers: frozenset[int] | None = None) -> KnownIds:
        """Return the aborted ids in the index and its segments. ledgers: the topic's now; None: as in `facts`."""
        value = self.index.value if self.index is not None else None
        tail = value.tail if isinstance(value, Index) else ids_of([])
        ids = {name: segment.ids for name, segment in self.values.items()}
        facts = self.facts if ledgers is None else replace(self.facts, ledgers=ledgers)
        return known_ids_of(facts, ids, tail)


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

    def state(self) -> TopicState:
        """Read everything that decides about the topic."""
        return self.state_with(self.latest_index())

    def state_with(self, index: ReadValue | None) -> TopicState:
        """Read the state of the topic as if `index` were its latest index."""
        places = _places_of(index.value) if index is not None else {}
        stored = self._stored(places)
        values = self._values(set(places.values()))
        # a broker reads these, not the compacted topic
        values |= {places[position]: segment for position, segment in stored.items()}
        named = tuple(NamedSegment(number, at, marker, at in stored) for at, (number, marker) in places.items())
        (node,) = self.store.read_many([managed_ledger_path(self.topic)])
        presence, ledgers, why = listed(node)
        facts = TopicFacts(
            topic=self.topic,
            in_metadata=presence,
            at_broker=Presence.UNREADABLE,
            detail=why,
            ledgers=frozenset(ledgers),
            values=() if index is None else (_index_facts(index),),
            named=named,
            doubled_ids=_doubled(values.values()),
            buffer=self.topics.more.buffer(self.topic),
        )
        return TopicState(facts, index, values)

    def latest_index(self) -> ReadValue | None:
        """Return the latest message under the topic's key, valid or not; None if there is none or it is a tombstone."""
        latest: ReadValue | None = None
        for read in self.topics.compacted(self.namespace, SnapshotKind.INDEX):
            if read.topic == self.topic:
                latest = None if read.is_null else read
        return latest

    def latest(self) -> ReadValue:
        """Return the current index. Raises SafetyError if there is none, or it can't be read."""
        index = self.latest_index()
        if index is None:
            raise SafetyError(f"{self.topic} has no index now: another client removed the repair's index")
        if not isinstance(index.value, Index):
            raise SafetyError(f"{self.topic}: its index can't be read ({index.fault}), so it is not replaced")
        return index

    def lost_in(self, index: object) -> int:
        """Count the segments that an index names, that the topic still needs, and that can't be read."""
        places = _places_of(index)
        stored = self._stored(places)
        ledgers = self.ledgers() if places else frozenset()
        return sum(position not in stored and marker[0] in ledgers for position, (_number, marker) in places.items())

    def ledgers(self) -> frozenset[int]:
        """Return the ledgers that the topic has now; none if it is gone."""
        return ledgers_of(self.store, self.topic)

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
        except SafetyError as error:  # nothing is wrong with the topic: only its guard is missing
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
        """Publish an index, and return its position.

        The caller must have called `hold` for the index, and gives the reason why it may be published.
        """
        index = decode_index(value)
        try:
            with self.sender(system_topic(self.namespace, SnapshotKind.INDEX)) as sender:
                return sender.send(self.topic, value)
        # hold again: while no index named the segments, a run of the guard may have moved it past them
        finally:
            self.hold(index)

    def publication_of(self, entry: RepairEntry, now: bytes) -> Sent:
        """Find out whether the index of a journal entry was published. now: the current index.

        The absence of the index is conclusive only while the topic still has the ledger to which the index would have
        been added.
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

    def _stored(self, places: dict[Position, Named]) -> dict[Position, Segment]:
        """Return the segments that a broker reads at these positions."""
        return {
            read.position: read.value
            for read in (self.topics.stored(self.namespace, SnapshotKind.SEGMENT) if places else ())
            if isinstance(read.value, Segment)
            and read.topic == self.topic
            and read.position in places
            and places[read.position][0] == read.sequence
        }

    def _values(self, named: set[Named]) -> dict[Named, Segment]:
        """Return the values of these segments in the compacted topic, where a broker does not read them."""
        latest: dict[int, Segment] = {}
        numbers = {number for number, _marker in named}
        for read in self.topics.compacted(self.namespace, SnapshotKind.SEGMENT) if named else ():
            if read.topic == self.topic and read.sequence in numbers:
                latest.pop(read.sequence, None)
                if isinstance(read.value, Segment):
                    latest[read.sequence] = read.value
        # A key contains only a topic and a number, and a broker that replays a topic counts from 0 again. So a value is
        # the segment that the index names only if the last marker matches, too.
        return {(number, value.marker): value for number, value in latest.items() if (number, value.marker) in named}

    @property
    def _guards(self) -> Guards:
        return Guards(self.topics)

    def _index_ledgers(self) -> tuple[tuple[int, int], ...]:
        return self.topics.admin.internal_stats(system_topic(self.namespace, SnapshotKind.INDEX)).ledgers

    def _end(self) -> Position:
        """Return the last position of the indexes topic, in the ledger that is being written even if that is empty."""
        ledgers = self._index_ledgers()
        return (ledgers[-1][0], ledgers[-1][1] - 1) if ledgers else BEFORE_ALL


def _places_of(index: object) -> dict[Position, Named]:
    """Return the positions that an index names, each with the segment that it names there; none without an index."""
    rows = named_segments(index) if isinstance(index, Index) else ()
    return {position: (sequence, marker) for sequence, position, marker in rows}


def ledgers_of(store: MetadataStore, topic: str) -> frozenset[int]:
    """Return the ledgers that a topic has now; none if it is gone. Raises UnavailableError."""
    (node,) = store.read_many([managed_ledger_path(topic)])
    presence, ledgers, why = listed(node)
    if presence is Presence.UNREADABLE:
        raise UnavailableError(f"{topic}: its list of ledgers could not be read: {why}")
    return frozenset(ledgers)


def _index_facts(read: ReadValue) -> SnapshotFacts:
    max_read = read.value.max_read if isinstance(read.value, Index) else None
    return SnapshotFacts(
        kind=SnapshotKind.INDEX, key=read.key, position=read.position, size_bytes=read.size_bytes, max_read=max_read
    )


def _doubled(values: Iterable[Segment]) -> int:
    """Count the ids that are in several of these segments."""
    times = Counter(pair for value in values for pair in value.ids.pairs())
    return sum(count > 1 for count in times.values())


def unfinished(session: Session, state: TopicState) -> RepairEntry | None:
    """Return the entry of a repair that was interrupted or not verified; None if there is none to resume.

    The topic must load with the index of that repair. An entry whose publication is uncertain counts as published.
    """
    if state.index is None or state.facts.in_metadata is not Presence.PRESENT:
        return None
    last = None
    for entry in session.journal.of(session.topic):
        if not (entry.begins or entry.is_undo):
            continue
        if session.publication_of(entry, state.index.data) is not Sent.NO:
            last = entry
            break
    if last is None or not last.begins or last.is_done or lost_segments_of(state.facts):
        return None
    return None if session.lost_in(index_of(last.name, last.by)) else last


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
