"""A task that reads the snapshot topics of namespaces: every message becomes a row, whatever it contains."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streaming.adapters.pulsar.snapshots.snapshot_admin import SnapshotAdmin
from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.audit import audit_columns as a
from streaming.audit.audit_options import FindingFilters
from streaming.audit.walk.listing import Problem
from streaming.audit.walk.owner_listing import find_namespaces
from streaming.clients import admin_for, admin_settings
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.ports import Broker, MetadataStore
from streaming.snapshots.audit import snapshot_columns as s
from udfs import columns as c
from udfs.paths import MANAGED_LEDGERS_ROOT, managed_ledger_name, managed_ledger_path
from udfs.records import Presence
from udfs.snapshots.codec import Index, Segment, Snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.values import ReadValue

# Indexes before segments: a broker writes a segment before the index that names it. So every segment that
# an index names here was written before the segments were read: if it is missing, it is gone.
IN_ORDER = (SnapshotKind.INDEX, SnapshotKind.SINGLE, SnapshotKind.SEGMENT)
_ROWS = 500
_BATCH_BYTES = 8 * 1024 * 1024  # of values; a batch of rows takes a few times as much memory


def namespaces_with_snapshots(store: MetadataStore, filters: FindingFilters) -> tuple[list[str], list[Problem]]:
    """Return the namespaces that have a snapshot topic, and what could not be listed. Raises UnavailableError."""
    listing = find_namespaces(store)
    prefix, suffix = f"{MANAGED_LEDGERS_ROOT}/", "/persistent"
    topics = [path for path in listing.paths if path.startswith(prefix) and path.endswith(suffix)]
    names = [path[len(prefix) : -len(suffix)] for path in topics]
    chosen = [name for name in names if _is_chosen(name, filters)]
    paths = [managed_ledger_path(system_topic(name, kind)) for name in chosen for kind in IN_ORDER]
    nodes = store.read_many(paths)
    per = len(IN_ORDER)
    present = [any(nodes[number * per : (number + 1) * per]) for number in range(len(chosen))]
    return [name for name, is_present in zip(chosen, present, strict=True) if is_present], list(listing.problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Namespaces, divided by whether a read of their snapshot topics would load a topic."""

    namespaces: list[str]  # brokers have all their snapshot topics loaded
    left_out: list[str]
    problems: list[Problem]  # the namespaces of left_out about which the brokers gave no usable answer


def loaded(store: MetadataStore, broker: Broker, namespaces: Sequence[str]) -> Loaded:
    """Find the namespaces that can be read without loading a topic. Raises UnavailableError."""
    topics = [(each, system_topic(each, kind)) for each in namespaces for kind in IN_ORDER]
    nodes = store.read_many([managed_ledger_path(topic) for _namespace, topic in topics])
    present = [each for each, node in zip(topics, nodes, strict=True) if node is not None]
    names = [managed_ledger_name(topic) for _namespace, topic in present]
    left_out: set[str] = set()
    problems: dict[str, str] = {}
    for (namespace, _topic), view in zip(present, broker.views(names, names), strict=True):
        if view.presence is Presence.UNREADABLE:
            problems[f"{MANAGED_LEDGERS_ROOT}/{namespace}"] = view.detail
            left_out.add(namespace)
        elif not view.is_loaded:
            left_out.add(namespace)
    chosen = [each for each in namespaces if each not in left_out]
    return Loaded(chosen, sorted(left_out), list(problems.items()))


def _is_chosen(namespace: str, filters: FindingFilters) -> bool:
    if filters.namespace:
        return namespace == filters.namespace
    return not filters.tenant or namespace.split("/", maxsplit=1)[0] == filters.tenant


@contextmanager
def snapshot_topics(settings: Settings, *, is_unknown_foreign: bool = False) -> Iterator[SnapshotTopics]:
    """Open the snapshot topics of the configured cluster; the block's end closes the connections."""
    with admin_for(settings) as admin, closing(SnapshotAdmin(admin_settings(settings))) as more:
        yield SnapshotTopics(settings.pulsar, admin, more, is_unknown_foreign=is_unknown_foreign)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A task: turns namespaces (audit_columns.LOCATION) into their topics' messages (snapshot_columns.MESSAGE).

    A topic that can't be read to its end also gets a row with its path and the error.
    """

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read every namespace of every batch."""
        with snapshot_topics(self.settings) as topics:
            for batch in batches:
                for namespace in batch.column(0).to_pylist():
                    yield from read_namespace(topics, namespace)


def read_namespace(topics: SnapshotTopics, namespace: str) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a namespace's snapshot topics as snapshot_columns.MESSAGE; never raises ReaperError."""
    try:
        present = topics.present(namespace)
    except ReaperError as error:
        yield _problem(namespace, f"/{namespace}", str(error))
        return
    for kind in IN_ORDER:
        topic = system_topic(namespace, kind)
        if topic not in present:
            continue
        try:
            yield from _messages(topics, namespace, kind)
        except ReaperError as error:
            yield _problem(namespace, topic, str(error))


def _messages(topics: SnapshotTopics, namespace: str, kind: SnapshotKind) -> Iterator[pa.RecordBatch]:
    rows = _Rows(namespace)
    for read in topics.compacted(namespace, kind):
        yield from rows.add(read, is_raw=False)
    # as a recovering broker reads them: only this read shows whether a segment is there (decision 30)
    if kind is SnapshotKind.SEGMENT:
        for read in topics.stored(namespace, kind):
            yield from rows.add(read, is_raw=True)
    yield from rows.rest()


class _Rows:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._number = 0
        self._held: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, read: ReadValue, *, is_raw: bool) -> Iterator[pa.RecordBatch]:
        self._number += 1
        self._held.append(row_of(self._namespace, read, self._number, is_raw=is_raw))
        self._bytes += read.size_bytes
        if len(self._held) >= _ROWS or self._bytes >= _BATCH_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._held:
            yield pa.RecordBatch.from_pylist(self._held, schema=s.MESSAGE)
        self._held, self._bytes = [], 0


def row_of(namespace: str, read: ReadValue, number: int, *, is_raw: bool) -> dict[str, Any]:
    """Return a message as snapshot_columns.MESSAGE."""
    return {
        a.NAMESPACE: namespace,
        s.KIND: str(read.kind),
        s.IS_RAW: is_raw,
        s.NUMBER: number,
        s.KEY: read.key,
        c.TOPIC_NAME: read.topic,
        s.LEDGER: read.position[0],
        s.ENTRY: read.position[1],
        s.PUBLISH_MS: read.publish_ms,
        c.BYTES: read.size_bytes,
        s.IS_NULL: read.is_null,
        s.FAULT: str(read.fault or ""),
        s.IS_BLOCKING: read.is_blocking,
        s.IS_DOUBTFUL: read.is_doubtful,
        c.DETAIL: read.detail,
        s.SEQUENCE: read.sequence,
        **_content(read.value),
    }


def _content(value: Snapshot | Segment | Index | None) -> dict[str, Any]:
    if isinstance(value, Segment):
        marker = {s.MARKER_LEDGER: value.marker[0], s.MARKER_ENTRY: value.marker[1]}
        return marker | {s.IDS: value.ids.rows, s.MOST: value.ids.most, s.LEAST: value.ids.least}
    if isinstance(value, Snapshot):
        ledgers, counts = np.unique(value.aborts.ledger, return_counts=True)
        amounts = zip(ledgers.tolist(), counts.tolist(), strict=True)
        return {s.IDS: value.aborts.rows, s.MARKERS: [{s.LEDGER: ledger, s.IDS: ids} for ledger, ids in amounts]}
    if isinstance(value, Index):
        max_read = {s.MAX_READ_LEDGER: value.max_read[0], s.MAX_READ_ENTRY: value.max_read[1]}
        return max_read | {s.IDS: value.tail.rows, s.NAMED: _named(value)}
    return {s.IDS: 0}


def _named(index: Index) -> Sequence[dict[str, int]]:
    names = (s.SEQUENCE, s.LEDGER, s.ENTRY, s.MARKER_LEDGER, s.MARKER_ENTRY)
    rows = ((sequence, *position, *marker) for sequence, position, marker in named_segments(index))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _problem(namespace: str, path: str, detail: str) -> pa.RecordBatch:
    row = {a.NAMESPACE: namespace, a.PATH: path, c.DETAIL: detail.removeprefix(f"{path}: ")}
    return pa.RecordBatch.from_pylist([row], schema=s.MESSAGE)
