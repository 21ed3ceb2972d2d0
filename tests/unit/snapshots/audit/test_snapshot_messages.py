"""Whatever lies in the snapshot topics becomes rows, and a topic that can't be read whole says so."""

import json
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from streaming.adapters.pulsar.snapshots import snapshot_topics as topics_module
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, as_brokers_read, system_topic
from streaming.audit.audit_columns import PATH
from streaming.audit.audit_options import FindingFilters
from streaming.ports import Broker, MetadataStore, Unreadable, Znode
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.audit import snapshot_messages as module
from streaming.snapshots.audit.snapshot_messages import Loaded, loaded, namespaces_with_snapshots, read_namespace
from tests.unit.snapshots import fakes
from tests.unit.snapshots.fakes import Store, Topics
from udfs import columns as c
from udfs.formats.entry import Content
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import Presence
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

LOADED = [system_topic(space, SnapshotKind.INDEX) for space in ("t/a", "t/b")]


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


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (FindingFilters(), ["t/a", "u/a"]),
        (FindingFilters(tenant="t"), ["t/a"]),
        (FindingFilters(namespace="u/a"), ["u/a"]),
        (FindingFilters(namespace="t/b"), []),
    ],
)
def test_namespaces_with_a_snapshot_topic_are_found_in_zookeeper(filters: FindingFilters, expected: list[str]) -> None:
    node = Znode(data=b"", version=0, ctime_ms=0, mtime_ms=0)
    root = "/managed-ledgers"
    store = Store(
        {
            f"{root}/t/a/persistent/{SnapshotKind.SINGLE}": node,
            f"{root}/u/a/persistent/{SnapshotKind.SEGMENT}": node,
            f"{root}/t/b/persistent/orders": node,
        },
        {
            root: ["t", "u", "v"],
            f"{root}/t": ["a", "b"],
            f"{root}/u": ["a"],
            f"{root}/v": Unreadable("no right"),
            **{f"{root}/{each}": ["persistent"] for each in ("t/a", "t/b", "u/a")},
        },
    )
    found, problems = namespaces_with_snapshots(cast(MetadataStore, store), filters)
    assert found == expected
    assert problems == [(f"{root}/v", "no right")]


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        (fakes.Broker(Presence.PRESENT), Loaded(["t/a", "t/b"], [], [])),
        (
            fakes.Broker(Presence.PRESENT, frozenset(managed_ledger_name(topic) for topic in LOADED)),
            Loaded(["t/a"], ["t/b"], []),
        ),
        (fakes.Broker(Presence.PRESENT, frozenset()), Loaded([], ["t/a", "t/b"], [])),
        (
            fakes.Broker(Presence.UNREADABLE),
            Loaded([], ["t/a", "t/b"], [(f"/managed-ledgers/{each}", "said so") for each in ("t/a", "t/b")]),
        ),
    ],
    ids=["all", "not all of b", "none", "no answer"],
)
def test_a_namespace_is_read_without_loading_a_topic_only_if_all_its_snapshot_topics_are_loaded(
    broker: fakes.Broker, expected: Loaded
) -> None:
    topics = [*LOADED, system_topic("t/b", SnapshotKind.SINGLE)]
    store = fakes.Store(
        {managed_ledger_path(topic): Znode(data=b"", version=0, ctime_ms=0, mtime_ms=0) for topic in topics}
    )
    assert loaded(cast(MetadataStore, store), cast(Broker, broker), ["t/a", "t/b"]) == expected
