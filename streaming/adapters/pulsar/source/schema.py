"""The columns of the Spark source "pulsar-frames", and record batches of them."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

from udfs.pulsar_source.source_rows import SourceRow

_Row = TypeVar("_Row")

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),  # full name of the partition, or of a topic without partitions
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("batch_index", pa.int32()),
        pa.field("kind", pa.string()),  # udfs/pulsar_source/source_rows.py
        pa.field("detail", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("publish_time", _TIME),
        pa.field("event_time", _TIME),
        pa.field("producer", pa.string()),
        pa.field("sequence_id", pa.int64()),
        pa.field("schema_version", pa.binary()),
        pa.field("transaction", pa.string()),
        pa.field("entry", pa.binary()),
    ]
)
DDL = (
    "topic string, ledger_id bigint, entry_id bigint, batch_index int, kind string, detail string, key binary, "
    "value binary, properties map<string,string>, publish_time timestamp, event_time timestamp, producer string, "
    "sequence_id bigint, schema_version binary, transaction string, entry binary"
)

# limits of a record batch; a worker and the JVM hold a few of them at once
MOST_ROWS = 1000
MOST_BYTES = 8 * 1024 * 1024


def record_batches(topic: str, rows: Iterable[SourceRow]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of at most MOST_ROWS rows, which exceed MOST_BYTES by one row at most."""
    for group in groups((row, _size_of(row)) for row in rows):
        yield _record_batch(topic, group)


def groups(rows: Iterable[tuple[_Row, int]]) -> Iterator[list[_Row]]:
    """Yield rows (each given with its size in bytes) in groups for one record batch each, within the same limits."""
    waiting: list[_Row] = []
    size = 0
    for row, row_bytes in rows:
        waiting.append(row)
        size += row_bytes
        if len(waiting) >= MOST_ROWS or size >= MOST_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def _record_batch(topic: str, rows: list[SourceRow]) -> pa.RecordBatch:
    contents = [row.content for row in rows]
    columns = (
        [topic] * len(rows),
        [row.ledger_id for row in rows],
        [row.entry_id for row in rows],
        [row.batch_index for row in rows],
        [row.kind for row in rows],
        [_encodable(row.detail) for row in rows],
        [content.key for content in contents],
        [None if content.is_null else content.payload for content in contents],
        [[(_encodable(name), _encodable(text)) for name, text in content.properties.items()] for content in contents],
        [row.publish_ms * 1000 or None for row in rows],
        [content.event_ms * 1000 or None for content in contents],
        [_encodable(row.producer) for row in rows],
        [content.sequence_id for content in contents],
        [content.schema_version or None for content in contents],
        [row.transaction for row in rows],
        [row.entry for row in rows],
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _size_of(row: SourceRow) -> int:
    content = row.content
    size = len(content.payload) + len(content.key or b"") + len(row.entry or b"")
    return size + sum(len(name) + len(text) for name, text in content.properties.items())


def _encodable(text: str | None) -> str | None:
    """Replace surrogates, which the admin API's JSON may contain, and Arrow refuses."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()
