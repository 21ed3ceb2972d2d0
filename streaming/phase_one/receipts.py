"""What became of requests, found by their message ids: the newest answer to each, and waiting for the final one."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow.dataset as ds

from streaming.errors import UnavailableError
from streaming.state import receipts
from streaming.state.settlements import SettlementFolder
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
_CLOCKS_APART_MS = HOUR_MS  # the service's clock may be behind ours, and receipts carry its time


@dataclass(frozen=True, slots=True)
class Receipt:
    """One answer of the service to a request.

    message_id: the request's, as send_pending_delete_ledger returned it. ledger_id and ledger_type are None where the
    message was no valid request. attempt: how often the request was put off so far. at_ms: milliseconds since 1970.
    """

    message_id: str
    ledger_id: int | None
    ledger_type: LedgerType | None
    topic: str | None
    outcome: Outcome
    reason: Reason
    detail: str
    attempt: int
    at_ms: int

    @property
    def is_final(self) -> bool:
        """Whether nothing more will come: DELETED, ALREADY_GONE or DEAD_LETTER."""
        return self.outcome is not Outcome.RETRY


Look = Callable[[Collection[str], int], Mapping[str, Receipt]]


def newest_receipts(state_dir: str, message_ids: Collection[str], since_ms: int) -> dict[str, Receipt]:
    """Return the newest receipt of each request that has one. since_ms: none of them was sent earlier.

    A final receipt counts as the newest. Raises UnavailableError where the state can't be read.
    """
    wanted = ds.field(c.ORIGIN_MESSAGE_ID).isin(sorted(message_ids))
    recent = wanted & (ds.field(c.AT_MS) >= since_ms - _CLOCKS_APART_MS)
    by_hand = SettlementFolder(state_dir).written_off(recent, columns=_COLUMNS)
    newest: dict[str, Receipt] = {}
    for row in chain(receipts.rows(state_dir, recent, columns=_COLUMNS), by_hand):
        found = _receipt(row)
        known = newest.get(found.message_id)
        if known is None or (found.is_final, found.at_ms) >= (known.is_final, known.at_ms):
            newest[found.message_id] = found
    return newest


def finished_uploads(state_dir: str, uploads: Collection[tuple[int, str]], since_ms: int) -> set[tuple[int, str]]:
    """Return those uploads (ledger id, UUID) of which a receipt says that nothing is left.

    That stays true, because no upload is ever given the UUID of another. since_ms: answers from before are not
    looked for; an upload that is asked for again is answered again. Raises UnavailableError.
    """
    wanted = (
        ds.field(c.LEDGER_ID).isin(sorted({ledger_id for ledger_id, _uuid in uploads}))
        & (ds.field(c.LEDGER_TYPE) == str(LedgerType.OFFLOAD_LEDGER))
        & ds.field(c.OUTCOME).isin([str(Outcome.DELETED), str(Outcome.ALREADY_GONE)])
        & (ds.field(c.AT_MS) >= since_ms - _CLOCKS_APART_MS)
    )
    rows = receipts.rows(state_dir, wanted, columns=[c.LEDGER_ID, c.UUID])
    return {(row[c.LEDGER_ID], row[c.UUID]) for row in rows}.intersection(uploads)


class Awaited:
    """Requests whose final receipts somebody waits for: what is still wanted, what has come, and until when to wait.

    The times are those of any one clock, in seconds.
    """

    def __init__(self, message_ids: Collection[str], timeout_seconds: float, *, now_s: float) -> None:
        self.wanted = set(message_ids)
        self.final: dict[str, Receipt] = {}
        self._timeout_seconds = timeout_seconds
        self._give_up_s = now_s + timeout_seconds

    def take(self, newest: Mapping[str, Receipt], *, now_s: float) -> bool:
        """Take a look's receipts; True when all are final. Raises UnavailableError when time is up before."""
        self.final |= {each: found for each, found in newest.items() if found.is_final}
        self.wanted.difference_update(self.final)
        if self.wanted and now_s >= self._give_up_s:
            raise UnavailableError(_still_waiting(self.wanted, newest, self._timeout_seconds))
        return not self.wanted


def await_receipts(  # noqa: PLR0913  what to look at, and how to wait
    look: Look,
    message_ids: Collection[str],
    since_ms: int,
    timeout_seconds: float,
    *,
    sleep: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, Receipt]:
    """Return the final receipt of each request. Raises UnavailableError where some have none within the time."""
    awaited = Awaited(message_ids, timeout_seconds, now_s=monotonic())
    while awaited.wanted and not awaited.take(look(awaited.wanted, since_ms), now_s=monotonic()):
        sleep(POLL_SECONDS)
    return awaited.final


def _still_waiting(wanted: Collection[str], newest: Mapping[str, Receipt], timeout_seconds: float) -> str:
    one = min(wanted)
    answer = newest.get(one)
    said = f"the last answer is {answer.reason}" if answer else "nothing has answered it yet; does the service run?"
    return (
        f"{len(wanted)} requests have no final receipt after {timeout_seconds:g} s, {one} among them ({said}). They "
        "are durable and stay so: look again later with `ledger-reaper receipts`"
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
