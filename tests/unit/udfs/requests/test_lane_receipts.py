"""The receipt that a tenant gets names its own request and the result, and nothing of others."""

import json
from typing import Any

import pytest

from udfs import columns as c
from udfs.records import LedgerType, Outcome, Reason
from udfs.requests.lane_receipts import COLUMNS, lane_receipt, receipt_topic
from udfs.requests.lanes import Lanes
from udfs.requests.topic_pattern import parse_pattern

LANE = "persistent://acme/ledger-deletion/__ledger_deletion"


def row(**columns: Any) -> dict[str, Any]:
    return {
        c.LANE: LANE,
        c.CHUNK: 3,
        c.ORIGIN_MESSAGE_ID: "70:3:0",
        c.TOPIC_NAME: "persistent://acme/shop/carts",
        c.LEDGER_ID: 5,
        c.COMPONENT: "MANAGED_LEDGER",
        c.LEDGER_TYPE: "LEDGER",
        c.OUTCOME: "DELETED",
        c.REASON: "UNREFERENCED",
        c.ATTEMPT: 2,
        c.AT_MS: 1_700_000_000_123,
    } | columns


def receipt(**columns: Any) -> dict[str, Any]:
    return dict(json.loads(lane_receipt(row(**columns))[1]))


def test_a_receipt_has_the_requests_message_id_and_the_result() -> None:
    key, payload = lane_receipt(row())
    assert key == "70:3:0"
    assert json.loads(payload) == {
        "version": 1,
        "messageId": "70:3:0",
        "topic": "persistent://acme/shop/carts",
        "ledgerId": 5,
        "component": "MANAGED_LEDGER",
        "type": "LEDGER",
        "outcome": "DELETED",
        "reason": "UNREFERENCED",
        "tries": 2,
        "atMs": 1_700_000_000_123,
    }


def test_a_receipt_has_no_detail_whatever_the_row_has() -> None:
    secret = "the ledger belongs to persistent://rival/x/y"
    assert c.DETAIL not in COLUMNS
    assert "rival" not in str(receipt(**{c.DETAIL: secret}))


def test_a_message_that_is_no_request_gets_a_receipt_without_a_ledger() -> None:
    nothing = dict.fromkeys((c.TOPIC_NAME, c.LEDGER_ID, c.COMPONENT, c.LEDGER_TYPE))
    got = receipt(**nothing, **{c.OUTCOME: "DEAD_LETTER", c.REASON: "NOT_JSON"})
    assert (got["ledgerId"], got["topic"], got["outcome"], got["reason"]) == (None, None, "DEAD_LETTER", "NOT_JSON")


def test_any_text_that_a_sender_chose_fits_into_a_receipt() -> None:
    assert receipt(**{c.TOPIC_NAME: 'a"\n\ud800ü'})["topic"] == 'a"\n\ud800ü'


@pytest.mark.parametrize("reason", [Reason.OTHER_OWNER, Reason.OTHER_COMPONENT, Reason.NOT_PULSARS])
def test_a_ledger_of_another_owner_looks_like_a_ledger_that_does_not_exist(reason: Reason) -> None:
    others = receipt(**{c.OUTCOME: str(Outcome.DEAD_LETTER), c.REASON: str(reason)})
    absent = receipt(**{c.OUTCOME: str(Outcome.ALREADY_GONE), c.REASON: str(Reason.NOT_FOUND)})
    assert others == absent


def test_a_wrong_request_for_an_upload_is_named() -> None:
    upload = {c.LEDGER_TYPE: str(LedgerType.OFFLOAD_LEDGER), c.OUTCOME: "DEAD_LETTER", c.REASON: "OTHER_COMPONENT"}
    assert receipt(**upload)["reason"] == "OTHER_COMPONENT"


def test_the_topic_of_receipts_is_no_request_topic() -> None:
    topic = receipt_topic(LANE)
    assert topic == f"{LANE}-RECEIPT"
    assert not any(lanes.has(topic) for lanes in Lanes)
    assert not parse_pattern("persistent://[^/]+/[^/]+/.*").matches(topic)
