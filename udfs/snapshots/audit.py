"""What an audit of transaction-buffer snapshots says of one topic, and of one namespace.

1. A snapshot is an ORPHAN only where its topic exists neither in ZooKeeper nor at a broker, and a segment of a living
   topic only where the topic has an index that can be read and does not name it. Two audits' looks must agree.
2. What could not be read makes a topic's findings UNKNOWN: nothing that depends on it is called an orphan.
3. A value that is none (udfs.snapshots.values.Fault) is FOREIGN: it is shown, and nobody touches it.
4. A broker reads a segment at the place that the index names. So a segment is lost where its message can't be read
   there, whatever the compacted topic still holds under its key. It matters while the ledger of its last abort marker
   lives: then the topic can't be loaded again.
5. A snapshot is complete up to its maxReadPosition only. So ids that a broker has beyond it are no finding; ids that a
   segment has, and the broker has not, are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.snapshots.keys import SegmentKey, SnapshotKind

NEAR_LIMIT = 0.8  # of what a message may have; Pulsar's own metadata takes a little of the rest
READY = "Ready"  # a transaction buffer that has recovered
RECOVERING = ("None", "Initializing")  # one of which the broker reads the snapshot, or replays the topic
SINGLE_TYPE = "Single"  # snapshotType of a broker that writes single snapshots


class SnapshotClass(StrEnum):
    """What an audit says of a snapshot: the ledger audit's classes, and two of its own, DANGER and WASTE."""

    MISSING = "MISSING"  # a topic needs it, and it can't be read: the topic will not load again
    DANGER = "DANGER"  # aborted messages are or may become readable, or an operation of the broker will fail
    ORPHAN = "ORPHAN"  # nobody uses it any more
    WASTE = "WASTE"  # ids that hide no message, or a segment that is not named yet; the broker drops them itself
    UNKNOWN = "UNKNOWN"  # something that decides could not be read
    FOREIGN = "FOREIGN"  # brokers did not write it
    TOO_YOUNG = "TOO_YOUNG"  # seen by the second look alone


class SnapshotReason(StrEnum):
    """Why a finding is one."""

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
    """The latest value of one key, without its ids. dead_ids: of a single snapshot, those whose ledger is gone.

    marker: place of a segment's last abort marker. max_read: of an index; None for other kinds.
    """

    kind: SnapshotKind
    key: str
    position: Position
    size_bytes: int
    ids: int = 0
    dead_ids: int = 0
    sequence: int = -1
    marker: Position = (-1, -1)
    max_read: Position | None = None


@dataclass(frozen=True, slots=True)
class NamedSegment:
    """A segment as an index names it. is_readable: that very segment's message was read at that place."""

    sequence: int
    place: Position
    marker: Position
    is_readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferFacts:
    """What the broker that has a topic loaded says of its transaction buffer.

    sealed: places of the last markers of the segments that it has sealed in memory; none where it was not asked for
    them. written: how many of them it has written. max_read: up to where readers are given anything, before the first
    transaction that is open; where it was not told, nothing counts as read.
    """

    state: str
    snapshot_type: str
    aborted: int
    sealed: frozenset[Position] = frozenset()
    written: int = 0
    max_read: Position = field(default=BEFORE_ALL, compare=False)  # it moves with every message


class IndexState(StrEnum):
    """Whether a topic has an index. FAULTY: the latest one is no value of a broker's."""

    NONE = "NONE"
    READABLE = "READABLE"
    FAULTY = "FAULTY"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic with snapshots, and some of its values: whoever may publish can make any number of them.

    is_first: these are the topic's first values, with which its own findings are told. segments: how many there are in
    all. ledgers: its own list. segment_ledgers: that of the segments topic. live_ids: distinct ids in the segments
    that the index names, or in the single snapshot, whose marker's ledger lives. doubled_ids: ids that stand in more
    than one segment of the index. buffer None: the topic is not loaded, or nobody could tell. most_bytes: of a
    message; 0: not known. is_segmented: whether brokers write segments; None: not known.
    """

    topic: str
    in_metadata: Presence
    at_broker: Presence
    detail: str = ""
    ledgers: frozenset[int] = frozenset()
    segment_ledgers: frozenset[int] = frozenset()
    values: tuple[SnapshotFacts, ...] = ()
    is_first: bool = True
    index: IndexState = IndexState.NONE
    segments: int = 0
    named: tuple[NamedSegment, ...] = ()
    live_ids: int = 0
    doubled_ids: int = 0
    buffer: BufferFacts | None = None
    most_bytes: int = 0
    is_segmented: bool | None = None

    def of(self, kind: SnapshotKind) -> list[SnapshotFacts]:
        """Those of the values that are of that kind."""
        return [value for value in self.values if value.kind is kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFinding:
    """One finding. key and position: of the message that it is about; "" and (-1, -1) where it is about a topic."""

    finding_class: SnapshotClass
    reason: SnapshotReason
    topic: str
    detail: str
    kind: str = ""
    key: str = ""
    position: Position = (-1, -1)
    size_bytes: int = 0
    ids: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFacts:
    """What concerns a namespace's three topics as a whole. nulls: tombstones that a reader of the segments sees.

    segments: how many its indexes name. is_guarded: something keeps the broker from trimming each of them. foreign:
    name of a system topic -> schema versions there that are not the brokers'.
    """

    namespace: str
    nulls: int = 0
    segments: int = 0
    is_guarded: bool = True
    foreign: dict[str, int] = field(default_factory=dict)


def is_half_replayed(facts: TopicFacts) -> bool:
    """Whether a topic's index names segments and no maxReadPosition: what a broker writes in the midst of a replay.

    Where no marker of them lives any more, the next load finds none of their ids again, and seals none twice.
    """
    lives = any(each.marker[0] in facts.ledgers for each in facts.named)
    return lives and any(value.max_read == BEFORE_ALL for value in facts.of(SnapshotKind.INDEX))


def is_replaying(facts: TopicFacts) -> bool:
    """Whether a topic's broker is recovering it just now, which takes hours where it reads all of a large topic."""
    return facts.buffer is not None and facts.buffer.state in RECOVERING


def findings_of(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    """Yield what one look says of one topic, but for its FOREIGN values, which nothing needs to be known about."""
    if (facts.in_metadata, facts.at_broker) == (Presence.GONE, Presence.GONE):
        for value in facts.values:
            gone = "its topic exists neither in ZooKeeper nor at a broker"
            yield _of(facts, value, SnapshotClass.ORPHAN, SnapshotReason.OWNER_GONE, gone)
    elif facts.in_metadata is Presence.PRESENT:
        yield from _of_values(facts)
        if facts.is_first:
            yield from _of_topic(facts)
    elif facts.is_first:
        detail = facts.detail or "ZooKeeper does not have the topic, and the broker does not say that it is gone"
        yield SnapshotFinding(
            finding_class=SnapshotClass.UNKNOWN, reason=SnapshotReason.OWNER_UNKNOWN, topic=facts.topic, detail=detail
        )


def namespace_findings_of(facts: NamespaceFacts) -> Iterator[SnapshotFinding]:
    """Yield what one look says of one namespace; their `topic` is the system topic."""

    def finding(finding_class: SnapshotClass, reason: SnapshotReason, name: str, detail: str) -> SnapshotFinding:
        return SnapshotFinding(
            finding_class=finding_class, reason=reason, topic=f"persistent://{facts.namespace}/{name}", detail=detail
        )

    if facts.nulls:
        detail = f"{facts.nulls} tombstones can be read: deleting a loaded topic of this namespace answers 500"
        yield finding(SnapshotClass.DANGER, SnapshotReason.NULLS_VISIBLE, SnapshotKind.SEGMENT, detail)
    if facts.segments and not facts.is_guarded:
        detail = (
            f"nothing keeps the broker from trimming the {facts.segments} segments that indexes name; a topic does not "
            "load again once one of its segments is gone"
        )
        yield finding(SnapshotClass.DANGER, SnapshotReason.NO_GUARD, SnapshotKind.SEGMENT, detail)
    for name, versions in sorted(facts.foreign.items()):
        detail = f"{versions} of its schema versions are not the brokers'; readers that decode by the latest one fail"
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
        detail = "its index is no value of a broker's, so nobody can tell which segments it names"
        yield SnapshotFinding(
            finding_class=SnapshotClass.UNKNOWN,
            reason=SnapshotReason.INDEX_UNREADABLE,
            topic=facts.topic,
            detail=detail,
        )
    elif facts.segments:
        detail = f"it has {facts.segments} segments and no index: once it is loaded again, nothing in them counts"
        yield SnapshotFinding(
            finding_class=SnapshotClass.DANGER, reason=SnapshotReason.INDEX_LOST, topic=facts.topic, detail=detail
        )


def _lost_segments(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    for each in facts.named:
        if each.is_readable or each.marker[0] not in facts.ledgers:
            continue
        where = f"{each.place[0]}:{each.place[1]}"
        gone = "was trimmed" if each.place[0] not in facts.segment_ledgers else "holds nothing there that brokers read"
        detail = f"its index names segment {each.sequence} at {where}, and that ledger {gone}: it will not load again"
        yield SnapshotFinding(
            finding_class=SnapshotClass.MISSING,
            reason=SnapshotReason.SEGMENT_LOST,
            topic=facts.topic,
            detail=detail,
            kind=SnapshotKind.SEGMENT,
            key=str(SegmentKey(each.sequence, facts.topic)),
            position=each.place,
        )


def _not_named(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    named = {each.place for each in facts.named}
    # the broker republishes nothing, but a repair does: a key whose number is named is in use wherever it lies
    numbers = {each.sequence for each in facts.named}
    highest = max(numbers, default=-1)
    for value in facts.of(SnapshotKind.SEGMENT):
        if value.position in named or value.sequence in numbers:
            continue
        if value.sequence < highest:
            unnamed = "the topic's index does not name it"
            yield _of(facts, value, SnapshotClass.ORPHAN, SnapshotReason.NOT_NAMED, unnamed)
        else:  # a broker writes a segment first, and names it later; after a replay it writes the same numbers anew
            ahead = "the topic's index does not name it yet; the broker will name or replace it"
            yield _of(facts, value, SnapshotClass.WASTE, SnapshotReason.NOT_NAMED, ahead)


def _dangers(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    if facts.doubled_ids:
        detail = f"{facts.doubled_ids} ids stand in more than one segment: a trim can lose the whole list in memory"
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
            f"the broker has {buffer.aborted} aborted ids in memory, its snapshot {facts.live_ids} that still count"
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
    places = {each.place for each in facts.named}
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
    """Tell of an index that a broker writes while it replays a topic; a moment later it writes another one.

    The finding is about that very message, so two looks agree only where no other one was written between them. While
    the replay goes on, nobody can tell whether it comes to its end, and that is no alarm.
    """
    if not is_half_replayed(facts):
        return
    found = SnapshotClass.DANGER
    detail = (
        f"its index names {len(facts.named)} segments and no maxReadPosition: whoever loads it reads the whole topic "
        "again, and seals every id twice"
    )
    if is_replaying(facts):
        found = SnapshotClass.UNKNOWN
        detail = (
            f"its index names {len(facts.named)} segments and no maxReadPosition, and its broker is replaying it: "
            "wait until it is loaded, and audit again"
        )
    for value in facts.of(SnapshotKind.INDEX):
        yield _of(facts, value, found, SnapshotReason.NO_MAX_READ, detail)


def _near_limit(facts: TopicFacts) -> Iterator[SnapshotFinding]:
    for value in facts.values:
        if facts.most_bytes and value.size_bytes > NEAR_LIMIT * facts.most_bytes:
            detail = f"{value.size_bytes} bytes, and a message may have {facts.most_bytes}: then no snapshot is written"
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
