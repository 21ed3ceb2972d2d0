"""Receipts of requests by message id: the newest receipt of each, and waiting for the final receipt."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow.dataset as ds

from streaming.errors import UnavailableError
from streaming.state import receipts
from streaming.state.settlements import SettlementFolder
from streaming.terminal import count_of
from udfs import columns as c
from udfs.records import LedgerType, Outcome, Reason
from udfs.units import HOUR_MS

POLL_SECONDS = 1.0
_COLUMNS = [
    c.ORIGIN_MESSAGE_ID,
    c.LEDGER_ID,
    c.LEDGER_TYPE,
    c.TOPIC_NAME,
    c.OUTCOME,
    c.REASON,
    c.DETAIL,
    c.ATTEMPT,
    c.AT_MS,
]
_CLOCKS_APART_MS = HOUR_MS  # receipts have the time of the service, whose clock may be slower than ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """An answer of the service to a request."""

    message_id: str  # the request's, as returned by send_pending_delete_ledger()
    ledger_id: int | None  # None if the message was no valid request
    ledger_type: LedgerType | None  # None if the message was no valid request
    topic: str | None
    outcome: Outcome
    reason: Reason
    detail: str
    attempt: int  # how often the request was delayed so far
    at_ms: int  # in ms since 1970

    @property
    def is_final(self) -> bool:
        """Whether it is the last receipt: DELETED, ALREADY_GONE or DEAD_LETTER."""
        return self.outcome is not Outcome.RETRY


NewestReceipts = Callable[[Collection[str], int], Mapping[str, Receipt]]
"""(message ids, a time in ms before which none of them was sent) -> newest receipt by message id."""


def newest_receipts(state_dir: str, message_ids: Collection[str], since_ms: int) -> dict[str, Receipt]:
    """Return the newest receipt of each request that has a receipt. No request was sent before since_ms.

    A final receipt counts as the newest. Raises UnavailableError if the state can't be read.
    """
    requests = ds.field(c.ORIGIN_MESSAGE_ID).isin(sorted(message_ids))
    recent = requests & (ds.field(c.AT_MS) >= since_ms - _CLOCKS_APART_MS)
    by_hand = SettlementFolder(state_dir).written_off(recent, columns=_COLUMNS)
    newest: dict[str, Receipt] = {}
    for row in chain(receipts.rows(state_dir, recent, columns=_COLUMNS), by_hand):
        receipt = _receipt(row)
        before = newest.get(receipt.message_id)
        if before is None or (receipt.is_final, receipt.at_ms) >= (before.is_final, before.at_ms):
            newest[receipt.message_id] = receipt
    return newest


def finished_uploads(state_dir: str, uploads: Collection[tuple[int, str]], since_ms: int) -> set[tuple[int, str]]:
    """Return the uploads (ledger id, UUID) that are deleted or gone according to a receipt of since_ms or later.

    An upload with only an older receipt is left out: a new request for it gets a new receipt. Raises UnavailableError.
    """
    # a receipt is proof for good: an upload never exists again, because UUIDs are unique
    condition = (
        ds.field(c.LEDGER_ID).isin(sorted({ledger_id for ledger_id, _uuid in uploads}))
        & (ds.field(c.LEDGER_TYPE) == str(LedgerType.OFFLOAD_LEDGER))
        & ds.field(c.OUTCOME).isin([str(Outcome.DELETED), str(Outcome.ALREADY_GONE)])
        & (ds.field(c.AT_MS) >= since_ms - _CLOCKS_APART_MS)
    )
    rows = receipts.rows(state_dir, condition, columns=[c.LEDGER_ID, c.UUID])
    return {(row[c.LEDGER_ID], row[c.UUID]) for row in rows}.intersection(uploads)


class Awaited:
    """Requests whose final receipts are awaited. The times are in seconds, of any clock, but always the same clock."""

    def __init__(self, message_ids: Collection[str], timeout_seconds: float, *, now_s: float) -> None:
        self.pending = set(message_ids)
        self.final: dict[str, Receipt] = {}
        self._timeout_seconds = timeout_seconds
        self._give_up_s = now_s + timeout_seconds

    def take(self, newest: Mapping[str, Receipt], *, now_s: float) -> bool:
        """Take the newest receipts; True if none is pending any more. Raises UnavailableError after the timeout."""
        self.final |= {message_id: receipt for message_id, receipt in newest.items() if receipt.is_final}
        self.pending.difference_update(self.final)
        if self.pending and now_s >= self._give_up_s:
            raise UnavailableError(_timed_out(self.pending, newest, self._timeout_seconds))
        return not self.pending


def await_receipts(  # noqa: PLR0913  what to read, and how to wait
    newest: NewestReceipts,
    message_ids: Collection[str],
    since_ms: int,
    timeout_seconds: float,
    *,
    sleep: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Receipt]:
    """Return the final receipt of each request. Raises UnavailableError if some have none in time."""
    awaited = Awaited(message_ids, timeout_seconds, now_s=monotonic())
    while awaited.pending and not awaited.take(newest(awaited.pending, since_ms), now_s=monotonic()):
        sleep(POLL_SECONDS)
    return awaited.final


def _timed_out(pending: Collection[str], newest: Mapping[str, Receipt], timeout_seconds: float) -> str:
    example = min(pending)
    receipt = newest.get(example)
    state = f"its newest receipt is {receipt.reason}" if receipt else "it has no receipt yet; does the service run?"
    return (
        f"{count_of(len(pending), 'request has', 'requests have')} no final receipt after {timeout_seconds:g} s, "
        f"such as {example} ({state}). They stay durable: check again later with `ledger-reaper receipts`"
    )


def _receipt(row: Mapping[str, Any]) -> Receipt:
    return Receipt(
        message_id=row[c.ORIGIN_MESSAGE_ID],
        ledger_id=row[c.LEDGER_ID],
        ledger_type=LedgerType(row[c.LEDGER_TYPE]) if row[c.LEDGER_TYPE] else None,
        topic=row[c.TOPIC_NAME],
        outcome=Outcome(row[c.OUTCOME]),
        reason=Reason(row[c.REASON]),
        detail=row[c.DETAIL] or "",
        attempt=row[c.ATTEMPT] or 0,
        at_ms=row[c.AT_MS],
    )
