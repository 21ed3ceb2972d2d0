"""Findings of the audit of transaction-buffer snapshots, for one topic and for one namespace.

1. A snapshot is an ORPHAN only if its topic exists neither in ZooKeeper nor at a broker. A segment of a living topic is
   an ORPHAN only if the topic has a readable index that does not name it. Both passes of the audit must agree.
2. Unreadable facts make a topic's findings UNKNOWN: nothing that depends on them is called an orphan.
3. A value with a Fault (udfs.snapshots.values) is FOREIGN: the audit reports it, and nothing deletes it.
4. A broker reads a segment at the position that the index names. So a segment is lost if its message can't be read
   there, whatever the compacted topic still holds under its key. While the topic has the ledger of the segment's last
   abort marker, the topic can't be loaded again; without that ledger, the loss does not matter.
5. A snapshot is complete up to its maxReadPosition only. So it is no finding if the broker has ids that the snapshot
   does not contain. It is a finding if the snapshot contains ids that the broker does not have.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.snapshots.keys import SegmentKey, SnapshotKind

NEAR_LIMIT = 0.8  # share of the largest size of a message; Pulsar's own metadata takes a little of the rest
READY = "Ready"  # a transaction buffer that has recovered
RECOVERING = ("None", "Initializing")  # a transaction buffer whose broker reads the snapshot, or replays the topic
SINGLE_TYPE = "Single"  # snapshotType of a broker that writes single snapshots


class SnapshotClass(StrEnum):
    """Classes of findings: those of the ledger audit, and two more, DANGER and WASTE."""

    MISSING = "MISSING"  # a topic needs it, and it can't be read: the topic will not load again
    DANGER = "DANGER"  # aborted messages are or may become readable, or an operation of the broker will fail
    ORPHAN = "ORPHAN"  # unused
    WASTE = "WASTE"  # ids that hide no message, or a segment that is not named yet; the broker drops them itself
    UNKNOWN = "UNKNOWN"  # a fact that decides could not be read
    FOREIGN = "FOREIGN"  # brokers did not write it
    TOO_YOUNG = "TOO_YOUNG"  # seen by the second pass alone


class SnapshotReason(StrEnum):
    """Why something is reported."""

    SEGMENT_LOST = "SEGMENT_LOST"
    INDEX_LOST = "INDEX_LOST"
    DOUBLED_IDS = "DOUBLED_IDS"
    NO_MAX_READ = "NO_MAX_READ"
    IDS_LOST = "IDS_LOST"
    FLAG_OFF = "FLAG_OFF"
    NEAR_LIMIT = "NEAR_LIMIT"
    NULLS_VISIBLE = "NULLS_VISIBLE"
    NO_GUARD = "NO_GUARD"
    LOAD_BLOCKED = "LOAD_BLOCKED"
    LOAD_IN_DOUBT = "LOAD_IN_DOUBT"
    OWNER_GONE = "OWNER_GONE"
    NOT_NAMED = "NOT_NAMED"
    DEAD_IDS = "DEAD_IDS"
    OWNER_UNKNOWN = "OWNER_UNKNOWN"
    INDEX_UNREADABLE = "INDEX_UNREADABLE"
    ODD_KEY = "ODD_KEY"
    FOREIGN_SCHEMA = "FOREIGN_SCHEMA"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    UNREADABLE = "UNREADABLE"
    OTHER_NAME = "OTHER_NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """The latest value of one key, without its ids."""

    kind: SnapshotKind
    key: str
    position: Position
    size_bytes: int
    ids: int = 0
    dead_ids: int = 0  # of a single snapshot: ids whose marker's ledger is gone
    sequence: int = -1
    marker: Position = (-1, -1)  # of a segment: position of its last abort marker
    max_read: Position | None = None  # of an index; None for other kinds


@dataclass(frozen=True, slots=True)
class NamedSegment:
    """A segment as an index names it."""

    sequence: int
    position: Position
    marker: Position
    is_readable: bool  # the message of that very segment was read at that position


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferFacts:
    """The transaction buffer of a loaded topic, as its broker reports it."""

    state: str
    snapshot_type: str
    aborted: int
    sealed: frozenset[Position] = frozenset()  # last markers of the segments sealed in memory, if they were requested
    written: int = 0  # how many of these segments the broker has written
    # Readers get no message after it, since the first open transaction starts there. BEFORE_ALL if the broker does not
    # report it. Not compared, since it moves with every message.
    max_read: Position = field(default=BEFORE_ALL, compare=False)


class IndexState(StrEnum):
    """Whether a topic has an index."""

    NONE = "NONE"
    READABLE = "READABLE"
    FAULTY = "FAULTY"  # no broker wrote the latest index


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic with snapshots, and a limited number of its values: a publisher can create any number of values."""

    topic: str
    in_metadata: Presence
    at_broker: Presence
    detail: str = ""
    ledgers: frozenset[int] = frozenset()  # of the topic
    segment_ledgers: frozenset[int] = frozenset()  # of the segments topic
    values: tuple[SnapshotFacts, ...] = ()
    is_first: bool = True  # these are the topic's first values; findings about the topic itself go with them
    index: IndexState = IndexState.NONE
    segments: int = 0  # how many the topic has in all
    named: tuple[NamedSegment, ...] = ()
    # distinct ids in the index's segments or the single snapshot, if the topic still has their marker's ledger
    live_ids: int = 0
    doubled_ids: int = 0  # ids that several segments of the index contain
    buffer: BufferFacts | None = None  # None: the topic is not loaded, or the broker did not answer
    most_bytes: int = 0  # of a message; 0: not known
    is_segmented: bool | None = None  # whether brokers write segments; None: not known

    def of(self, kind: SnapshotKind) -> list[SnapshotFacts]:
        """Return the values of that kind."""
        return [value for value in self.values if value.kind is kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFinding:
    """One finding, about a message or about a whole topic."""

    finding_class: SnapshotClass
    reason: SnapshotReason
    topic: str
    detail: str
    kind: str = ""
    key: str = ""  # of the message; "" if the finding is about a topic
    position: Position = (-1, -1)  # of the message; (-1, -1) if the finding is about a topic
    size_bytes: int = 0
    ids: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """Facts about a namespace's three snapshot topics as a whole."""

    namespace: str
    nulls: int = 0  # tombstones that a reader of the segments gets
    segments: int = 0  # how many the indexes name
    is_guarded: bool = True  # a subscription or a retention policy keeps each of them from being trimmed
    foreign: dict[str, int] = field(default_factory=dict)  # system topic's name -> schema versions not of brokers


def is_half_replayed(facts: TopicFacts) -> bool:
    """Whether a topic's index names segments and no maxReadPosition: a broker writes such an index during a replay.

    It does not count if the topic has none of the ledgers of the segments' markers any more: then the next load finds
    none of their ids again, and seals none twice.
    """
    lives = any(each.marker[0] in facts.ledgers for each in facts.named)
    return lives and any(value.max_read == BEFORE_ALL for value in facts.of(SnapshotKind.INDEX))


def is_replaying(facts: TopicFacts) -> bool:
    """Whether a topic's broker is recovering it just now, which takes hours if it replays a large topic."""
    return facts.buffer is not None and facts.buffer.state in RECOVERING


def findings_of(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    """Yield one pass's findings about one topic, except for its FOREIGN values, which need no facts."""
    if (facts.in_metadata, facts.at_broker) == (Presence.GONE, Presence.GONE):
        for value in facts.values:
            gone = "its topic exists neither in ZooKeeper nor at a broker"
            yield _of(facts, value, SnapshotClass.ORPHAN, SnapshotReason.OWNER_GONE, gone)
    elif facts.in_metadata is Presence.PRESENT:
        yield from _of_values(facts)
        if facts.is_first:
            yield from _of_topic(facts)
    elif facts.is_first:
        detail = facts.detail or "ZooKeeper does not have the topic, and the broker does not report it as gone"
        yield SnapshotFinding(
            finding_class=SnapshotClass.UNKNOWN, reason=SnapshotReason.OWNER_UNKNOWN, topic=facts.topic, detail=detail
        )


def namespace_findings_of(facts: NamespaceFacts) -> Iterator[SnapshotFinding]:
    """Yield one pass's findings about one namespace; their `topic` is the system topic."""

    def finding(finding_class: SnapshotClass, reason: SnapshotReason, name: str, detail: str) -> SnapshotFinding:
        return SnapshotFinding(
            finding_class=finding_class, reason=reason, topic=f"persistent://{facts.namespace}/{name}", detail=detail
        )

    if facts.nulls:
        detail = f"{facts.nulls} tombstones are visible: deleting a loaded topic of this namespace fails with HTTP 500"
        yield finding(SnapshotClass.DANGER, SnapshotReason.NULLS_VISIBLE, SnapshotKind.SEGMENT, detail)
    if facts.segments and not facts.is_guarded:
        detail = (
            f"nothing keeps the broker from trimming the {facts.segments} segments that indexes name; once a segment "
            "is gone, its topic does not load again"
        )
        yield finding(SnapshotClass.DANGER, SnapshotReason.NO_GUARD, SnapshotKind.SEGMENT, detail)
    for name, versions in sorted(facts.foreign.items()):
        detail = f"{versions} of its schema versions are not the brokers'; readers that use the latest version fail"
        yield finding(SnapshotClass.FOREIGN, SnapshotReason.FOREIGN_SCHEMA, name, detail)


def _of_values(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    yield from _near_limit(facts)
    yield from _dead_ids(facts)
    yield from _no_max_read(facts)
    if facts.index is IndexState.READABLE:
        yield from _not_named(facts)


def _of_topic(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    yield from _ids_lost(facts)
    if facts.index is IndexState.READABLE:
        yield from _lost_segments(facts)
        yield from _dangers(facts)
    elif facts.index is IndexState.FAULTY:
        detail = "no broker wrote its index, so the segments that it names are not known"
        yield SnapshotFinding(
            finding_class=SnapshotClass.UNKNOWN,
            reason=SnapshotReason.INDEX_UNREADABLE,
            topic=facts.topic,
            detail=detail,
        )
    elif facts.segments:
        detail = f"it has {facts.segments} segments and no index: the next load ignores them"
        yield SnapshotFinding(
            finding_class=SnapshotClass.DANGER, reason=SnapshotReason.INDEX_LOST, topic=facts.topic, detail=detail
        )


def _lost_segments(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    for segment in facts.named:
        if segment.is_readable or segment.marker[0] not in facts.ledgers:
            continue
        where = f"{segment.position[0]}:{segment.position[1]}"
        gone = "was trimmed" if segment.position[0] not in facts.segment_ledgers else "has no readable segment there"
        detail = (
            f"its index names segment {segment.sequence} at {where}, and that ledger {gone}: it will not load again"
        )
        yield SnapshotFinding(
            finding_class=SnapshotClass.MISSING,
            reason=SnapshotReason.SEGMENT_LOST,
            topic=facts.topic,
            detail=detail,
            kind=SnapshotKind.SEGMENT,
            key=str(SegmentKey(segment.sequence, facts.topic)),
            position=segment.position,
        )


def _not_named(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    named = {each.position for each in facts.named}
    # a repair may have published a named segment again, so the index may name another position of this number
    numbers = {each.sequence for each in facts.named}
    highest = max(numbers, default=-1)
    for value in facts.of(SnapshotKind.SEGMENT):
        if value.position in named or value.sequence in numbers:
            continue
        if value.sequence < highest:
            unnamed = "the topic's index does not name it"
            yield _of(facts, value, SnapshotClass.ORPHAN, SnapshotReason.NOT_NAMED, unnamed)
        else:  # a broker writes a segment first, and names it later; after a replay it writes the same numbers again
            ahead = "the topic's index does not name it yet; the broker will name or replace it"
            yield _of(facts, value, SnapshotClass.WASTE, SnapshotReason.NOT_NAMED, ahead)


def _dangers(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    if facts.doubled_ids:
        detail = f"{facts.doubled_ids} ids are in more than one segment: a trim can make the broker forget all its ids"
        yield SnapshotFinding(
            finding_class=SnapshotClass.DANGER,
            reason=SnapshotReason.DOUBLED_IDS,
            topic=facts.topic,
            detail=detail,
            ids=facts.doubled_ids,
        )
    is_single = facts.buffer is not None and facts.buffer.snapshot_type == SINGLE_TYPE
    if is_single or (facts.buffer is None and facts.is_segmented is False):
        detail = "brokers don't read the index (transactionBufferSegmentedSnapshotEnabled is off)"
        yield SnapshotFinding(
            finding_class=SnapshotClass.DANGER, reason=SnapshotReason.FLAG_OFF, topic=facts.topic, detail=detail
        )


def _ids_lost(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    buffer = facts.buffer
    if buffer is not None and buffer.state == READY and buffer.aborted < facts.live_ids:
        detail = (
            f"the broker has {buffer.aborted} aborted ids in memory, and its snapshot has {facts.live_ids} live ids"
        )
        lost = facts.live_ids - buffer.aborted
        yield SnapshotFinding(
            finding_class=SnapshotClass.DANGER,
            reason=SnapshotReason.IDS_LOST,
            topic=facts.topic,
            detail=detail,
            ids=lost,
        )


def _dead_ids(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    places = {each.position for each in facts.named}
    for value in facts.of(SnapshotKind.SEGMENT):
        if value.position in places and value.marker[0] not in facts.ledgers:
            yield _dead(facts, value, value.ids, value.size_bytes)
    for value in facts.of(SnapshotKind.SINGLE):
        if value.dead_ids and facts.index is IndexState.NONE:
            yield _dead(facts, value, value.dead_ids, value.size_bytes * value.dead_ids // max(1, value.ids))


def _dead(facts: TopicFacts, value: SnapshotFacts, ids: int, size_bytes: int) -> SnapshotFinding:
    return SnapshotFinding(
        finding_class=SnapshotClass.WASTE,
        reason=SnapshotReason.DEAD_IDS,
        topic=facts.topic,
        detail=f"the ledgers of {ids} abort markers are gone; the next commit or abort on the topic drops the ids",
        kind=value.kind,
        key=value.key,
        position=value.position,
        size_bytes=size_bytes,
        ids=ids,
    )


def _no_max_read(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    """Report an index that a broker writes during a replay; a moment later it usually writes another index.

    The finding is about that very message, so both passes agree only if no index was written between them. While the
    replay runs, it may still complete, so the finding is UNKNOWN and raises no alarm.
    """
    if not is_half_replayed(facts):
        return
    finding_class = SnapshotClass.DANGER
    detail = (
        f"its index names {len(facts.named)} segments and no maxReadPosition: a broker that loads it replays the whole "
        "topic, and seals every id twice"
    )
    if is_replaying(facts):
        finding_class = SnapshotClass.UNKNOWN
        detail = (
            f"its index names {len(facts.named)} segments and no maxReadPosition, and its broker is replaying it: "
            "wait until it is loaded, and audit again"
        )
    for value in facts.of(SnapshotKind.INDEX):
        yield _of(facts, value, finding_class, SnapshotReason.NO_MAX_READ, detail)


def _near_limit(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    for value in facts.values:
        if facts.most_bytes and value.size_bytes > NEAR_LIMIT * facts.most_bytes:
            detail = f"{value.size_bytes} of {facts.most_bytes} bytes that a message may have: larger snapshots fail"
            yield _of(facts, value, SnapshotClass.DANGER, SnapshotReason.NEAR_LIMIT, detail)


def _of(
    facts: TopicFacts, value: SnapshotFacts, finding_class: SnapshotClass, reason: SnapshotReason, detail: str
) -> SnapshotFinding:
    return SnapshotFinding(
        finding_class=finding_class,
        reason=reason,
        topic=facts.topic,
        detail=detail,
        kind=value.kind,
        key=value.key,
        position=value.position,
        size_bytes=value.size_bytes,
        ids=value.ids,
    )
