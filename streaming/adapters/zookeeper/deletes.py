"""Guarded deletes: one ZooKeeper transaction for each, many in flight; every outcome is named, and none is invented.

A transaction happens completely or not at all. The server's answer contains one result for each operation: the error
of the operation that failed, "rolled back" before it and "runtime inconsistency" (never tried) after it.
"""

from collections import deque
from collections.abc import Sequence

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError, NotEmptyError

from streaming.adapters.zookeeper.guarded_transaction import NOT_TRIED, ROLLED_BACK, GuardedTransaction
from streaming.adapters.zookeeper.zookeeper_session import (
    AnsweredError,
    NotImplementedByServerError,
    Pending,
    ZooKeeperSession,
)
from streaming.errors import UnavailableError
from streaming.ports import GuardedDelete, GuardResult, GuardStatus

_WINDOW = 32
_REQUEST_BYTES = 512 * 1024  # the server closes the connection, at each attempt, above its jute.maxbuffer (1 MB)

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

    A batch whose answer was lost, and batches that were not sent afterwards, are UNKNOWN. A batch too large for one
    request (half a megabyte) is REFUSED without being sent.
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
