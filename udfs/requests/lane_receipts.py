"""The receipt that the service publishes to a lane's tenant for a request from the lane.

1. The topic of receipts is the lane's name with the suffix -RECEIPT. It is not partitioned.
2. A receipt contains what its request contained, and the result. It has no detail: a detail may name other tenants'
   topics.
3. A ledger of another owner looks like a ledger that does not exist. Otherwise a tenant could find out, number by
   number, which ledgers others have. (An upload to tiered storage has a UUID, which others can't guess.)
"""

import json
from collections.abc import Mapping
from typing import Any

from udfs import columns as c
from udfs.records import LedgerType, Outcome, Reason
from udfs.requests.topic_pattern import RECEIPTS_SUFFIX

VERSION = 1
COLUMNS = (
    c.LANE,
    c.CHUNK,
    c.ORIGIN_MESSAGE_ID,
    c.TOPIC_NAME,
    c.LEDGER_ID,
    c.COMPONENT,
    c.LEDGER_TYPE,
    c.OUTCOME,
    c.REASON,
    c.ATTEMPT,
    c.AT_MS,
)
# the ledger exists, and its own metadata name something else than the request
_OTHERS = frozenset({Reason.NOT_PULSARS, Reason.OTHER_OWNER, Reason.OTHER_COMPONENT})


def receipt_topic(lane: str) -> str:
    """Return the topic of a lane's receipts."""
    return f"{lane}{RECEIPTS_SUFFIX}"


def lane_receipt(row: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the key and the payload of the message for a row with COLUMNS. docs/receipt.schema.json describes them."""
    outcome, reason = row[c.OUTCOME], row[c.REASON]
    if row[c.LEDGER_TYPE] == LedgerType.LEDGER and reason in _OTHERS:
        outcome, reason = str(Outcome.ALREADY_GONE), str(Reason.NOT_FOUND)
    receipt = {
        "version": VERSION,
        "messageId": row[c.ORIGIN_MESSAGE_ID],
        "topic": row[c.TOPIC_NAME],
        "ledgerId": row[c.LEDGER_ID],
        "component": row[c.COMPONENT],
        "type": row[c.LEDGER_TYPE],
        "outcome": outcome,
        "reason": reason,
        "tries": row[c.ATTEMPT],
        "atMs": row[c.AT_MS],
    }
    return row[c.ORIGIN_MESSAGE_ID], json.dumps(receipt, separators=(",", ":")).encode()
