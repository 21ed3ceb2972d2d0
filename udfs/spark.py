"""The only module of udfs that serves Spark: a function over Arrow record batches, for mapInArrow.

It runs in Spark's Python workers, and calls the plain functions of the other modules.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from udfs import columns as c
from udfs.formats.internal_stats import Position
from udfs.formats.message_id import MessagePosition, parse_message_id, serialize_message_id
from udfs.paths import tenant_of, topic_of
from udfs.records import Rejection
from udfs.references import key_of
from udfs.retry import due_ms, fitting
from udfs.undelivered import Found, said_of
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


def found_row(source: str, position: Position, found: Found) -> dict[str, object]:
    """Return the row of a message that was read another way than by the connector. Its row number is left to others.

    It is cut to what a copy of it may have (udfs.retry.fitting): no request is so large.
    """
    content, said = found.content, said_of(found)
    where = serialize_message_id(MessagePosition(*position, batch_index=found.batch_index))
    properties = {_encodable(name): _encodable(value) for name, value in content.properties.items()}
    # what is no request is not looked into
    payload = content.payload if said is None else b""
    row = _annotated(source, where, found.publish_ms, (content.key, payload, properties), 0)
    payload, key, properties = fitting(content.payload, content.key or b"", properties)
    row |= {c.PAYLOAD: payload, c.MESSAGE_KEY: key or None, c.MESSAGE_PROPERTIES: list(properties.items())}
    return row if said is None else row | {c.DUE_MS: 0, c.NO_REQUEST: _encodable(said)}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
