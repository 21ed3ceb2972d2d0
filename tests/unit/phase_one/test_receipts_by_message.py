"""Receipts are found by message id, final receipts first, in the table and among write-offs."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streaming import schemas
from streaming.errors import UnavailableError
from streaming.phase_one.receipts_by_message import Receipt, await_receipts, finished_uploads, newest_receipts
from tests.builders import NOW_MS
from udfs import columns as c
from udfs.records import LedgerType, Outcome, Reason
from udfs.units import HOUR_MS


def row(message_id: str, outcome: Outcome, reason: Reason, at_ms: int = NOW_MS, **rest: Any) -> dict[str, Any]:
    return {c.ORIGIN_MESSAGE_ID: message_id, c.OUTCOME: str(outcome), c.REASON: str(reason), c.AT_MS: at_ms} | rest


def stored(state: Path, *rows: dict[str, Any]) -> str:
    write_deltalake(str(state / "receipts"), pa.Table.from_pylist(list(rows), schema=schemas.RECEIPT))
    return str(state)


def test_a_final_receipt_counts_before_all_others(tmp_path: Path) -> None:
    state = stored(
        tmp_path,
        row("1:1:0", Outcome.RETRY, Reason.IN_USE, NOW_MS + 5, **{c.ATTEMPT: 1}),
        row("1:1:0", Outcome.DELETED, Reason.UNREFERENCED, NOW_MS, **{c.LEDGER_ID: 5, c.LEDGER_TYPE: "LEDGER"}),
        row("1:2:0", Outcome.RETRY, Reason.IN_USE, NOW_MS, **{c.ATTEMPT: 1}),
        row("1:2:0", Outcome.RETRY, Reason.NOT_CLOSED, NOW_MS + 1, **{c.ATTEMPT: 2}),
        row("1:3:0", Outcome.DELETED, Reason.UNREFERENCED),
    )
    found = newest_receipts(state, ["1:1:0", "1:2:0", "1:9:0"], NOW_MS)
    assert found.keys() == {"1:1:0", "1:2:0"}
    expected = Receipt(
        message_id="1:1:0",
        ledger_id=5,
        ledger_type=LedgerType.LEDGER,
        topic=None,
        outcome=Outcome.DELETED,
        reason=Reason.UNREFERENCED,
        detail="",
        attempt=0,
        at_ms=NOW_MS,
    )
    assert found["1:1:0"] == expected
    assert (found["1:2:0"].reason, found["1:2:0"].attempt, found["1:2:0"].is_final) == (Reason.NOT_CLOSED, 2, False)


def test_without_any_writes_there_are_none(tmp_path: Path) -> None:
    assert newest_receipts(str(tmp_path / "none"), ["1:1:0"], 0) == {}


def test_waiting_ends_when_the_last_one_has_its_receipt() -> None:
    seen: list[set[str]] = []

    def look(ids: Any, _since_ms: int) -> dict[str, Receipt]:
        seen.append(set(ids))
        final = sorted(ids)[0]
        return {
            each: Receipt(
                message_id=each,
                ledger_id=5,
                ledger_type=None,
                topic=None,
                outcome=Outcome.DELETED if each == final else Outcome.RETRY,
                reason=Reason.IN_USE,
                detail="",
                attempt=0,
                at_ms=0,
            )
            for each in ids
        }

    found = await_receipts(look, ["b", "a"], 0, 60, sleep=lambda _s: None, monotonic=lambda: 0.0)
    assert found.keys() == {"a", "b"}
    assert seen == [{"a", "b"}, {"b"}]


def test_a_service_that_does_not_run_is_reported() -> None:
    with pytest.raises(UnavailableError, match="it has no receipt yet; does the service run"):
        await_receipts(lambda _ids, _since: {}, ["a"], 0, 0)


def test_an_upload_is_finished_by_a_receipt_that_nothing_is_left_of_it(tmp_path: Path) -> None:
    objects: dict[str, Any] = {c.LEDGER_ID: 5, c.LEDGER_TYPE: "OFFLOAD_LEDGER"}
    state = stored(
        tmp_path,
        row("1:1:0", Outcome.DELETED, Reason.UNREFERENCED, **(objects | {c.UUID: "a"})),
        row("1:2:0", Outcome.ALREADY_GONE, Reason.NOT_FOUND, **(objects | {c.UUID: "b"})),
        row("1:3:0", Outcome.RETRY, Reason.IN_USE, **(objects | {c.UUID: "c"})),
        row("1:4:0", Outcome.DEAD_LETTER, Reason.PROOF_MISSING, **(objects | {c.UUID: "d"})),
        row("1:5:0", Outcome.DELETED, Reason.UNREFERENCED, **(objects | {c.LEDGER_TYPE: "LEDGER", c.UUID: "e"})),
        row("1:6:0", Outcome.DELETED, Reason.UNREFERENCED, **(objects | {c.LEDGER_ID: 6, c.UUID: "c"})),
    )
    assert finished_uploads(state, [(5, each) for each in "abcde"], NOW_MS) == {(5, "a"), (5, "b")}
    assert finished_uploads(state, [(5, each) for each in "abcde"], NOW_MS + HOUR_MS + 1) == set()
