"""PIP-186's nine metrics: their names, and the metrics that a receipt increments.

The proposal counts the messages that a consumer received and acknowledged. Here a message gets a receipt each time it
is read, and the commit of its receipts replaces the acknowledgement; so both counts are the same.
"""

from enum import StrEnum

from udfs.records import LedgerType, Outcome, Reason


class Metric(StrEnum):
    """The proposal's metrics, in its order. The sender of a request counts the first two."""

    LEDGERS_SENT = "ledgers_sent"
    OFFLOAD_LEDGERS_SENT = "offload_ledgers_sent"
    MESSAGES_RECEIVED = "messages_received"
    LEDGERS_DELETED = "ledgers_deleted"
    OFFLOAD_LEDGERS_DELETED = "offload_ledgers_deleted"
    LEDGERS_DELETE_FAILED = "ledgers_delete_failed"
    OFFLOAD_LEDGERS_DELETE_FAILED = "offload_ledgers_delete_failed"
    MESSAGES_ACKED = "messages_acked"
    MESSAGES_AT_MAX_RETRY = "messages_at_max_retry"


SENT = (Metric.LEDGERS_SENT, Metric.OFFLOAD_LEDGERS_SENT)

HELP = {
    Metric.LEDGERS_SENT: "Requests for ledgers that this process has sent to the request topic",
    Metric.OFFLOAD_LEDGERS_SENT: "Requests for offloaded ledgers that this process has sent to the request topic",
    Metric.MESSAGES_RECEIVED: "Messages that were read, each time they were read",
    Metric.LEDGERS_DELETED: "Ledgers that were deleted",
    Metric.OFFLOAD_LEDGERS_DELETED: "Offloaded ledgers whose objects were deleted",
    Metric.LEDGERS_DELETE_FAILED: "Ledgers whose deletion was tried and failed",
    Metric.OFFLOAD_LEDGERS_DELETE_FAILED: "Offloaded ledgers whose deletion was tried and failed",
    Metric.MESSAGES_ACKED: "Messages whose receipt is committed, which replaces the acknowledgement",
    Metric.MESSAGES_AT_MAX_RETRY: "Requests that became dead letters because they were tried too often",
}

# The sweep was allowed to delete, and a store did not delete. In all other cases a rule kept the ledger.
_FAILURES = frozenset({Reason.STORE_UNAVAILABLE, Reason.STORE_REFUSED, Reason.STILL_THERE})

# Reasons to retry a request: consecutive in records.py, and "kept for now" in docs/reasons.md. A dead letter with such
# a reason was retried too often; other dead letters were refused at once.
_REASONS = list(Reason)
PUTS_OFF = frozenset(_REASONS[_REASONS.index(Reason.IN_USE) : _REASONS.index(Reason.PROOF_MISSING) + 1])


def counted_as(ledger_type: str | None, outcome: str, reason: str) -> tuple[Metric, ...]:
    """Return the metrics that a receipt increments; ledger_type None: the message was no request."""
    # PIP-186 has no metric for messages of snapshot topics, or for segments
    is_ledger = ledger_type not in (LedgerType.COMPACTED_MESSAGE, LedgerType.SEGMENT)
    is_offloaded = ledger_type == LedgerType.OFFLOAD_LEDGER
    metrics = [Metric.MESSAGES_RECEIVED, Metric.MESSAGES_ACKED]
    if outcome == Outcome.DELETED and is_ledger:
        metrics.append(Metric.OFFLOAD_LEDGERS_DELETED if is_offloaded else Metric.LEDGERS_DELETED)
    if reason in _FAILURES and is_ledger:
        metrics.append(Metric.OFFLOAD_LEDGERS_DELETE_FAILED if is_offloaded else Metric.LEDGERS_DELETE_FAILED)
    if outcome == Outcome.DEAD_LETTER and reason in PUTS_OFF:
        metrics.append(Metric.MESSAGES_AT_MAX_RETRY)
    return tuple(metrics)
