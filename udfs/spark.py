"""The only module of udfs that serves Spark: a function over Arrow record batches, for mapInArrow.

It runs in Spark's Python workers, and calls the plain functions of the other modules.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from udfs import columns as c
from udfs.formats.message_id import parse_message_id
from udfs.paths import tenant_of, topic_of
from udfs.records import Rejection
from udfs.references import key_of
from udfs.retry import due_ms
from udfs.wire import decode

# streaming/queries/transforms.py selects these from the connector's rows, in this order
RAW = ("topic", "message_id", c.PUBLISH_MS, c.MESSAGE_KEY, c.PAYLOAD, c.MESSAGE_PROPERTIES)


def annotate(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Add position, due time, row number and reference key to raw messages (columns RAW, in that order)."""
    row = 0
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        rows = []
        for topic, message_id, publish_ms, key, payload, properties in zip(*columns, strict=True):
            rows.append(_annotated(topic, message_id, publish_ms, (key, payload, properties), row))
            row += 1
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _annotated(
    topic: str, message_id: bytes, publish_ms: int, content: tuple[bytes | None, bytes | None, object], row: int
) -> dict[str, object]:
    key, payload, properties = content
    position = parse_message_id(message_id)
    named = dict(properties or ())  # type: ignore[call-overload]
    request = decode(payload)
    return {
        c.SOURCE: topic,
        c.POSITION_LEDGER: position.ledger_id,
        c.POSITION_ENTRY: position.entry_id,
        c.POSITION_BATCH: position.batch_index,
        c.PUBLISH_MS: publish_ms,
        c.DUE_MS: due_ms(publish_ms, named),
        c.ROW: row,
        c.MESSAGE_KEY: key,
        c.PAYLOAD: payload,
        c.MESSAGE_PROPERTIES: list(named.items()),
        c.REFERENCE_KEY: None if isinstance(request, Rejection) else key_of(request),
        c.TENANT: None if isinstance(request, Rejection) else tenant_of(topic_of(request.managed_ledger)),
    }
