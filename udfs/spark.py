"""Functions over Arrow record batches, for Spark's mapInArrow; no other module of udfs imports Spark's libraries.

They run in Spark's Python workers, and call the plain functions of the other modules.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from udfs import columns as c
from udfs.entry_ranges import MessageAddress, runs_of
from udfs.formats.internal_stats import Position
from udfs.formats.message_id import MessagePosition, parse_message_id
from udfs.owners.references import key_of
from udfs.paths import tenant_of, topic_of
from udfs.records import Rejection
from udfs.requests.request_format import decode
from udfs.requests.retry import CUT_FROM, due_ms, essential_properties, is_oversized
from udfs.undelivered import UndeliveredMessage, refusal_of
from udfs.units import ROW_BYTES

# streaming/queries/streams.py selects these from the connector's rows, in this order
RAW = ("topic", "message_id", c.PUBLISH_MS, c.MESSAGE_KEY, c.PAYLOAD, c.MESSAGE_PROPERTIES)

_RUNS = 1000  # in a record batch

_Content = tuple[bytes | None, bytes | None, Mapping[str, str | None]]


def annotate(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Add to raw messages (columns RAW, in that order) position, due time, reference key and row number in the source.

    A source's messages come one after the other, in ascending order. After the connector has lost its connection, it
    delivers some messages again. A message that is not after all earlier ones is dropped here, so that no repetition
    gets into another chunk. If a dropped message was not delivered before, queries/delivery/completion.py finds it
    missing.

    Args:
        batches: the raw messages.
        schema: of the returned batches.
        most_bytes: a message with a larger payload is no request.
    """
    row, source, newest = -1, None, None
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        rows = []
        for topic, message_id, publish_ms, key, payload, properties in zip(*columns, strict=True):
            position = _position_of(parse_message_id(message_id))
            if topic != source:
                row, source, newest = -1, topic, None
            if newest is not None and position <= newest:
                continue
            newest = position
            content = (key, payload, dict(properties or ()))
            row += _rows_of(content)
            rows.append(_annotated(topic, position, publish_ms, content, most_bytes) | {c.ROW: row})
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _position_of(message: MessagePosition) -> tuple[int, int, int]:
    return message.ledger_id, message.entry_id, message.batch_index


def _annotated(
    topic: str, position: tuple[int, int, int], publish_ms: int, content: _Content, most_bytes: int
) -> dict[str, Any]:
    key, payload, properties = content
    ledger, entry, index = position
    request = decode(payload, most_bytes)
    return {
        c.SOURCE: topic,
        c.POSITION_LEDGER: ledger,
        c.POSITION_ENTRY: entry,
        c.POSITION_BATCH: index,
        c.PUBLISH_MS: publish_ms,
        c.DUE_MS: due_ms(publish_ms, properties),
        c.MESSAGE_KEY: key,
        c.PAYLOAD: payload,
        c.MESSAGE_PROPERTIES: list(properties.items()),
        c.REFERENCE_KEY: None if isinstance(request, Rejection) else key_of(request),
        c.TENANT: None if isinstance(request, Rejection) else tenant_of(topic_of(request.managed_ledger)),
    }


def entry_runs(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Turn positions and row numbers of messages (columns.POSITION, ROW) into runs of entries (schema: RUN).

    An entry may continue in the next record batch. A run's row number is at least that of each of its messages.
    """
    newest = 0

    def addresses() -> Iterator[MessageAddress]:
        nonlocal newest
        for batch in batches:
            for *address, row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                newest = max(newest, row)
                source, ledger, entry, index = address
                yield source, ledger, entry, index

    runs = (
        (source, run.ledger, run.first, run.last, is_whole, newest) for source, run, is_whole in runs_of(addresses())
    )
    while rows := list(islice(runs, _RUNS)):
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], schema=schema)


def size_of(key: bytes | None, payload: bytes | None, properties: Iterable[tuple[str, str | None]]) -> int:
    """Return about how much memory a message takes: bytes of key and payload, and characters of the properties."""
    about = sum(len(name) + len(value or "") for name, value in properties)
    return about + len(key or b"") + len(payload or b"")


def _rows_of(content: _Content) -> int:
    """Return how many rows a message counts as in a chunk; streaming.schemas.ROWS is the same in Spark SQL."""
    key, payload, properties = content
    return 1 + size_of(key, payload, properties.items()) // ROW_BYTES


def fallback_row(source: str, position: Position, message: UndeliveredMessage, most_bytes: int) -> dict[str, Any]:
    """Return the row of a message that was read without the connector; the caller adds the row number.

    most_bytes: as in annotate. The row is bounded as streaming.queries.streams bounds the connector's.
    """
    content, refusal = message.content, refusal_of(message)
    properties = {_encodable(name): _encodable(value) for name, value in content.properties.items()}
    key, kept, properties = _bounded((content.key, content.payload, properties), most_bytes)
    # the payload of a message that is no request is not parsed
    row = _annotated(
        source,
        (*position, message.batch_index),
        message.publish_ms,
        (key, kept if refusal is None else b"", properties),
        most_bytes,
    )
    if refusal is None:
        return row
    return row | {c.PAYLOAD: kept, c.DUE_MS: 0, c.NO_REQUEST: _encodable(refusal)}


def numbered_rows(
    source: str, position: Position, messages: Iterable[UndeliveredMessage], most_bytes: int, after: int
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield fallback_row of an entry's messages, with its number, and about how many bytes of memory it takes.

    after: the number of the last row before (-1: there is none). A large message takes several numbers, as in annotate.
    """
    for message in messages:
        row = fallback_row(source, position, message, most_bytes)
        size = size_of(row[c.MESSAGE_KEY], row[c.PAYLOAD], row[c.MESSAGE_PROPERTIES])
        after += 1 + size // ROW_BYTES
        row[c.ROW] = after
        yield row, size


def _bounded(
    content: tuple[bytes | None, bytes, dict[str, str]], most_bytes: int
) -> tuple[bytes | None, bytes, dict[str, str]]:
    key, payload, properties = content
    if is_oversized(key or b"", properties):
        key, properties = None, essential_properties(properties)
    if len(payload) > most_bytes + 1:
        properties = properties | {CUT_FROM: str(len(payload))}
        payload = payload[: most_bytes + 1]
    return key, payload, properties


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
