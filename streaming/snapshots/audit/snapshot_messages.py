"""A task that reads the snapshot topics of namespaces: every message becomes a row, whatever it contains."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streaming.adapters.pulsar.snapshots.snapshot_topics import SnapshotTopics, system_topic
from streaming.audit import audit_columns as a
from streaming.config.settings import Settings
from streaming.errors import ReaperError
from streaming.snapshots.audit import snapshot_columns as s
from streaming.snapshots.snapshot_namespaces import IN_ORDER, snapshot_topics
from udfs import columns as c
from udfs.snapshots.codec import Index, Segment, Snapshot
from udfs.snapshots.keys import SnapshotKind
from udfs.snapshots.sealed_segments import named_segments
from udfs.snapshots.values import ReadValue

_ROWS = 500
_BATCH_BYTES = 8 * 1024 * 1024  # of values; a batch of rows takes a few times as much memory


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
