"""PIP-186 lists nine metrics; a receipt counts towards those that fit its outcome."""

import re
from pathlib import Path

import pytest

from udfs.phase_one.pip_186_metrics import HELP, PUTS_OFF, Metric, counted_as
from udfs.records import LedgerType, Outcome, Reason

READ = {Metric.MESSAGES_RECEIVED, Metric.MESSAGES_ACKED}
BOTH = (LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER)


def test_there_are_nine_and_each_has_a_help_text() -> None:
    assert len(Metric) == 9
    assert HELP.keys() == set(Metric)


@pytest.mark.parametrize(
    ("outcome", "reason", "of_ledgers", "of_offloads"),
    [
        pytest.param(
            Outcome.DELETED,
            Reason.UNREFERENCED,
            {Metric.LEDGERS_DELETED},
            {Metric.OFFLOAD_LEDGERS_DELETED},
            id="deleted",
        ),
        pytest.param(Outcome.ALREADY_GONE, Reason.NOT_FOUND, set(), set(), id="gone already: we deleted nothing"),
        pytest.param(
            Outcome.RETRY,
            Reason.STORE_REFUSED,
            {Metric.LEDGERS_DELETE_FAILED},
            {Metric.OFFLOAD_LEDGERS_DELETE_FAILED},
            id="a store refused",
        ),
        pytest.param(Outcome.RETRY, Reason.IN_USE, set(), set(), id="a rule kept it: nothing failed"),
        pytest.param(
            Outcome.DEAD_LETTER,
            Reason.STILL_THERE,
            {Metric.LEDGERS_DELETE_FAILED, Metric.MESSAGES_AT_MAX_RETRY},
            {Metric.OFFLOAD_LEDGERS_DELETE_FAILED, Metric.MESSAGES_AT_MAX_RETRY},
            id="failed too often",
        ),
        pytest.param(
            Outcome.DEAD_LETTER,
            Reason.IN_USE,
            {Metric.MESSAGES_AT_MAX_RETRY},
            {Metric.MESSAGES_AT_MAX_RETRY},
            id="put off too often",
        ),
        pytest.param(Outcome.DEAD_LETTER, Reason.OTHER_OWNER, set(), set(), id="refused at once"),
    ],
)
def test_a_receipt_counts_once_for_each_of_its_metrics(
    outcome: Outcome, reason: Reason, of_ledgers: set[Metric], of_offloads: set[Metric]
) -> None:
    for ledger_type, expected in zip(BOTH, (of_ledgers, of_offloads), strict=True):
        counted = counted_as(ledger_type, outcome, reason)
        assert set(counted) == READ | expected
        assert len(counted) == len(set(counted))


@pytest.mark.parametrize("ledger_type", [LedgerType.COMPACTED_MESSAGE, LedgerType.SEGMENT])
def test_a_message_of_a_snapshot_topic_and_a_segment_are_no_ledgers(ledger_type: LedgerType) -> None:
    for reason in (Reason.OWNER_GONE, Reason.STILL_THERE):
        assert set(counted_as(ledger_type, Outcome.DELETED, reason)) == READ


def test_a_message_that_is_no_request_counts_as_received_and_acknowledged() -> None:
    assert set(counted_as(None, Outcome.DEAD_LETTER, Reason.NOT_JSON)) == READ


def test_reasons_for_a_retry_are_those_of_the_rules_and_of_the_page_of_reasons() -> None:
    root = Path(__file__).parents[4]
    page = (root / "docs" / "reasons.md").read_text()
    kept = page.partition("\n## Kept for now")[2].partition("\n## ")[0]
    assert {str(reason) for reason in PUTS_OFF} == set(re.findall(r"^\| `(\w+)`", kept, re.MULTILINE))
    files = [*(root / "udfs").rglob("*.py"), *(root / "streaming" / "sweep").rglob("*.py")]
    retried = re.findall(r"(?:_later|Outcome\.RETRY)[(,]\s*Reason\.(\w+)", "".join(file.read_text() for file in files))
    assert len(set(retried)) >= 14
    assert set(retried) <= {str(reason) for reason in PUTS_OFF}
