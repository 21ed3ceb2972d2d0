"""Spark's joins bring together what belongs together: latest values, owners, places of segments, ids."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from streaming.audit import audit_columns as a
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_joins
from streaming.snapshots.audit.facts import NamespaceTask, TopicTask, topic_facts
from streaming.snapshots.audit.publication import orphans_of, request_of
from streaming.snapshots.audit.snapshot_audit import agreed, message_findings, totals
from streaming.snapshots.audit.snapshot_messages import row_of
from streaming.snapshots.audit.snapshot_report import groups_of, with_advice
from udfs import columns as c
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.records import Presence
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.codec import Index, Segment, Snapshot, entries_of
from udfs.snapshots.keys import SnapshotKind, keeper_topic
from udfs.snapshots.topic_findings import SnapshotClass
from udfs.snapshots.values import Fault, ReadValue
from udfs.wire import decode, encode

SPACE = "t/ns"
A, B, GONE, SINGLE = (f"persistent://{SPACE}/{name}" for name in ("a", "b", "gone", "single"))
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
        self, topic: str, number: int, place: Position, ids: Sequence[tuple[int, int]], *, stored: bool = True
    ) -> None:
        value = Segment(topic, number, (5, number), ids_of(ids))
        read = ReadValue(
            kind=SnapshotKind.SEGMENT,
            key=f"multiple-{number}-{topic}",
            topic=topic,
            position=place,
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

    def frame(self, spark: SparkSession) -> DataFrame:
        table = pa.Table.from_pylist(self.rows, schema=s.MESSAGE)
        return spark.createDataFrame(table.to_pylist(), from_arrow_schema(s.MESSAGE))


def _owners(spark: SparkSession, **ledgers: list[int] | None) -> DataFrame:
    rows = []
    for name, listed in ledgers.items():
        presence = Presence.GONE if listed is None else Presence.PRESENT
        row = {c.TOPIC_NAME: f"persistent://{SPACE}/{name}", s.PRESENCE: str(presence), s.LEDGERS: listed or []}
        at_broker = Presence.GONE if listed is None else Presence.UNREADABLE
        unknown = {s.STATE: None, s.SNAPSHOT_TYPE: None, s.ABORTED: None, c.DETAIL: ""}
        rows.append(row | {s.AT_BROKER: str(at_broker)} | unknown)
    return spark.createDataFrame(rows, from_arrow_schema(s.OWNER))


def _segments_topic(spark: SparkSession, guard: Position | None, ledgers: Sequence[int] = (70,)) -> DataFrame:
    place = guard or (None, None)
    row = {
        a.NAMESPACE: SPACE,
        s.SEGMENT_LEDGERS: list(ledgers),
        s.GUARD_LEDGER: place[0],
        s.GUARD_ENTRY: place[1],
        s.KEEPS_ALL: False,
        c.DETAIL: "",
    }
    return spark.createDataFrame([row], from_arrow_schema(s.SEGMENTS_TOPIC))


def _world() -> Messages:
    read = Messages()
    read.index(A, (9, (69, 0), (5, 9)))  # an older one, which does not count
    read.index(A, (0, (70, 0), (5, 0)), (1, (70, 1), (5, 1)), (2, (69, 4), (5, 2)))
    read.index(GONE)
    read.segment(A, 0, (70, 0), [(1, 1), (1, 2)])
    read.segment(A, 1, (70, 1), [(1, 2), (1, 3)])
    read.segment(A, 2, (69, 4), [(1, 4)], stored=False)  # trimmed; the compacted ledger still has it
    read.segment(A, 3, (70, 3), [(1, 5)])  # not named
    read.segment(keeper_topic(SPACE), 0, (70, 9), [(0, 0)])  # our own record behind tombstones
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


def _found(spark: SparkSession, messages: DataFrame, owners: DataFrame, segments: DataFrame) -> DataFrame:
    schema = from_arrow_schema(s.FINDING)
    of_topics = snapshot_joins.topics(messages, owners, segments).mapInArrow(TopicTask(0, None), schema)
    return of_topics.unionByName(snapshot_joins.namespaces(messages, segments).mapInArrow(NamespaceTask(), schema))


def test_each_fault_is_found_once_where_it_is(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_joins, "VALUES_AT_ONCE", 2)  # so that topics come in parts
    messages = _world().frame(spark)
    owners = _owners(spark, a=[5], gone=None, single=[5])
    found = _found(spark, messages, owners, _segments_topic(spark, None)).cache()
    lines = [(row[c.REASON], row[s.KEY]) for row in found.collect()]
    assert len(lines) == len(set(lines))
    told = {(row[a.CLASS], row[c.REASON], row[c.TOPIC_NAME], row[s.KEY]) for row in found.collect()}
    segments = f"persistent://{SPACE}/{SnapshotKind.SEGMENT}"
    assert told == {
        ("MISSING", "SEGMENT_LOST", A, f"multiple-2-{A}"),
        ("DANGER", "DOUBLED_IDS", A, ""),
        ("WASTE", "NOT_NAMED", A, f"multiple-3-{A}"),
        ("ORPHAN", "OWNER_GONE", GONE, GONE),
        ("WASTE", "DEAD_IDS", SINGLE, SINGLE),
        ("DANGER", "NULLS_VISIBLE", segments, ""),
        ("DANGER", "NO_GUARD", segments, ""),
    }
    amounts = totals(found)
    assert (amounts["ORPHAN"]["count"], amounts["WASTE"]["count"], amounts["WASTE"]["ids"]) == (1, 2, 2)
    (orphan,) = orphans_of(found).collect()
    place = (orphan[s.LEDGER], orphan[s.ENTRY])
    request = request_of(orphan[c.TOPIC_NAME], orphan[s.KIND], orphan[s.KEY], place)
    assert decode(encode(request)) == request
    second = found.where(found[c.REASON] != "SEGMENT_LOST")
    later = {(row[a.CLASS], row[c.REASON]) for row in agreed(second, found).collect()}
    assert later == {(finding_class, reason) for finding_class, reason, *_rest in told} - {
        ("MISSING", "SEGMENT_LOST")
    } | {("TOO_YOUNG", "SEGMENT_LOST")}
    assert agreed(found, found.limit(0)).collect() == []
    groups = groups_of(found)
    assert [each.finding_class for each in groups][:2] == [SnapshotClass.MISSING, SnapshotClass.DANGER]
    assert all(row["do"] for row in with_advice(found).collect())


def test_ids_are_counted_once_and_dead_ones_not(spark: SparkSession) -> None:
    rows = snapshot_joins.topics(
        _world().frame(spark), _owners(spark, a=[5], single=[5]), _segments_topic(spark, None)
    ).collect()
    facts = {row[c.TOPIC_NAME]: topic_facts(row.asDict(recursive=True), 0, is_segmented=None) for row in rows}
    assert (facts[A].live_ids, facts[A].doubled_ids) == (3, 1)
    assert facts[SINGLE].live_ids == 2
    assert {each.sequence: each.is_readable for each in facts[A].named} == {0: True, 1: True, 2: False}


def test_an_index_that_does_not_say_up_to_where_it_is_complete_is_told_where_it_is(spark: SparkSession) -> None:
    read = Messages()
    read.index(A, (0, (70, 0), (5, 0)), at=(60, 3), max_read=BEFORE_ALL)
    read.index(B, at=(60, 4), max_read=BEFORE_ALL)  # with such a one a topic is replayed
    read.segment(A, 0, (70, 0), [(1, 1)])
    found = _found(spark, read.frame(spark), _owners(spark, a=[5], b=[5]), _segments_topic(spark, (69, 9))).collect()
    assert [(row[a.CLASS], row[c.REASON], row[s.KEY], row[s.LEDGER], row[s.ENTRY]) for row in found] == [
        ("DANGER", "NO_MAX_READ", A, 60, 3)
    ]


def test_a_guard_counts_only_before_the_first_named_segment_that_is_there(spark: SparkSession) -> None:
    messages = _world().frame(spark)
    for guard, is_guarded in (((69, 9), True), ((70, 0), False), (None, False)):
        (row,) = snapshot_joins.namespaces(messages, _segments_topic(spark, guard)).collect()
        assert row[s.IS_GUARDED] is is_guarded


def test_of_a_namespace_that_could_not_be_read_whole_nothing_is_told(spark: SparkSession) -> None:
    world = _world()
    world.rows.append(FULL | dict.fromkeys(s.MESSAGE.names) | {a.NAMESPACE: SPACE, a.PATH: "topic", c.DETAIL: "broke"})
    messages = world.frame(spark)
    assert snapshot_joins.owners_of(messages).collect() == []
    assert snapshot_joins.foreign(messages).collect() == []


def test_foreign_messages_are_told_without_an_owner(spark: SparkSession) -> None:
    assert [row[s.FAULT] for row in snapshot_joins.foreign(_world().frame(spark)).collect()] == [str(Fault.ODD_KEY)]


def test_what_blocks_or_may_block_loading_is_a_danger_also_where_a_later_message_replaced_it(
    spark: SparkSession,
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
    found = message_findings(read.frame(spark)).cache()
    indexes = f"persistent://{SPACE}/{SnapshotKind.INDEX}"
    told = {(row[a.CLASS], row[c.REASON], row[c.TOPIC_NAME], row[s.ENTRY]) for row in found.collect()}
    assert told == {
        ("DANGER", "LOAD_BLOCKED", indexes, 5),
        ("DANGER", "LOAD_BLOCKED", A, 6),
        ("DANGER", "LOAD_IN_DOUBT", A, 8),
        ("DANGER", "LOAD_IN_DOUBT", A, 9),
        ("DANGER", "LOAD_IN_DOUBT", B, 11),
        ("FOREIGN", "ODD_KEY", f"persistent://{SPACE}/{SnapshotKind.SEGMENT}", 7),
    }
    assert orphans_of(found).collect() == []  # --publish asks for none of them


def test_what_another_version_of_pulsar_may_have_written_is_unknown_and_no_lost_segment(spark: SparkSession) -> None:
    read = Messages()
    read.index(A, (0, (70, 0), (5, 0)), (1, (70, 1), (5, 1)))
    read.segment(A, 0, (70, 0), [(1, 1)])
    newer = ReadValue(
        kind=SnapshotKind.SEGMENT,
        key=f"multiple-1-{A}",
        topic=A,
        position=(70, 1),
        publish_ms=0,
        size_bytes=600,
        sequence=1,
        fault=Fault.UNKNOWN_SCHEMA,
    )
    read.add(newer)
    read.add(newer, is_raw=True)
    messages = read.frame(spark)
    told = [(row[a.CLASS], row[c.REASON], row[s.ENTRY]) for row in message_findings(messages).collect()]
    assert told == [("UNKNOWN", "UNKNOWN_SCHEMA", 1)]
    found = _found(spark, messages, _owners(spark, a=[5]), _segments_topic(spark, (69, 0)))
    assert [row[c.REASON] for row in found.collect()] == []


def test_foreign_messages_of_several_system_topics_are_not_one_row(spark: SparkSession) -> None:
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
    groups = groups_of(message_findings(read.frame(spark)))
    assert len({each.topic for each in groups}) == len(groups) == 3


def test_segments_that_are_gone_are_not_counted_as_unguarded(spark: SparkSession) -> None:
    (row,) = snapshot_joins.namespaces(_world().frame(spark), _segments_topic(spark, None)).collect()
    assert row["segments"] == 2  # of the three that the index names
