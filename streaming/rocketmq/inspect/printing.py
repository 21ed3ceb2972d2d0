"""Formats the result of `check` as lines for the terminal and as values for JSON."""

from collections.abc import Iterator
from typing import Any

from streaming.rocketmq.inspect.check import CheckResult, QueueState
from streaming.terminal import count_of
from udfs.rocketmq.compare import Finding


def check_lines(result: CheckResult, topic: str = "") -> Iterator[str]:
    """Yield lines for the terminal; with a topic, also a line for each of its queues."""
    if topic:
        for state in result.queues:
            yield _queue_line(state, result.findings)
    for finding in result.findings:
        yield _finding_line(finding)
    for note in result.notes:
        yield f"note: {note}"
    units = sum(state.units for state in result.queues)
    no_fault = "no fault in this topic" if topic else "no fault"
    verdict = no_fault if result.is_sound else count_of(len(result.findings), "finding")
    yield f"{verdict}: {len(result.queues)} queues, {units} units, commitlog up to {result.log_end}"


def check_json(result: CheckResult, topic: str = "") -> Iterator[dict[str, Any]]:
    """Yield a value for each queue with findings (with a topic, for each queue), and a summary."""
    for state in result.queues:
        of_queue = [finding for finding in result.findings if _is_about(finding, state)]
        if topic or of_queue:
            yield {**state._asdict(), "findings": [finding_json(finding) for finding in of_queue]}
    shown = {(state.topic, state.queue_id) for state in result.queues}
    others = [finding for finding in result.findings if (finding.topic_text, finding.queue_id) not in shown]
    yield {
        "ok": result.is_sound,
        "queues": len(result.queues),
        "units": sum(state.units for state in result.queues),
        "findings": len(result.findings),
        "checkpoint": result.checkpoint,
        "log_end": result.log_end,
        "others": [finding_json(finding) for finding in others],
        "notes": list(result.notes),
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON object; topic and queue_id are null if the finding is not about a queue."""
    is_of_a_queue = finding.queue_id >= 0
    return {
        "kind": str(finding.kind),
        "topic": finding.topic_text if is_of_a_queue else None,
        "queue_id": finding.queue_id if is_of_a_queue else None,
        "count": finding.count,
        "offset": finding.offset,
        "text": finding.text,
    }


def _is_about(finding: Finding, state: QueueState) -> bool:
    return (finding.topic_text, finding.queue_id) == (state.topic, state.queue_id)


def _queue_line(state: QueueState, findings: tuple[Finding, ...]) -> str:
    wrong = sum(1 for finding in findings if _is_about(finding, state))
    verdict = "ready" if not wrong else count_of(wrong, "finding")
    return (
        f"{state.topic} queue {state.queue_id}: {verdict}, first {state.first}, next {state.next}, "
        f"next of the file queue {state.file_end}, {state.units} units"
    )


def _finding_line(finding: Finding) -> str:
    where = f"{finding.topic_text} queue {finding.queue_id}: " if finding.queue_id >= 0 else ""
    times = f" ({finding.count} units, from offset {finding.offset})" if finding.queue_id >= 0 else ""
    return f"{finding.kind} {where}{finding.text}{times}"
