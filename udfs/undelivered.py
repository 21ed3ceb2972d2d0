"""What becomes of an entry that was not read by the connector: its messages, and why one of them is no request.

| entry | what becomes of it |
|---|---|
| messages, alone or in a batch | each goes the way of any message |
| those of a committed transaction | the same |
| those of an aborted or open transaction | a dead letter each: what was taken back, or not yet said, is not acted on |
| encrypted, alone or a batch | one dead letter with the encrypted bytes |
| a part of a larger message (chunk), sent alone | one dead letter: a request has no parts |
| what can't be read (metadata, compression, a batch's lengths) | one dead letter with the bytes, behind the messages |
|  | that can be read |
| what the broker would not show, whoever asked | one dead letter without bytes |
| a marker | nothing: no client sent a message, and no client is ever given one |
| messages that were compacted away | nothing |

An open transaction may still be committed. Its messages then have their receipts already, and are left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from udfs.formats.entry import Content, Entry, EntryState, contents_of, parse_entry
from udfs.formats.errors import FormatError
from udfs.records import Reason, Rejection

_LONGEST = 300  # of a detail: it stands in receipts and logs


class Undeliverable(StrEnum):
    """Why a message is no request, whatever its bytes say. Each is a Reason of that name."""

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


@dataclass(frozen=True, slots=True)
class UndeliveredMessage:
    """A message of an entry. batch_index -1: it was sent alone, or stands for the whole entry.

    why None: it goes the way of any message. publish_ms 0: nobody knows.
    """

    batch_index: int
    content: Content
    publish_ms: int = 0
    why: Undeliverable | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotShown:
    """An entry that the broker would not show; reason: in words."""

    reason: str
    properties: Mapping[str, str] = field(default_factory=dict)


def found_in(entry: Entry, standing: EntryState = EntryState.DELIVERED) -> Iterator[UndeliveredMessage]:
    """Yield every message of an entry, so that each ends in one receipt; none of a marker."""
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
    """The same of an entry as it lies in its partition, whatever it is."""
    try:
        entry = parse_entry(data)
    except FormatError as error:
        yield UndeliveredMessage(-1, Content(None, data, {}), why=Undeliverable.UNREADABLE, detail=str(error))
        return
    yield from found_in(entry)


def not_shown(entry: NotShown) -> UndeliveredMessage:
    """The one that stands for an entry whose bytes nobody could be made to tell."""
    return UndeliveredMessage(
        -1, Content(None, b"", entry.properties), why=Undeliverable.NOT_SHOWN, detail=entry.reason
    )


def _messages(entry: Entry, why: Undeliverable | None) -> Iterator[UndeliveredMessage]:
    detail = "" if why is None else f"the message belongs to a transaction, {entry.transaction}, that is not committed"
    after = -1
    try:
        for index, content in contents_of(entry):
            yield UndeliveredMessage(index, content, entry.publish_ms, why, detail)
            after = index + 1
    except FormatError as error:
        # behind those that could be read, and where none could, for the whole
        content = _whole_content(entry)
        yield UndeliveredMessage(after, content, entry.publish_ms, Undeliverable.UNREADABLE, str(error))


def _whole(entry: Entry, why: Undeliverable, detail: str) -> UndeliveredMessage:
    return UndeliveredMessage(-1, _whole_content(entry), entry.publish_ms, why, detail)


def _whole_content(entry: Entry) -> Content:
    return Content(entry.key, entry.payload, entry.properties, entry.is_null, entry.schema_version)


def said_of(found: UndeliveredMessage) -> str | None:
    """Return why a message is no request, for columns.NO_REQUEST; None: it goes the way of any message."""
    return None if found.why is None else f"{found.why}: {found.detail}"[:_LONGEST]


def rejection_of(said: str) -> Rejection:
    """Read what said_of returned."""
    reason, _, detail = said.partition(": ")
    return Rejection(Reason(reason), detail)
