"""The wire format of a transaction of checks and deletes, serialized at once; kazoo's own takes ten times as long."""

import struct
from collections.abc import Sequence

from kazoo.protocol.serialization import CheckVersion, Delete, Transaction, int_struct, multiheader_struct

_CHECK = multiheader_struct.pack(CheckVersion.type, False, -1)
_DELETE = multiheader_struct.pack(Delete.type, False, -1)
_DONE = multiheader_struct.pack(-1, True, -1)
_ERROR_TYPE = -1
_HEADER_AND_ERROR = struct.Struct("!iBii")

ROLLED_BACK = 0  # the server's code for operations before the one that failed
NOT_TRIED = -2  # the server's code for operations after the one that failed


class GuardedTransaction:
    """Checks, then deletes, of (absolute path, version); all of them happen or none."""

    def __init__(self, checks: Sequence[tuple[str, int]], deletes: Sequence[tuple[str, int]]) -> None:
        self.type = Transaction.type
        self._operations = len(checks) + len(deletes)
        self._bytes = b"".join((*_records(_CHECK, checks), *_records(_DELETE, deletes), _DONE))

    def __repr__(self) -> str:
        return f"GuardedTransaction(operations={self._operations})"

    def __len__(self) -> int:
        """Return the size of the request in bytes."""
        return len(self._bytes)

    def serialize(self) -> bytes:
        """Return the request's bytes."""
        return self._bytes

    def deserialize(self, buffer: bytes, offset: int) -> list[int | None]:
        """Return a code for each operation: None if it was done; otherwise an error's, ROLLED_BACK or NOT_TRIED."""
        (first_kind,) = int_struct.unpack_from(buffer, offset)
        if first_kind != _ERROR_TYPE and len(buffer) - offset == len(_DONE) * (self._operations + 1):
            return [None] * self._operations  # if one operation fails, all results are errors, which are longer
        codes: list[int | None] = []
        for _ in range(self._operations):
            kind, done, _error, code = _HEADER_AND_ERROR.unpack_from(buffer, offset)
            if done:
                break
            is_error = kind == _ERROR_TYPE
            codes.append(code if is_error else None)
            offset += _HEADER_AND_ERROR.size if is_error else multiheader_struct.size
        return codes


def _records(header: bytes, operations: Sequence[tuple[str, int]]) -> list[bytes]:
    parts = []
    for path, version in operations:
        encoded = path.encode()
        parts += [header, int_struct.pack(len(encoded)), encoded, int_struct.pack(version)]
    return parts
