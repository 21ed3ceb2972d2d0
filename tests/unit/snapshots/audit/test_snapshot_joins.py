"""Joins combine latest values, owners, positions of segments, and ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from streaming.audit import audit_columns as a
from streaming.audit.tables import Rows, Tables
from streaming.audit.workers import Task
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_joins
from streaming.snapshots.audit.facts import NamespaceTask, TopicTask, topic_facts
from streaming.snapshots.audit.publication import orphans_of, request_of
from streaming.snapshots.audit.snapshot_audit import agreed, message_findings
from streaming.snapshots.audit.snapshot_messages import row_of
from streaming.snapshots.audit.snapshot_report import groups_of, totals, with_advice
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.requests.request_format import decode, encode
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.codec import Index, Segment, Snapshot, entries_of
from udfs.snapshots.keys import SnapshotKind, keeper_topic
from udfs.snapshots.topic_findings import SnapshotClass
from udfs.snapshots.values import Fault, ReadValue

SPACE = "t/ns"
A, B, GONE, SINGLE, NEWER = (f"persistent://{SPACE}/{name}" for name in ("a", "b", "gone", "single", "newer"))
FULL = {  # a struct needs each of its fields
    s.MOST: None,
    s.LEAST: None,
    s.MARKERS: None,
    s.NAMED: None,
    s.MARKER_LEDGER: None,
    s.MARKER_ENTRY: None,
    s.MAX_READ_LEDGER: None,
    s.MAX_READ_ENTRY: None,
    s.IDS: 0,
    a.PATH: None,
}


class Messages:
    """Messages of one namespace, in the order in which they are read."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def index(
        self,
        topic: str,
        *rows: tuple[int, Position, Position],
        at: Position = (60, 0),
        max_read: Position = (1, 1),
    ) -> None:
        value = Index(topic, entries_of(rows), max_read, ids_of([]))
        self.add(
            ReadValue(
                kind=SnapshotKind.INDEX, key=topic, topic=topic, position=at, publish_ms=0, size_bytes=100, value=value
            )
        )

    def segment(
        self, topic: str, number: int, position: Position, ids: Sequence[tuple[int, int]], *, stored: bool = True
    ) -> None:
        value = Segment(topic, number, (5, number), ids_of(ids))
        read = ReadValue(
            kind=SnapshotKind.SEGMENT,
            key=f"multiple-{number}-{topic}",
            topic=topic,
            position=position,
            publish_ms=0,
            size_bytes=600,
            sequence=number,
            value=value,
        )
        self.add(read)
        if stored:
            self.add(read, is_raw=True)

    def add(self, read: ReadValue, *, is_raw: bool = False) -> None:
        self.rows.append(FULL | row_of(SPACE, read, len(self.rows), is_raw=is_raw))

    def kept(self, tables: Tables) -> Rows:
        return tables.of(self.rows, s.MESSAGE)


def _owners(tables: Tables, **ledgers: list[int] | None) -> Rows:
    rows = []
    for name, listed in ledgers.items():
        presence = Presence.GONE if listed is None else Presence.PRESENT
        row = {c.TOPIC_NAME: f"persistent://{SPACE}/{name}", s.PRESENCE: str(presence), s.LEDGERS: listed or []}
        at_broker = Presence.GONE if listed is None else Presence.UNREADABLE
        unknown = {s.STATE: None, s.SNAPSHOT_TYPE: None, s.ABORTED: None, c.DETAIL: ""}
        rows.append(row | {s.AT_BROKER: str(at_broker)} | unknown)
    return tables.of(rows, s.OWNER)


def _segments_topic(tables: Tables, guard: Position | None, ledgers: Sequence[int] = (70,)) -> Rows:
    guard_position = guard or (None, None)
    row = {
        a.NAMESPACE: SPACE,
        s.SEGMENT_LEDGERS: list(ledgers),
        s.GUARD_LEDGER: guard_position[0],
        s.GUARD_ENTRY: guard_position[1],
        s.KEEPS_ALL: False,
        c.DETAIL: "",
    }
    return tables.of([row], s.SEGMENTS_TOPIC)


def _world() -> Messages:
    read = Messages()
    read.index(A, (9, (69, 0), (5, 9)))  # an older index, which is ignored
    read.index(A, (0, (70, 0), (5, 0)), (1, (70, 1), (5, 1)), (2, (69, 4), (5, 2)))
    read.index(GONE)
    read.segment(A, 0, (70, 0), [(1, 1), (1, 2)])
    read.segment(A, 1, (70, 1), [(1, 2), (1, 3)])
    read.segment(A, 2, (69, 4), [(1, 4)], stored=False)  # trimmed; the compacted ledger still has it
    read.segment(A, 3, (70, 3), [(1, 5)])  # not named
    read.segment(keeper_topic(SPACE), 0, (70, 9), [(0, 0)])  # our own record after tombstones
    value = Snapshot(SINGLE, (5, 5), aborts_of([(1, 1, 4, 0), (1, 2, 5, 0), (1, 3, 5, 1)]))
    read.add(
        ReadValue(
            kind=SnapshotKind.SINGLE,
            key=SINGLE,
            topic=SINGLE,
            position=(50, 0),
            publish_ms=0,
            size_bytes=300,
            value=value,
        )
    )
    read.add(
        ReadValue(
            kind=SnapshotKind.SEGMENT,
            key="?",
            topic="",
            position=(70, 7),
            publish_ms=0,
            size_bytes=9,
            fault=Fault.ODD_KEY,
            detail="odd",
        )
    )
    read.add(
        ReadValue(
            kind=SnapshotKind.SEGMENT,
            key=f"multiple-8-{A}",
            topic=A,
            position=(70, 8),
            publish_ms=0,
            size_bytes=0,
            sequence=8,
            is_null=True,
        )
    )
    return read


def _findings(tables: Tables, messages: Rows, owners: Rows, segments: Rows) -> Rows:
    of_topics = _judged(TopicTask(0, None), snapshot_joins.topics(messages, owners, segments))
    return of_topics.and_also(_judged(NamespaceTask(), snapshot_joins.namespaces(messages, segments)))


def _judged(task: Task, rows: Rows) -> Rows:
    return rows.tables.keep_batches(task(rows.batches()), s.FINDING)


@dataclass(frozen=True)
class Joined:
    """The facts of a world."""

    of_topics: Rows
    of_namespaces: Rows  # a row for each guard


GUARDED, TOO_LATE = (69, 9), (70, 0)


@pytest.fixture
def joined(tables: Tables) -> Joined:
    messages, segments = _world().kept(tables), _segments_topic(tables, None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_joins, "VALUES_AT_ONCE", 2)  # so that topics are split into parts
        of_topics = snapshot_joins.topics(messages, _owners(tables, a=[5], gone=None, single=[5]), segments)
    guards = segments.and_also(*(_segments_topic(tables, guard) for guard in (GUARDED, TOO_LATE)))
    return Joined(of_topics, tables.keep(snapshot_joins.namespaces(messages, guards)))


def test_each_fault_is_found_once_at_its_position(joined: Joined) -> None:
    unguarded = joined.of_namespaces.where(f"{s.GUARD_LEDGER} IS NULL")
    findings = _judged(TopicTask(0, None), joined.of_topics).and_also(_judged(NamespaceTask(), unguarded))
    lines = [(row[c.REASON], row[s.KEY]) for row in findings.fetched()]
    assert len(lines) == len(set(lines))
    reasons = {(row[a.CLASS], row[c.REASON], row[c.TOPIC_NAME], row[s.KEY]) for row in findings.fetched()}
    segments = f"persistent://{SPACE}/{SnapshotKind.SEGMENT}"
    assert reasons == {
        ("MISSING", "SEGMENT_LOST", A, f"multiple-2-{A}"),
        ("DANGER", "DOUBLED_IDS", A, ""),
        ("WASTE", "NOT_NAMED", A, f"multiple-3-{A}"),
        ("ORPHAN", "OWNER_GONE", GONE, GONE),
        ("WASTE", "DEAD_IDS", SINGLE, SINGLE),
        ("DANGER", "NULLS_VISIBLE", segments, ""),
        ("DANGER", "NO_GUARD", segments, ""),
    }
    amounts = totals(findings)
    assert (amounts["ORPHAN"]["count"], amounts["WASTE"]["count"], amounts["WASTE"]["ids"]) == (1, 2, 2)
    (orphan,) = orphans_of(findings).fetched()
    position = (orphan[s.LEDGER], orphan[s.ENTRY])
    request = request_of(orphan[c.TOPIC_NAME], orphan[s.KIND], orphan[s.KEY], position)
    assert decode(encode(request)) == request
    second = findings.where(f"{c.REASON} <> 'SEGMENT_LOST'")
    later = {(row[a.CLASS], row[c.REASON]) for row in agreed(second, findings).fetched()}
    assert later == {(finding_class, reason) for finding_class, reason, *_rest in reasons} - {
        ("MISSING", "SEGMENT_LOST")
    } | {("TOO_YOUNG", "SEGMENT_LOST")}
    assert agreed(findings, findings.where("false")).fetched() == []
    groups = groups_of(findings)
    assert [group.finding_class for group in groups][:2] == [SnapshotClass.MISSING, SnapshotClass.DANGER]
    assert all(row["do"] for row in with_advice(findings))


def test_ids_are_counted_once_and_dead_ids_not(joined: Joined) -> None:
    rows = joined.of_topics.fetched()
    facts = {row[c.TOPIC_NAME]: topic_facts(row, 0, is_segmented=None) for row in rows}
    assert (facts[A].live_ids, facts[A].doubled_ids) == (3, 1)
    assert facts[SINGLE].live_ids == 2
    assert {segment.sequence: segment.is_readable for segment in facts[A].named} == {0: True, 1: True, 2: False}


@dataclass(frozen=True)
class Odd:
    """Findings about indexes without a max read position, and about a segment of another version of Pulsar."""

    of_messages: list[dict[str, Any]]
    of_topics: list[dict[str, Any]]


@pytest.fixture
def odd(tables: Tables) -> Odd:
    read = Messages()
    read.index(A, (0, (70, 0), (5, 0)), at=(60, 3), max_read=BEFORE_ALL)
    read.index(B, at=(60, 4), max_read=BEFORE_ALL)  # with such an index a topic is replayed
    read.segment(A, 0, (70, 0), [(1, 1)])
    read.index(NEWER, (0, (70, 1), (5, 0)), (1, (70, 2), (5, 1)))
    read.segment(NEWER, 0, (70, 1), [(1, 1)])
    newer = ReadValue(
        kind=SnapshotKind.SEGMENT,
        key=f"multiple-1-{NEWER}",
        topic=NEWER,
        position=(70, 2),
        publish_ms=0,
        size_bytes=600,
        sequence=1,
        fault=Fault.UNKNOWN_SCHEMA,
    )
    read.add(newer)
    read.add(newer, is_raw=True)
    messages = read.kept(tables)
    owners = _owners(tables, a=[5], b=[5], newer=[5])
    findings = _findings(tables, messages, owners, _segments_topic(tables, (69, 9)))
    return Odd(message_findings(messages).fetched(), findings.fetched())


def test_an_index_without_max_read_position_is_reported_at_its_position(odd: Odd) -> None:
    assert [(row[a.CLASS], row[c.REASON], row[s.KEY], row[s.LEDGER], row[s.ENTRY]) for row in odd.of_topics] == [
        ("DANGER", "NO_MAX_READ", A, 60, 3)
    ]


def test_a_segment_of_another_version_of_pulsar_is_unknown_and_not_lost(odd: Odd) -> None:
    reasons = [(row[a.CLASS], row[c.REASON], row[s.ENTRY]) for row in odd.of_messages]
    assert reasons == [("UNKNOWN", "UNKNOWN_SCHEMA", 2)]
    assert [row for row in odd.of_topics if row[c.TOPIC_NAME] == NEWER] == []


def test_a_guard_counts_only_before_the_first_existing_named_segment(joined: Joined) -> None:
    guards = {(row[s.GUARD_LEDGER], row[s.GUARD_ENTRY]): row[s.IS_GUARDED] for row in joined.of_namespaces.fetched()}
    assert guards == {GUARDED: True, TOO_LATE: False, (None, None): False}


def test_a_namespace_that_could_not_be_read_completely_has_no_findings(tables: Tables) -> None:
    world = _world()
    world.rows.append(FULL | dict.fromkeys(s.MESSAGE.names) | {a.NAMESPACE: SPACE, a.PATH: "topic", c.DETAIL: "broke"})
    messages = world.kept(tables)
    assert snapshot_joins.owners_of(messages).fetched() == []
    assert snapshot_joins.foreign(messages).fetched() == []


def test_foreign_messages_are_reported_without_an_owner(tables: Tables) -> None:
    assert [row[s.FAULT] for row in snapshot_joins.foreign(_world().kept(tables)).fetched()] == [str(Fault.ODD_KEY)]


def test_a_message_that_may_block_loads_is_a_danger_even_if_a_later_message_replaced_it(
    tables: Tables,
) -> None:
    read = _world()
    read.add(
        ReadValue(
            kind=SnapshotKind.INDEX,
            key="odd",
            topic="",
            position=(60, 5),
            publish_ms=0,
            size_bytes=2,
            fault=Fault.ODD_KEY,
            detail="odd",
            is_blocking=True,
        )
    )
    read.add(
        ReadValue(
            kind=SnapshotKind.INDEX,
            key=A,
            topic=A,
            position=(60, 6),
            publish_ms=0,
            size_bytes=2,
            fault=Fault.UNREADABLE,
            detail="cut",
            is_blocking=True,
        )
    )
    doubtful = ReadValue(
        kind=SnapshotKind.INDEX,
        key=A,
        topic=A,
        position=(60, 8),
        publish_ms=0,
        size_bytes=2,
        fault=Fault.UNKNOWN_SCHEMA,
        detail="v",
        is_doubtful=True,
    )
    read.add(doubtful)
    read.add(replace(doubtful, position=(60, 9), fault=Fault.FOREIGN_SCHEMA))
    read.index(A, (0, (70, 0), (5, 0)), at=(60, 10))
    read.add(replace(doubtful, key=B, topic=B, position=(60, 11)))
    findings = message_findings(read.kept(tables))
    indexes = f"persistent://{SPACE}/{SnapshotKind.INDEX}"
    reasons = {(row[a.CLASS], row[c.REASON], row[c.TOPIC_NAME], row[s.ENTRY]) for row in findings.fetched()}
    assert reasons == {
        ("DANGER", "LOAD_BLOCKED", indexes, 5),
        ("DANGER", "LOAD_BLOCKED", A, 6),
        ("DANGER", "LOAD_IN_DOUBT", A, 8),
        ("DANGER", "LOAD_IN_DOUBT", A, 9),
        ("DANGER", "LOAD_IN_DOUBT", B, 11),
        ("FOREIGN", "ODD_KEY", f"persistent://{SPACE}/{SnapshotKind.SEGMENT}", 7),
    }
    assert orphans_of(findings).fetched() == []  # --publish requests none of them


def test_foreign_messages_of_several_system_topics_are_separate_rows(tables: Tables) -> None:
    read = Messages()
    for kind in (SnapshotKind.INDEX, SnapshotKind.SINGLE, SnapshotKind.SEGMENT):
        read.add(
            ReadValue(
                kind=kind,
                key="?",
                topic="",
                position=(70, 7),
                publish_ms=0,
                size_bytes=9,
                fault=Fault.ODD_KEY,
                detail="odd",
            )
        )
    groups = groups_of(message_findings(read.kept(tables)))
    assert len({group.topic for group in groups}) == len(groups) == 3


def test_deleted_segments_are_not_counted_as_unguarded(joined: Joined) -> None:
    # of the three segments that the index names
    assert {row["segments"] for row in joined.of_namespaces.fetched()} == {2}
