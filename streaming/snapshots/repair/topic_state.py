"""The state of one topic: its latest index, the segments that it names, its ledgers, and its transaction buffer."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore
from streaming.snapshots.audit.snapshot_owners import listed
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_path, namespace_of
from udfs.records import Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.codec import Index, Segment, decode_segment, encode_segment
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repair_rules import KnownIds, Named, known_ids_of
from udfs.snapshots.segments import named_segments
from udfs.snapshots.topic_findings import NamedSegment, SnapshotFacts, TopicFacts
from udfs.snapshots.values import ReadValue


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of a topic at one time."""

    facts: TopicFacts
    index: ReadValue | None  # the latest message under the topic's key; None: there is none
    known_ids: KnownIds  # aborted ids in the index and its segments
    values: Mapping[Named, bytes]  # segments that the index names, from their positions or from the compacted topic

    def known_ids_with(self, ledgers: frozenset[int]) -> KnownIds:
        """Return the known ids if the topic has these ledgers by now."""
        value = self.index.value if self.index is not None else None
        tail = value.tail if isinstance(value, Index) else ids_of([])
        ids = {name: decode_segment(data).ids for name, data in self.values.items()}
        return known_ids_of(replace(self.facts, ledgers=ledgers), ids, tail)


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads one topic at a time."""

    topics: SnapshotTopics
    store: MetadataStore

    def read(self, topic: str) -> TopicState:
        """Read everything that decides about a topic. Raises UnavailableError, RefusedError."""
        return self.read_with(topic, self.latest_index(topic))

    def read_with(self, topic: str, index: ReadValue | None) -> TopicState:
        """Read the state of a topic as if that were its latest index. Raises UnavailableError, RefusedError."""
        namespace = namespace_of(topic)
        value = index.value if index is not None else None
        rows = named_segments(value) if isinstance(value, Index) else ()
        places: dict[Position, Named] = {position: (sequence, marker) for sequence, position, marker in rows}
        stored = self._stored(namespace, topic, places) if places else {}
        values = self._values(namespace, topic, set(places.values()))
        values |= {
            places[position]: segment for position, segment in stored.items()
        }  # a broker reads these, not the compacted topic
        named = tuple(NamedSegment(number, at, marker, at in stored) for at, (number, marker) in places.items())
        (node,) = self.store.read_many([managed_ledger_path(topic)])
        presence, ledgers, why = listed(node)
        facts = TopicFacts(
            topic=topic,
            in_metadata=presence,
            at_broker=Presence.UNREADABLE,
            detail=why,
            ledgers=frozenset(ledgers),
            values=() if index is None else (_index_facts(index),),
            named=named,
            doubled_ids=_doubled(values.values()),
            buffer=self.topics.more.buffer(topic),
        )
        tail = value.tail if isinstance(value, Index) else ids_of([])
        known_ids = known_ids_of(facts, {name: segment.ids for name, segment in values.items()}, tail)
        return TopicState(facts, index, known_ids, {name: encode_segment(segment) for name, segment in values.items()})

    def ledgers(self, topic: str) -> frozenset[int]:
        """Return the ledgers that a topic has now; none if it is gone. Raises UnavailableError."""
        (node,) = self.store.read_many([managed_ledger_path(topic)])
        presence, ledgers, why = listed(node)
        if presence is Presence.UNREADABLE:
            raise UnavailableError(f"{topic}: its list of ledgers could not be read: {why}")
        return frozenset(ledgers)

    def lost_in(self, topic: str, index: object) -> int:
        """Count the segments that an index names, that the topic still needs, and that can't be read.

        Raises UnavailableError, RefusedError.
        """
        rows = list(named_segments(index)) if isinstance(index, Index) else []
        places: dict[Position, Named] = {position: (sequence, marker) for sequence, position, marker in rows}
        stored = self._stored(namespace_of(topic), topic, places) if places else {}
        ledgers = self.ledgers(topic) if places else frozenset()
        return sum(position not in stored and marker[0] in ledgers for position, (_number, marker) in places.items())

    def latest_index(self, topic: str) -> ReadValue | None:
        """Return the latest message under a topic's key, valid or not; None if there is none or it is a tombstone."""
        latest: ReadValue | None = None
        for read in self.topics.compacted(namespace_of(topic), SnapshotKind.INDEX):
            if read.topic == topic:
                latest = None if read.is_null else read
        return latest

    def _stored(self, namespace: str, topic: str, places: dict[Position, Named]) -> dict[Position, Segment]:
        """Return the segments that a broker reads at these positions."""
        return {
            read.position: read.value
            for read in self.topics.stored(namespace, SnapshotKind.SEGMENT)
            if isinstance(read.value, Segment)
            and read.topic == topic
            and read.position in places
            and places[read.position][0] == read.sequence
        }

    def _values(self, namespace: str, topic: str, named: set[Named]) -> dict[Named, Segment]:
        """Return the values of these segments in the compacted topic, where a broker does not read them."""
        latest: dict[int, Segment] = {}
        numbers = {number for number, _marker in named}
        for read in self.topics.compacted(namespace, SnapshotKind.SEGMENT) if named else ():
            if read.topic == topic and read.sequence in numbers:
                latest.pop(read.sequence, None)
                if isinstance(read.value, Segment):
                    latest[read.sequence] = read.value
        # A key contains only a topic and a number, and a broker that replays a topic counts from 0 again. So a value is
        # the segment that the index names only if the last marker matches, too.
        return {(number, value.marker): value for number, value in latest.items() if (number, value.marker) in named}


def _index_facts(read: ReadValue) -> SnapshotFacts:
    max_read = read.value.max_read if isinstance(read.value, Index) else None
    return SnapshotFacts(
        kind=SnapshotKind.INDEX, key=read.key, position=read.position, size_bytes=read.size_bytes, max_read=max_read
    )


def _doubled(values: Iterable[Segment]) -> int:
    """Count the ids that are in several of these segments."""
    times = Counter(pair for value in values for pair in value.ids.pairs())
    return sum(count > 1 for count in times.values())
