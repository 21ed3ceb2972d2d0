"""The rows of the Spark source "pulsar-frames": every message of an entry, and what is no message.

| kind | row |
|---|---|
| MESSAGE | a message that every consumer gets |
| ENCRYPTED, CHUNK | an entry as it is stored: `value` is its payload, `entry` all of its bytes |
| UNREADABLE | what follows the readable messages of an entry; `value` and `entry` as above |
| MARKER | an entry that brokers wrote for themselves |
| ABORTED_TRANSACTION, OPEN_TRANSACTION | a message that consumers do not get, or not yet |
| NOT_SHOWN | an entry that the broker returns by none of its interfaces |
| LOST, MAYBE_LOST | entries that Pulsar deleted before they were read, from this position on |
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from udfs.entry_ranges import EntrySpan
from udfs.formats.entry import Content, Entry, EntryState, parse_entry
from udfs.formats.errors import FormatError
from udfs.formats.internal_stats import BEFORE_ALL, Position
from udfs.pulsar_source.offsets import Gap, shown
from udfs.undelivered import NotShown, Undeliverable, UndeliveredMessage, found_in, found_in_bytes, not_shown

MESSAGE = "MESSAGE"
_AS_STORED = (Undeliverable.ENCRYPTED, Undeliverable.CHUNK, Undeliverable.UNREADABLE)
_NO_CONTENT = Content(key=None, payload=b"", properties={}, is_null=True)


class NoMessage(StrEnum):
    """Kinds of rows that are no message; the other kinds are MESSAGE and those of Undeliverable."""

    MARKER = "MARKER"
    LOST = "LOST"
    MAYBE_LOST = "MAYBE_LOST"


class SourceRow(NamedTuple):
    """A row without its topic; streaming.adapters.pulsar.source.schema has the same columns."""

    ledger_id: int
    entry_id: int
    batch_index: int  # -1: sent alone, or the row is about the entry as a whole
    kind: str
    detail: str | None
    content: Content
    publish_ms: int  # 0: not known
    producer: str
    transaction: str | None  # most and least significant bits of its id, as `most:least`
    entry: bytes | None  # all bytes of the entry; None for messages, and where the broker returned only their parts


def rows_of(position: Position, data: bytes) -> Iterator[SourceRow]:
    """Yield the rows of an entry that the broker sent to a reader, whatever its bytes are."""
    try:
        entry = parse_entry(data)
    except FormatError:
        for message in found_in_bytes(data):
            yield _row(position, message, None, data)
        return
    yield from rows_of_parsed(position, entry, EntryState.DELIVERED, data)


def rows_of_parsed(
    position: Position, entry: Entry, state: EntryState, data: bytes | None = None
) -> Iterator[SourceRow]:
    """Yield the rows of an entry. data: all of its bytes, if they are known."""
    if entry.marker_type is not None:
        detail = f"marker of type {entry.marker_type}"
        content = replace(_NO_CONTENT, payload=entry.payload, properties=entry.properties, is_null=False)
        marker = UndeliveredMessage(batch_index=-1, content=content, publish_ms=entry.publish_ms, detail=detail)
        yield _row(position, marker, entry, data)._replace(kind=NoMessage.MARKER, entry=data)
        return
    for message in found_in(entry, state):
        yield _row(position, message, entry, data)


def row_of_withheld(position: Position, answer: NotShown) -> SourceRow:
    """Return the row of an entry that the broker did not return."""
    return _row(position, not_shown(answer), None, None)


def row_of_gap(gap: Gap) -> SourceRow:
    """Return the row that reports a gap; its position is the first that is missing."""
    until = f"and before {shown(gap.before)} were deleted before they were read"
    if gap.is_certain:
        detail = f"entries after {shown(gap.after)} {until}"
    else:
        detail = f"entries after {shown(gap.after)} {until}, if there were any"
    if gap.after == BEFORE_ALL:
        detail = (
            f"the entries before {shown(gap.before)} are deleted; the latest message of each of their keys is in the "
            "topic's compacted ledger, which this source does not read"
        )
    else:
        detail += "; a TTL, a quota, a moved cursor or the topic's deletion can cause that"
    return _without_content(
        (gap.after[0], gap.after[1] + 1), NoMessage.LOST if gap.is_certain else NoMessage.MAYBE_LOST, detail
    )


def row_of_trimmed(span: EntrySpan) -> SourceRow:
    """Return the row for entries of a batch that Pulsar deleted after the batch was planned."""
    detail = f"entries {span.first} to {span.last} of ledger {span.ledger} were deleted before they were read"
    return _without_content((span.ledger, span.first), NoMessage.LOST, detail)


def is_taken_back(row: SourceRow) -> bool:
    """Whether the row belongs to an aborted transaction."""
    return row.kind == Undeliverable.ABORTED_TRANSACTION


def _without_content(position: Position, kind: NoMessage, detail: str) -> SourceRow:
    return SourceRow(*position, -1, kind, detail, _NO_CONTENT, 0, "", None, None)


def _row(position: Position, message: UndeliveredMessage, entry: Entry | None, data: bytes | None) -> SourceRow:
    why = message.why
    transaction = None if entry is None or entry.transaction is None else "{}:{}".format(*entry.transaction)
    return SourceRow(
        position[0],
        position[1],
        message.batch_index,
        MESSAGE if why is None else why.value,
        message.detail or None,
        message.content,
        message.publish_ms,
        "" if entry is None else entry.producer,
        transaction,
        data if why in _AS_STORED else None,
    )
