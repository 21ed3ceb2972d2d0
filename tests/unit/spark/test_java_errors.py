"""Failures that Spark tells as text: ours are known again; others are told by their cause, without the plan."""

import pytest

from streaming.errors import (
    FencedError,
    ReaperError,
    SafetyError,
    StopRequestedError,
    UnavailableError,
    WorkersLostError,
)
from streaming.spark.java_errors import error_of, one_line, our_errors, raise_failure, translated

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
        raise_failure("requests", RuntimeError(cause + PLAN))

    assert cause in str(raised.value)
    assert "requests" in str(raised.value)
    assert "Plan" not in str(raised.value)


REFUSED = f"{PULSAR}: java.util.concurrent.ExecutionException: {PULSAR}: Connection refused: /127.0.0.1:42417"
IN_A_TASK = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "streaming/state/delta/delta_tables.py", line 44, in append_once
py4j.protocol.Py4JJavaError: An error occurred while calling o483.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 73.0 failed 1 times, \
most recent failure: Lost task 0.0 in stage 73.0 (TID 100) (192.0.2.2 executor driver): {0}
	at org.apache.pulsar.client.api.PulsarClientException.unwrap(PulsarClientException.java:1034)
"""


IN_A_WORKER = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "streaming/deletion/chunks/outbox.py", line 25, in send
ValueError: a bug
\tat org.apache.spark.api.python.PythonRunner$$anon$3.read(PythonRunner.scala:784)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
ValueError: a bug"""


def test_pulsar_away_while_a_task_reads_is_told_in_one_line() -> None:
    with pytest.raises(UnavailableError) as raised:
        raise_failure("retry", RuntimeError(IN_A_TASK.format(REFUSED) + PLAN))

    assert str(raised.value) == f"query retry: Pulsar can't be reached; start again when it can be: {REFUSED}"


LOST = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: worker lost"
ABORTED = (
    "An error occurred while calling o97.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to {}"
)
RESULTS_LOST = (
    "stage failure: ShuffleMapStage 8 (collect at commits.py:58) has failed the maximum allowable number of times: 4. "
    "Most recent failure reason:\norg.apache.spark.shuffle.FetchFailedException: Failed to connect to /192.0.2.3:40123"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(IN_A_TASK.format(LOST), LOST, id="an executor, again and again under the same task"),
        pytest.param(ABORTED.format(RESULTS_LOST), "the maximum allowable number of times", id="what tasks had made"),
        pytest.param(
            ABORTED.format("stage failure: A shuffle map stage with indeterminate output was failed and retried. How"),
            "indeterminate output",
            id="what can't be made again in the same order",
        ),
    ],
)
def test_executors_that_were_lost_are_no_fault_of_ours(text: str, said: str) -> None:
    found = translated(RuntimeError(text))
    assert type(found) is WorkersLostError
    assert said in str(found)
    assert "\n" not in str(found)
    assert type(error_of("requests", RuntimeError(text + PLAN))) is WorkersLostError


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(IN_A_TASK.format(f"java.lang.RuntimeException: {LOST}"), id="a sender's words in an error"),
        pytest.param(f"java.lang.RuntimeException: {LOST}", id="no task at all"),
        pytest.param(
            ABORTED.format("stage failure: Task 1 in stage 2.0 failed 4 times"), id="tasks that failed by themselves"
        ),
    ],
)
def test_what_only_sounds_like_lost_executors_is_a_fault(text: str) -> None:
    error = RuntimeError(text)
    assert translated(error) is error


def test_what_a_task_of_ours_said_counts_before_the_loss_of_another() -> None:
    text = IN_A_TASK.format(LOST) + "\nstreaming.errors.FencedError: another instance"
    assert type(translated(RuntimeError(text))) is FencedError


@pytest.mark.parametrize(
    "cause",
    [
        IN_A_TASK.format("java.lang.OutOfMemoryError: Java heap space").strip(),
        "java.lang.IllegalStateException: no\nTraceback: the row",
        "java.util.concurrent.TimeoutException: Futures timed out after [300 seconds]",
    ],
)
def test_another_failure_is_a_fault_of_ours_with_its_whole_cause(cause: str) -> None:
    with pytest.raises(ReaperError) as raised:
        raise_failure("requests", RuntimeError(cause + PLAN))

    assert type(raised.value) is ReaperError
    assert str(raised.value) == f"query requests failed: {cause}"


def test_what_executors_raised_comes_first() -> None:
    ours = "Job aborted: PulsarClientException\nstreaming.errors.FencedError: epoch 7 was taken over"
    with pytest.raises(FencedError, match="epoch 7"):
        raise_failure("requests", RuntimeError(ours + PLAN))


def test_no_failure_is_none() -> None:
    raise_failure("requests", None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param("x\nstreaming.errors.UnavailableError: no broker\n  at", UnavailableError, id="by its own name"),
        pytest.param(
            "streaming.adapters.zookeeper.zookeeper_session.ConnectionLostError: lost",
            UnavailableError,
            id="a subclass of it",
        ),
        pytest.param("streaming.errors.FencedError: another", FencedError, id="fenced before refused"),
        pytest.param("streaming.errors.ReaperError: a fault", None, id="a fault of ours stays what it is"),
        pytest.param("java.lang.IllegalStateException: UnavailableError: no", None, id="somebody else's"),
        pytest.param(
            "ValueError: persistent://a/b/streaming.errors.SafetyError: x", None, id="a sender's words within a line"
        ),
        pytest.param("streaming.no.such.module.SafetyError: x", None, id="a module that is none of ours"),
    ],
)
def test_an_executors_error_is_known_by_its_text(text: str, kind: type[ReaperError] | None) -> None:
    error = RuntimeError(text)
    found = translated(error)
    assert found is error if kind is None else type(found) is kind


def test_a_stop_is_not_mistaken_for_a_fault() -> None:
    stop = StopRequestedError()
    assert translated(stop) is stop


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(
            IN_A_TASK.format("java.lang.ArithmeticException: long overflow") + PLAN,
            "java.lang.ArithmeticException: long overflow",
            id="a task's",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: a bug\n' + PLAN,
            "ValueError: a bug",
            id="the last of a traceback",
        ),
        pytest.param(IN_A_TASK.format(IN_A_WORKER) + PLAN, "ValueError: a bug", id="a Python worker's"),
        pytest.param("no name\nmore", "no name", id="nothing that has a name"),
        pytest.param("a\x1b[31mb", "a [31mb", id="what would steer a terminal"),
        pytest.param("", "RuntimeError", id="no text at all"),
    ],
)
def test_a_failure_is_told_in_one_line_for_people(text: str, line: str) -> None:
    assert one_line(RuntimeError(text)) == line


def test_a_block_raises_the_error_of_ours_and_leaves_any_other_as_it_is() -> None:
    with pytest.raises(UnavailableError, match="no broker"), our_errors():
        raise ValueError("streaming.errors.UnavailableError: no broker")
    with pytest.raises(SafetyError, match="look"), our_errors():
        raise SafetyError("look")
    with pytest.raises(ValueError, match="something else"), our_errors():
        raise ValueError("something else")
    with pytest.raises(SafetyError, match="full"), our_errors(lambda error: SafetyError(f"full: {error}")):
        raise OSError("no room")
