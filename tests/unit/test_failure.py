"""What is said of a query that failed: the cause and no plan, and whether a new start may help."""

import pytest

from streaming.app import _raise_failure
from streaming.errors import FencedError, ReaperError, UnavailableError

PLAN = "\n=== Streaming Query ===\nIdentifier: ledger_deletion_requests\n\nLogical Plan:\n+- StreamingExecutionRelation"
PULSAR = "org.apache.pulsar.client.api.PulsarClientException"


@pytest.mark.parametrize(
    "cause",
    [
        "java.net.ConnectException: Connection refused: /127.0.0.1:6650",
        f"{PULSAR}$LookupException: Disconnected from server at /127.0.0.1:6650",
        "java.util.concurrent.TimeoutException",
    ],
)
def test_pulsar_away_is_told_as_such_and_may_be_tried_again(cause: str) -> None:
    with pytest.raises(UnavailableError) as raised:
        _raise_failure("requests", RuntimeError(cause + PLAN))

    assert cause in str(raised.value)
    assert "requests" in str(raised.value)
    assert "Plan" not in str(raised.value)


@pytest.mark.parametrize(
    "cause",
    [
        "java.lang.IllegalStateException: no\nTraceback: the row",
        "java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]",
    ],
)
def test_another_failure_is_a_fault_of_ours_with_its_whole_cause(cause: str) -> None:
    with pytest.raises(ReaperError) as raised:
        _raise_failure("requests", RuntimeError(cause + PLAN))

    assert type(raised.value) is ReaperError
    assert str(raised.value) == f"query requests failed: {cause}"


def test_what_executors_raised_comes_first() -> None:
    ours = "Job aborted: PulsarClientException; streaming.errors.FencedError: epoch 7 was taken over"
    with pytest.raises(FencedError, match="epoch 7"):
        _raise_failure("requests", RuntimeError(ours + PLAN))


def test_no_failure_is_none() -> None:
    _raise_failure("requests", None)
