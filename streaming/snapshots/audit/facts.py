"""Tasks before and after the joins (snapshot_joins.py): they collect facts from brokers, and make findings.

The rules of the findings are in udfs/snapshots/topic_findings.py.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streaming.adapters.pulsar.admin_api.admin import PulsarAdmin
from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.adapters.pulsar.snapshots.snapshot_store import GUARD, NO_LIMIT
from streaming.adapters.pulsar.snapshots.snapshot_topics import system_topic
from streaming.audit import audit_columns as a
from streaming.clients import admin_for, admin_settings, clients_for
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import Broker, MetadataStore, Znode
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.snapshot_namespaces import IN_ORDER
from udfs import columns as c
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import Position
from udfs.formats.managed_ledger import parse_managed_ledger
from udfs.paths import managed_ledger_name, managed_ledger_path
from udfs.records import BrokerView, Presence
from udfs.snapshots.avro_schemas import SchemaOrigin, origin_of
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.topic_findings import (
    BufferFacts,
    IndexState,
    NamedSegment,
    NamespaceFacts,
    SnapshotFacts,
    SnapshotFinding,
    TopicFacts,
    findings_of,
    namespace_findings_of,
)

_FINDINGS_PER_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class SegmentsTopicTask:
    """A task: turns namespaces (audit_columns.LOCATION) into rows of snapshot_columns.SEGMENTS_TOPIC.

    A namespace without a topic of segments has no row.
    """

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the facts about every namespace of every batch. Raises UnavailableError."""
        clients = clients_for(self.settings)
        with admin_for(self.settings) as admin:
            for batch in batches:
                rows = segments_topics(clients.store, clients.broker, admin, batch.column(0).to_pylist())
                yield pa.RecordBatch.from_pylist(rows, schema=s.SEGMENTS_TOPIC)


def segments_topics(
    store: MetadataStore, broker: Broker, admin: PulsarAdmin, namespaces: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows of snapshot_columns.SEGMENTS_TOPIC; loads no topic.

    A guard that can't be read counts as missing. Raises UnavailableError.
    """
    topics = {each: system_topic(each, SnapshotKind.SEGMENT) for each in namespaces}
    nodes = store.read_many([managed_ledger_path(topic) for topic in topics.values()])
    present = [
        managed_ledger_name(topic) for topic, node in zip(topics.values(), nodes, strict=True) if node is not None
    ]
    views = dict(zip(present, broker.views(present, present), strict=True))
    rows: list[dict[str, Any]] = []
    for (namespace, topic), node in zip(topics.items(), nodes, strict=True):
        if node is None:
            continue
        row = {a.NAMESPACE: namespace, s.SEGMENT_LEDGERS: [], s.KEEPS_ALL: False, c.DETAIL: ""}
        try:
            if isinstance(node, Znode):
                row[s.SEGMENT_LEDGERS] = [each.ledger_id for each in parse_managed_ledger(node.data).ledgers]
            row |= _guard(admin, topic, views[managed_ledger_name(topic)])
        except (ReaperError, FormatError) as error:
            row[c.DETAIL] = str(error)
        rows.append(row)
    return rows


def _guard(admin: PulsarAdmin, topic: str, view: BrokerView) -> dict[str, Any]:
    row: dict[str, Any] = {s.KEEPS_ALL: admin.retention(topic) == NO_LIMIT}
    if view.presence is not Presence.PRESENT or not view.is_loaded:
        return row | {c.DETAIL: view.detail or "no broker has it loaded, and asking for its guard would load it"}
    stats = admin.internal_stats(topic)
    if stats.has_subscription(GUARD):
        row |= dict(zip((s.GUARD_LEDGER, s.GUARD_ENTRY), stats.mark_deleted(GUARD), strict=True))
    return row


@dataclass(frozen=True, slots=True)
class TopicTask:
    """A task: turns rows of snapshot_joins.topics() into findings (snapshot_columns.FINDING)."""

    most_bytes: int
    is_segmented: bool | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the rules to every row."""
        for batch in batches:
            for row in batch.to_pylist():
                facts = topic_facts(row, self.most_bytes, is_segmented=self.is_segmented)
                yield from finding_batches(row[a.NAMESPACE], findings_of(facts))


@dataclass(frozen=True, slots=True)
class NamespaceTask:
    """A task: turns rows of snapshot_joins.namespaces() into findings (snapshot_columns.FINDING)."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply the rules to every row."""
        for batch in batches:
            for row in batch.to_pylist():
                facts = NamespaceFacts(
                    namespace=row[a.NAMESPACE],
                    nulls=row[s.NULLS] or 0,
                    segments=row["segments"] or 0,
                    is_guarded=row[s.IS_GUARDED],
                )
                yield from finding_batches(row[a.NAMESPACE], namespace_findings_of(facts))


@dataclass(frozen=True, slots=True)
class SchemaTask:
    """A task: turns namespaces (audit_columns.LOCATION) into findings about the schemas of their snapshot topics."""

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the schemas of every namespace of every batch. Raises UnavailableError, RefusedError."""
        with closing(SnapshotAdmin(admin_settings(self.settings))) as admin:
            for batch in batches:
                for namespace in batch.column(0).to_pylist():
                    facts = NamespaceFacts(namespace=namespace, foreign=foreign_versions(admin, namespace))
                    yield from finding_batches(namespace, namespace_findings_of(facts))


def foreign_versions(admin: SnapshotAdmin, namespace: str) -> dict[str, int]:
    """Return system topic -> how many of its schema versions are not the brokers'."""
    versions = {}
    for kind in IN_ORDER:
        definitions = admin.schemas(system_topic(namespace, kind)).values()
        if foreign := sum(origin_of(kind, text) is SchemaOrigin.FOREIGN for text in definitions):
            versions[str(kind)] = foreign
    return versions


def topic_facts(row: Mapping[str, Any], most_bytes: int, *, is_segmented: bool | None) -> TopicFacts:
    """Return the facts in a row of snapshot_joins.topics()."""
    values = tuple(_value(each) for each in row[s.VALUES])
    in_single = sum(each.ids - each.dead_ids for each in values if each.kind is SnapshotKind.SINGLE)
    return TopicFacts(
        topic=row[c.TOPIC_NAME],
        in_metadata=Presence(row[s.PRESENCE] or Presence.UNREADABLE),
        at_broker=Presence(row[s.AT_BROKER] or Presence.UNREADABLE),
        detail=row[c.DETAIL] or "",
        ledgers=frozenset(row[s.LEDGERS] or ()),
        segment_ledgers=frozenset(row[s.SEGMENT_LEDGERS] or ()),
        values=values,
        is_first=row[s.PART] == 0,
        index=IndexState(row[s.INDEX] or IndexState.NONE),
        segments=row["segments"] or 0,
        named=tuple(_named(each) for each in row[s.NAMED] or ()),
        live_ids=row[s.LIVE_IDS] or 0 if row[s.INDEX] else in_single,
        doubled_ids=row[s.DOUBLED_IDS] or 0,
        buffer=_buffer(row),
        most_bytes=most_bytes,
        is_segmented=is_segmented,
    )


def finding_batches(namespace: str, findings: Iterable[SnapshotFinding]) -> Iterator[pa.RecordBatch]:
    """Yield findings as batches of snapshot_columns.FINDING."""
    rows = []
    for finding in findings:
        rows.append(_finding(namespace, finding))
        if len(rows) >= _FINDINGS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=s.FINDING)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=s.FINDING)


def _value(row: Mapping[str, Any]) -> SnapshotFacts:
    return SnapshotFacts(
        kind=SnapshotKind(row[s.KIND]),
        key=row[s.KEY],
        position=(row[s.LEDGER], row[s.ENTRY]),
        size_bytes=row[c.BYTES],
        ids=row[s.IDS],
        dead_ids=row[s.DEAD_IDS],
        sequence=row[s.SEQUENCE],
        marker=_position(row, s.MARKER_LEDGER, s.MARKER_ENTRY),
        max_read=None if row[s.MAX_READ_LEDGER] is None else (row[s.MAX_READ_LEDGER], row[s.MAX_READ_ENTRY]),
    )


def _named(row: Mapping[str, Any]) -> NamedSegment:
    position, marker = _position(row, s.LEDGER, s.ENTRY), _position(row, s.MARKER_LEDGER, s.MARKER_ENTRY)
    return NamedSegment(row[s.SEQUENCE], position, marker, row[s.IS_READABLE])


def _position(row: Mapping[str, Any], ledger: str, entry: str) -> Position:
    ledger_id = row[ledger]
    return (-1, -1) if ledger_id is None else (ledger_id, row[entry])


def _buffer(row: Mapping[str, Any]) -> BufferFacts | None:
    if row[s.STATE] is None:
        return None
    return BufferFacts(state=row[s.STATE], snapshot_type=row[s.SNAPSHOT_TYPE] or "", aborted=row[s.ABORTED] or 0)


def _finding(namespace: str, found: SnapshotFinding) -> dict[str, Any]:
    return {
        a.CLASS: str(found.finding_class),
        c.REASON: str(found.reason),
        a.NAMESPACE: namespace,
        c.TOPIC_NAME: found.topic,
        s.KIND: str(found.kind),
        s.KEY: found.key,
        s.LEDGER: found.position[0],
        s.ENTRY: found.position[1],
        c.BYTES: found.size_bytes,
        s.IDS: found.ids,
        c.DETAIL: found.detail,
    }
