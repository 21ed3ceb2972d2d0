"""The messages of an entry that was read without the connector, and why a message is no request.

| entry | result |
|---|---|
| messages, alone or in a batch | processed like any message |
| messages of a committed transaction | the same |
| messages of an aborted or open transaction | a dead letter each: they do not count, or not yet |
| encrypted, alone or a batch | a dead letter with the encrypted bytes |
| a part of a larger message (chunk), sent alone | a dead letter: a request has no parts |
| an unreadable part (metadata, compression, a batch's lengths) | a dead letter with the bytes, after the readable |
|  | messages |
| an entry that the broker returned by none of its interfaces | a dead letter without bytes |
| a marker | nothing: no client sends or receives markers |
| messages that were compacted away | nothing |

An open transaction may still be committed. Its messages then have their receipts already, and are left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from udfs.formats.entry import Content, Entry, EntryState, contents_of, parse_entry
from udfs.formats.errors import FormatError
from udfs.records import Reason, Rejection

_LONGEST = 300  # of a detail, which receipts and logs contain


class Undeliverable(StrEnum):
    """Why a message is no request, whatever its bytes are. Each is a Reason of that name."""

    ENCRYPTED = "ENCRYPTED"
    CHUNK = "CHUNK"
    UNREADABLE = "UNREADABLE"
    ABORTED_TRANSACTION = "ABORTED_TRANSACTION"
    OPEN_TRANSACTION = "OPEN_TRANSACTION"
    NOT_SHOWN = "NOT_SHOWN"


_OF_TRANSACTIONS = {
    EntryState.ABORTED: Undeliverable.ABORTED_TRANSACTION,
    EntryState.OPEN: Undeliverable.OPEN_TRANSACTION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredMessage:
    """A message of an entry."""

    batch_index: int  # -1: it was sent alone, or represents the whole entry
    content: Content
    publish_ms: int = 0  # 0: not known
    why: Undeliverable | None = None  # None: it is processed like any message
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotShown:
    """An entry that the broker did not return."""

    reason: str  # for the operator
    properties: Mapping[str, str] = field(default_factory=dict)


def found_in(entry: Entry, standing: EntryState = EntryState.DELIVERED) -> Iterator[UndeliveredMessage]:
    """Yield every message of an entry, so that each ends in one receipt; no message for a marker."""
    if entry.marker_type is not None:
        return
    if entry.is_encrypted:
        yield _whole(entry, Undeliverable.ENCRYPTED, "the payload is encrypted")
    elif entry.chunk is not None and entry.batch_size is None:
        detail = f"part {entry.chunk.number + 1} of {entry.chunk.of} of a larger message"
        yield _whole(entry, Undeliverable.CHUNK, detail)
    else:
        yield from _messages(entry, _OF_TRANSACTIONS.get(standing))


def found_in_bytes(data: bytes) -> Iterator[UndeliveredMessage]:
    """Yield the same for an entry's stored bytes, whatever they are."""
    try:
        entry = parse_entry(data)
    except FormatError as error:
        yield UndeliveredMessage(
            batch_index=-1,
            content=Content(key=None, payload=data, properties={}),
            why=Undeliverable.UNREADABLE,
            detail=str(error),
        )
        return
    yield from found_in(entry)


def not_shown(entry: NotShown) -> UndeliveredMessage:
    """Return the message that represents an entry whose bytes could not be read."""
    return UndeliveredMessage(
        batch_index=-1,
        content=Content(key=None, payload=b"", properties=entry.properties),
        why=Undeliverable.NOT_SHOWN,
        detail=entry.reason,
    )


def _messages(entry: Entry, why: Undeliverable | None) -> Iterator[UndeliveredMessage]:
    detail = "" if why is None else f"the message belongs to a transaction, {entry.transaction}, that is not committed"
    after = -1
    try:
        for index, content in contents_of(entry):
            yield UndeliveredMessage(
                batch_index=index, content=content, publish_ms=entry.publish_ms, why=why, detail=detail
            )
            after = index + 1
    except FormatError as error:
        # its index follows the readable messages; if no message is readable, -1: it represents the whole entry
        content = _whole_content(entry)
        yield UndeliveredMessage(
            batch_index=after,
            content=content,
            publish_ms=entry.publish_ms,
            why=Undeliverable.UNREADABLE,
            detail=str(error),
        )


def _whole(entry: Entry, why: Undeliverable, detail: str) -> UndeliveredMessage:
    return UndeliveredMessage(
        batch_index=-1, content=_whole_content(entry), publish_ms=entry.publish_ms, why=why, detail=detail
    )


def _whole_content(entry: Entry) -> Content:
    return Content(
        key=entry.key,
        payload=entry.payload,
        properties=entry.properties,
        is_null=entry.is_null,
        schema_version=entry.schema_version,
    )


def refusal_of(message: UndeliveredMessage) -> str | None:
    """Return why a message is no request, for columns.NO_REQUEST; None: it is processed like any message."""
    return None if message.why is None else f"{message.why}: {message.detail}"[:_LONGEST]


def rejection_of(refusal: str) -> Rejection:
    """Parse what refusal_of returned."""
    reason, _, detail = refusal.partition(": ")
    return Rejection(Reason(reason), detail)
