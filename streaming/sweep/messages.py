"""The messages of a task as Spark hands them over: the request in each, and which of its properties count.

Anybody who may publish to a request topic can write any property. There, what only we write counts for nothing. In the
retry topic the same properties are our own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streaming.schemas import REQUESTS
from udfs import columns as c
from udfs.admission import Admission, admit, first_topic
from udfs.formats.message_id import message_id_text
from udfs.records import PendingDelete, Rejection
from udfs.retry import ORIGIN_MESSAGE_ID, as_original
from udfs.undelivered import rejection_of
from udfs.wire import MAX_REQUEST_BYTES, decode

Decode = Callable[[bytes | None, int], PendingDelete | Rejection]
"""udfs.wire.decode."""


@dataclass(frozen=True, slots=True)
class Message:
    """A row of schemas.MESSAGE, read. properties: those that count. origin_id: message id of the original request.

    asked: the request that the payload holds, also where its sender may not ask for that; None: it holds none.
    """

    row: Mapping[str, Any]
    request: PendingDelete | Rejection
    properties: Mapping[str, str]
    origin_id: str
    asked: PendingDelete | None = None


class MessageReader:
    """Reads the messages of one task; one that the source delivered twice counts once (rows are sorted).

    most_bytes: a message whose payload is larger is no request. Each payload is decoded once.
    """

    def __init__(
        self, query: str, admission: Admission, most_bytes: int = MAX_REQUEST_BYTES, decode: Decode = decode
    ) -> None:
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
        if said := row.get(c.NO_REQUEST):
            # none of our copies looks like that, so in the retry topic too its properties are only what a sender wrote
            return Message(row, rejection_of(said), as_original(written), own_id)
        decoded = self._decode(row[c.PAYLOAD], self._most_bytes)
        asked = decoded if isinstance(decoded, PendingDelete) else None
        topic = first_topic(row[c.SOURCE], {} if self._query == REQUESTS else written, self._admission)
        request = decoded if asked is None else admit(asked, topic, self._admission)
        if self._query == REQUESTS:
            return Message(row, request, as_original(written), own_id, asked)
        return Message(row, request, written, written.get(ORIGIN_MESSAGE_ID, own_id), asked)


def _partition(source: str) -> int:
    _, found, number = source.rpartition("-partition-")
    return int(number) if found and number.isdigit() else -1
