"""Reads the rows of a task: the request in each message, and those of its properties that count."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streaming.schemas import REQUESTS
from udfs import columns as c
from udfs.formats.message_id import message_id_text
from udfs.records import PendingDelete, Rejection
from udfs.requests.admission import Admission, admit, first_topic
from udfs.requests.request_format import MAX_REQUEST_BYTES, decode
from udfs.requests.retry import ORIGIN_MESSAGE_ID, as_original
from udfs.undelivered import rejection_of

Decode = Callable[[bytes | None, int], PendingDelete | Rejection]
"""udfs.requests.request_format.decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A row of schemas.MESSAGE and its request."""

    row: Mapping[str, Any]
    request: PendingDelete | Rejection
    properties: Mapping[str, str]  # the properties that count
    origin_id: str  # the message id of the original request
    decoded: PendingDelete | None = None  # the request in the payload, even if its sender may not send it


class RowDecoder:
    """Reads the messages of one task; a message that the source delivered twice counts once (rows are sorted)."""

    def __init__(
        self, query: str, admission: Admission, most_bytes: int = MAX_REQUEST_BYTES, decode: Decode = decode
    ) -> None:
        """Create a reader.

        Args:
            query: schemas.REQUESTS or RETRY.
            admission: the rules that requests are admitted by.
            most_bytes: a message whose payload is larger is no request.
            decode: decodes a payload; called once for each.
        """
        self._query = query
        self._admission = admission
        self._most_bytes = most_bytes
        self._decode = decode
        self._last_position: tuple[Any, ...] = ()

    def read(self, rows: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Read rows, in order."""
        return [self._message(row) for row in rows if self._is_new(row)]

    def _is_new(self, row: Mapping[str, Any]) -> bool:
        position = tuple(row[name] for name in c.POSITION)
        is_new = position != self._last_position
        self._last_position = position
        return is_new

    def _message(self, row: Mapping[str, Any]) -> Message:
        written = {str(name): str(value) for name, value in (row[c.MESSAGE_PROPERTIES] or ()) if value is not None}
        own_id = message_id_text(
            row[c.POSITION_LEDGER], row[c.POSITION_ENTRY], _partition(row[c.SOURCE]), row[c.POSITION_BATCH]
        )
        if fault := row.get(c.NO_REQUEST):
            # no copy of ours is like this, so in the retry topic too these properties are a sender's
            return Message(row=row, request=rejection_of(fault), properties=as_original(written), origin_id=own_id)
        payload = self._decode(row[c.PAYLOAD], self._most_bytes)
        decoded = payload if isinstance(payload, PendingDelete) else None
        topic = first_topic(row[c.SOURCE], {} if self._query == REQUESTS else written, self._admission)
        request = payload if decoded is None else admit(decoded, topic, self._admission)
        # Every client that may publish to a request topic can write any property, so the properties that only this
        # service writes are ignored there. In the retry topic, the same properties are our own.
        if self._query == REQUESTS:
            return Message(row=row, request=request, properties=as_original(written), origin_id=own_id, decoded=decoded)
        return Message(
            row=row,
            request=request,
            properties=written,
            origin_id=written.get(ORIGIN_MESSAGE_ID, own_id),
            decoded=decoded,
        )


def _partition(source: str) -> int:
    _, separator, number = source.rpartition("-partition-")
    return int(number) if separator and number.isdigit() else -1
