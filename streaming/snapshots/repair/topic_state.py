"""What decides about one topic: its latest index, the segments that it names, its ledgers, and what its broker says."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from streaming.adapters.pulsar.snapshot_topics import SnapshotTopics
from streaming.errors import UnavailableError
from streaming.ports import MetadataStore
from streaming.snapshots.audit.owners import listed
from udfs.formats.internal_stats import Position
from udfs.paths import managed_ledger_path, namespace_of
from udfs.records import Presence
from udfs.snapshots.aborts import ids_of
from udfs.snapshots.audit import NamedSegment, SnapshotFacts, TopicFacts
from udfs.snapshots.codec import Index, Segment, decode_segment, encode_segment
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.repairing import Named, Told, told_of
from udfs.snapshots.segments import places_of
from udfs.snapshots.values import ReadValue


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a topic. index: its latest message; None where it has none.

    told: what index and segments tell of aborted ids. values: number and last marker of a
    segment that the index names -> its bytes, as they lie at their place or as the compacted topic has them.
    """

    facts: TopicFacts
    index: ReadValue | None
    told: Told
    values: Mapping[Named, bytes]

    def told_with(self, ledgers: frozenset[int]) -> Told:
        """Return what index and segments tell, where the topic has these ledgers by now."""
        value = self.index.value if self.index is not None else None
        tail = value.tail if isinstance(value, Index) else ids_of([])
        ids = {name: decode_segment(data).ids for name, data in self.values.items()}
        return told_of(replace(self.facts, ledgers=ledgers), ids, tail)


@dataclass(frozen=True, slots=True)
class Looks:
    """Looks at one topic at a time."""

    topics: SnapshotTopics
    store: MetadataStore

    def look(self, topic: str) -> Look:
        """Read what decides about a topic. Raises UnavailableError, RefusedError."""
        return self.look_from(topic, self.latest_index(topic))

    def look_from(self, topic: str, index: ReadValue | None) -> Look:
        """The same, as if that were its latest index. Raises UnavailableError, RefusedError."""
        namespace = namespace_of(topic)
        value = index.value if index is not None else None
        rows = places_of(value) if isinstance(value, Index) else ()
        places: dict[Position, Named] = {place: (sequence, marker) for sequence, place, marker in rows}
        stored = self._stored(namespace, topic, places) if places else {}
        values = self._values(namespace, topic, set(places.values()))
        values |= {
            places[place]: segment for place, segment in stored.items()
        }  # what lies there is what a broker reads
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
        told = told_of(facts, {name: segment.ids for name, segment in values.items()}, tail)
        return Look(facts, index, told, {name: encode_segment(segment) for name, segment in values.items()})

    def ledgers(self, topic: str) -> frozenset[int]:
        """Return the ledgers that a topic has now; none where it is gone. Raises UnavailableError."""
        (node,) = self.store.read_many([managed_ledger_path(topic)])
        presence, ledgers, why = listed(node)
        if presence is Presence.UNREADABLE:
            raise UnavailableError(f"{topic}: its list of ledgers could not be read: {why}")
        return frozenset(ledgers)

    def lost_in(self, topic: str, index: object) -> int:
        """Count the segments that an index names, that can't be read at their places, and that the topic still needs.

        Raises UnavailableError, RefusedError.
        """
        rows = list(places_of(index)) if isinstance(index, Index) else []
        places: dict[Position, Named] = {place: (sequence, marker) for sequence, place, marker in rows}
        stored = self._stored(namespace_of(topic), topic, places) if places else {}
        ledgers = self.ledgers(topic) if places else frozenset()
        return sum(place not in stored and marker[0] in ledgers for place, (_number, marker) in places.items())

    def latest_index(self, topic: str) -> ReadValue | None:
        """Return a topic's latest index, whatever it is; None where it has none or a tombstone."""
        found: ReadValue | None = None
        for read in self.topics.compacted(namespace_of(topic), SnapshotKind.INDEX):
            if read.topic == topic:
                found = None if read.is_null else read
        return found

    def _stored(self, namespace: str, topic: str, places: dict[Position, Named]) -> dict[Position, Segment]:
        """What a broker reads at these places."""
        return {
            read.position: read.value
            for read in self.topics.stored(namespace, SnapshotKind.SEGMENT)
            if isinstance(read.value, Segment)
            and read.topic == topic
            and read.position in places
            and places[read.position][0] == read.sequence
        }

    def _values(self, namespace: str, topic: str, wanted: set[Named]) -> dict[Named, Segment]:
        """What the compacted topic has of these segments; a broker does not read it there.

        A key says a topic and a number only, and a broker that replays a topic counts from 0 again. So a value is the
        segment that the index names only if its last marker is the one that the index names, too.
        """
        latest: dict[int, Segment] = {}
        numbers = {number for number, _marker in wanted}
        for read in self.topics.compacted(namespace, SnapshotKind.SEGMENT) if wanted else ():
            if read.topic == topic and read.sequence in numbers:
                latest.pop(read.sequence, None)
                if isinstance(read.value, Segment):
                    latest[read.sequence] = read.value
        return {(number, value.marker): value for number, value in latest.items() if (number, value.marker) in wanted}


def _index_facts(read: ReadValue) -> SnapshotFacts:
    max_read = read.value.max_read if isinstance(read.value, Index) else None
    return SnapshotFacts(
        kind=SnapshotKind.INDEX, key=read.key, position=read.position, size_bytes=read.size_bytes, max_read=max_read
    )


def _doubled(values: Iterable[Segment]) -> int:
    """How many ids stand in more than one of these segments."""
    times = Counter(pair for value in values for pair in value.ids.pairs())
    return sum(count > 1 for count in times.values())
