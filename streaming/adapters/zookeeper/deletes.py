"""Guarded deletes: each is one ZooKeeper transaction, and many are in flight. An uncertain outcome is UNKNOWN.

A transaction happens completely or not at all. The server's answer contains one result for each operation: the error
of the operation that failed, "rolled back" before it and "runtime inconsistency" (never tried) after it.
GuardedTransaction is a transaction in ZooKeeper's wire format, serialized when it is created; kazoo's own class takes
ten times as long.
"""

import struct
from collections import deque
from collections.abc import Sequence

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError, NotEmptyError
from kazoo.protocol.serialization import CheckVersion, Delete, Transaction, int_struct, multiheader_struct

from streaming.adapters.zookeeper.zookeeper_session import (
    AnsweredError,
    NotImplementedByServerError,
    Pending,
    ZooKeeperSession,
)
from streaming.errors import UnavailableError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus

_WINDOW = 32
_REQUEST_BYTES = 512 * 1024  # above its jute.maxbuffer (1 MB), the server closes the connection at each attempt

_CHECK = multiheader_struct.pack(CheckVersion.type, False, -1)
_DELETE = multiheader_struct.pack(Delete.type, False, -1)
_DONE = multiheader_struct.pack(-1, True, -1)
_ERROR_TYPE = -1
_HEADER_AND_ERROR = struct.Struct("!iBii")

ROLLED_BACK = 0  # the server's code for operations before the one that failed
NOT_TRIED = -2  # the server's code for operations after the one that failed

_UNKNOWN = GuardResult(GuardStatus.UNKNOWN)
_DELETE_FAILURES = {
    NoNodeError.code: GuardStatus.GONE,
    BadVersionError.code: GuardStatus.CHANGED,
    NotEmptyError.code: GuardStatus.NOT_EMPTY,
    NoAuthError.code: GuardStatus.REFUSED,
}
_CHECK_FAILURES = {
    NoNodeError.code: GuardStatus.CHECK_FAILED,
    BadVersionError.code: GuardStatus.CHECK_FAILED,
    NoAuthError.code: GuardStatus.REFUSED,
}


def delete_guarded(session: ZooKeeperSession, batches: Sequence[GuardedDelete]) -> list[GuardResult]:
    """Run each batch as one transaction, and return their results in the same order.

    A batch is UNKNOWN if its answer was lost, or if it, or a batch before it, could not be sent. A batch that is too
    large for one request (half a megabyte) is REFUSED without being sent.
    """
    results = [_UNKNOWN] * len(batches)
    in_flight: deque[tuple[int, Pending]] = deque()
    waiting = deque(range(len(batches)))
    while waiting or in_flight:
        while waiting and len(in_flight) < _WINDOW:
            index = waiting.popleft()
            sent = _send(session, batches[index])
            if isinstance(sent, Pending):
                in_flight.append((index, sent))
                continue
            results[index] = sent
            if sent is _UNKNOWN:
                waiting.clear()  # no connection within its deadline: the rest would only wait for it again
        if in_flight:
            index, pending = in_flight.popleft()
            results[index] = _outcome(session, pending, batches[index])
    return results


def _send(session: ZooKeeperSession, batch: GuardedDelete) -> Pending | GuardResult:
    if not batch.deletes and not batch.checks:
        return GuardResult(GuardStatus.DELETED)
    transaction = GuardedTransaction(_absolute(session, batch.checks), _absolute(session, batch.deletes))
    if len(transaction) > _REQUEST_BYTES:
        return GuardResult(GuardStatus.REFUSED)
    try:
        return session.send(transaction)
    except UnavailableError:
        return _UNKNOWN


def _outcome(session: ZooKeeperSession, pending: Pending, batch: GuardedDelete) -> GuardResult:
    try:
        codes = session.wait(pending)
    except (UnavailableError, NotImplementedByServerError):
        return _UNKNOWN
    except AnsweredError as error:
        return GuardResult(GuardStatus.REFUSED) if error.code == NoAuthError.code else _UNKNOWN
    if len(codes) != len(batch.checks) + len(batch.deletes):
        return _UNKNOWN
    if not any(code is not None for code in codes):
        return GuardResult(GuardStatus.DELETED)
    return _failure(codes, batch)


def _failure(codes: Sequence[int | None], batch: GuardedDelete) -> GuardResult:
    for index, ((path, _version), code) in enumerate(zip([*batch.checks, *batch.deletes], codes, strict=True)):
        if code in (None, ROLLED_BACK, NOT_TRIED):
            continue
        status = (_CHECK_FAILURES if index < len(batch.checks) else _DELETE_FAILURES).get(code)
        return _UNKNOWN if status is None else GuardResult(status, path)
    return _UNKNOWN


def _absolute(session: ZooKeeperSession, operations: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(session.absolute(path), version) for path, version in operations]


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
