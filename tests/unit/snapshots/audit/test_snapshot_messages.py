"""Whatever lies in the snapshot topics becomes rows, and a topic that can't be read whole says so."""

import json
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from streaming.adapters.pulsar.snapshots import snapshot_topics as topics_module
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, as_brokers_read, system_topic
from streaming.audit.audit_columns import PATH
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_messages as module
from streaming.snapshots.audit.snapshot_messages import read_namespace
from tests.unit.snapshots.fakes import Topics
from udfs import columns as c
from udfs.formats.entry import Content
from udfs.snapshots.aborts import aborts_of, ids_of
from udfs.snapshots.avro_schemas import SCHEMAS
from udfs.snapshots.codec import Index, Segment, Snapshot, encode_index, entries_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.values import Fault, ReadValue
from udfs.undelivered import Undeliverable, UndeliveredMessage

SPACE = "t/ns"
TOPIC = f"persistent://{SPACE}/orders"
ALL = {system_topic(SPACE, kind) for kind in SnapshotKind}


def _value(kind: SnapshotKind, value: Any, key: str = TOPIC, number: int = -1) -> ReadValue:
    return ReadValue(
        kind=kind, key=key, topic=TOPIC, position=(7, 1), publish_ms=5, size_bytes=9, sequence=number, value=value
    )


INDEX = _value(SnapshotKind.INDEX, Index(TOPIC, entries_of([(0, (7, 1), (2, 2))]), (2, 3), ids_of([(1, 1)])))
SEGMENT = _value(SnapshotKind.SEGMENT, Segment(TOPIC, 0, (2, 2), ids_of([(1, 1), (1, 2)])), f"multiple-0-{TOPIC}", 0)
SINGLE = _value(SnapshotKind.SINGLE, Snapshot(TOPIC, (2, 3), aborts_of([(1, 1, 2, 0), (1, 2, 2, 1), (1, 3, 4, 0)])))
TORN = ReadValue(
    kind=SnapshotKind.SINGLE,
    key="?",
    topic="",
    position=(7, 2),
    publish_ms=5,
    size_bytes=9,
    fault=Fault.UNREADABLE,
    detail="torn",
)
MESSAGES = {SnapshotKind.INDEX: [INDEX], SnapshotKind.SEGMENT: [SEGMENT], SnapshotKind.SINGLE: [SINGLE, TORN]}


def _rows(topics: Topics) -> list[dict[str, Any]]:
    batches = list(read_namespace(cast(SnapshotTopics, topics), SPACE))
    return pa.Table.from_batches(batches, schema=s.MESSAGE).to_pylist() if batches else []


def test_each_message_is_a_row_and_segments_are_read_twice() -> None:
    rows = _rows(Topics(MESSAGES, names=ALL))
    assert [(row[s.KIND], row[s.IS_RAW]) for row in rows] == [
        (str(SnapshotKind.INDEX), False),  # before segments: what it names was written before it
        (str(SnapshotKind.SINGLE), False),
        (str(SnapshotKind.SINGLE), False),
        (str(SnapshotKind.SEGMENT), False),
        (str(SnapshotKind.SEGMENT), True),
    ]
    index, single, torn, segment, _stored = rows
    assert [each[s.MARKER_LEDGER] for each in index[s.NAMED]] == [2]
    assert (segment[s.LEAST], segment[s.MARKER_ENTRY], segment[s.IDS]) == ([1, 2], 2, 2)
    assert single[s.MARKERS] == [{s.LEDGER: 2, s.IDS: 2}, {s.LEDGER: 4, s.IDS: 1}]
    assert (torn[s.FAULT], torn[c.TOPIC_NAME]) == ("UNREADABLE", "")


def test_topics_that_are_not_there_are_not_read() -> None:
    assert _rows(Topics(MESSAGES, names={TOPIC})) == []


def test_what_breaks_off_is_told() -> None:
    rows = _rows(Topics(MESSAGES, fails=SnapshotKind.INDEX, names=ALL))
    assert rows[0][PATH] == system_topic(SPACE, SnapshotKind.INDEX)
    assert rows[0][c.DETAIL] == "it broke off"
    assert len(rows) == 5
    assert [row[PATH] for row in _rows(Topics(MESSAGES))] == [f"/{SPACE}"]


def test_rows_are_handed_on_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_BYTES", 18)
    topics = Topics({SnapshotKind.SINGLE: [SINGLE] * 5}, names=ALL)
    assert [len(batch) for batch in read_namespace(cast(SnapshotTopics, topics), SPACE)] == [2, 2, 1]


@pytest.mark.parametrize("is_unknown_foreign", [False, True])
def test_a_message_is_judged_by_the_schemas_that_its_topic_has(
    is_unknown_foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = SCHEMAS[SnapshotKind.INDEX]
    newer = schema | {"fields": [*schema["fields"], {"name": "more", "type": "long"}]}

    class Admin:
        schemas_of: ClassVar = {0: json.dumps(schema)}

        def schemas(self, topic: str) -> dict[int, str]:
            return self.schemas_of

    value = encode_index(Index(TOPIC, entries_of([]), (2, 3), ids_of([])))
    written = [
        UndeliveredMessage(
            batch_index=-1,
            content=Content(key=TOPIC.encode(), payload=payload, properties={}, schema_version=version),
        )
        for version in (b"", bytes(8), bytes(7) + b"\x01")
        for payload in (value, b"\xff")
    ]
    monkeypatch.setattr(topics_module, "read_compacted", lambda *_each: [((7, 1), found) for found in written])
    more = Admin()
    topics = SnapshotTopics(cast(Any, None), cast(Any, None), cast(Any, more), is_unknown_foreign=is_unknown_foreign)
    known = [None, Fault.UNREADABLE] * 2
    reads = list(topics.compacted(SPACE, SnapshotKind.INDEX))
    assert [read.fault for read in reads] == [*known, Fault.UNKNOWN_SCHEMA, Fault.UNKNOWN_SCHEMA]
    assert [read.is_blocking for read in reads] == [False, True] * 3
    more.schemas_of[1] = json.dumps(newer)
    reads = list(topics.compacted(SPACE, SnapshotKind.INDEX))
    assert [read.fault for read in reads] == [*known, *[_fault_of(is_unknown_foreign)] * 2]
    assert [read.is_blocking for read in reads] == [False, True, False, True, False, is_unknown_foreign]
    assert [read.is_doubtful for read in reads] == [False] * 4 + [True, not is_unknown_foreign]


def _fault_of(is_unknown_foreign: bool) -> Fault:
    return Fault.FOREIGN_SCHEMA if is_unknown_foreign else Fault.UNKNOWN_SCHEMA


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(Content(key=b"k", payload=b"x", properties={}), None, id="plain"),
        pytest.param(
            Content(key=b"k", payload=b"x", properties={}, is_plain=False),
            Undeliverable.UNREADABLE,
            id="compressed or in a batch",
        ),
        pytest.param(
            Content(key=b"k", payload=b"", properties={}, is_null=True, is_plain=False), None, id="a tombstone"
        ),
    ],
)
def test_a_broker_can_read_a_segment_only_where_it_lies_as_it_is(content: Content, why: Undeliverable | None) -> None:
    assert as_brokers_read(UndeliveredMessage(batch_index=-1, content=content)).why is why
