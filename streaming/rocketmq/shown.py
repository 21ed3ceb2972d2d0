"""What `check` and `plan` found, as lines for people and as values for JSON."""

from collections.abc import Iterator
from typing import Any

from streaming.rocketmq.check import CheckResult, QueueState
from udfs.rocketmq.compare import Finding


def check_lines(result: CheckResult, topic: str = "") -> Iterator[str]:
    """Lines for people; of one topic, each queue."""
    if topic:
        for state in result.queues:
            yield _queue_line(state, result.findings)
    for finding in result.findings:
        yield _finding_line(finding)
    for note in result.notes:
        yield f"note: {note}"
    units = sum(state.units for state in result.queues)
    verdict = (
        ("this topic is well" if topic else "all is well") if result.is_well else f"{len(result.findings)} findings"
    )
    yield f"{verdict}: {len(result.queues)} queues, {units} units, commitlog up to {result.log_end}"


def check_json(result: CheckResult, topic: str = "") -> Iterator[dict[str, Any]]:
    """A value for each queue with findings (of one topic: for each queue), and one for all."""
    for state in result.queues:
        of_queue = [each for each in result.findings if _is_about(each, state)]
        if topic or of_queue:
            yield {**state._asdict(), "findings": [finding_json(each) for each in of_queue]}
    shown = {(state.topic, state.queue_id) for state in result.queues}
    others = [each for each in result.findings if (each.topic.decode("utf-8", "replace"), each.queue_id) not in shown]
    yield {
        "ok": result.is_well,
        "queues": len(result.queues),
        "units": sum(state.units for state in result.queues),
        "findings": len(result.findings),
        "checkpoint": result.checkpoint,
        "log_end": result.log_end,
        "others": [finding_json(each) for each in others],
        "notes": list(result.notes),
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding; topic and queue_id are null where it is about no queue."""
    is_of_a_queue = finding.queue_id >= 0
    return {
        "kind": str(finding.kind),
        "topic": finding.topic.decode("utf-8", "replace") if is_of_a_queue else None,
        "queue_id": finding.queue_id if is_of_a_queue else None,
        "count": finding.count,
        "offset": finding.offset,
        "text": finding.text,
    }


def _is_about(finding: Finding, state: QueueState) -> bool:
    return (finding.topic.decode("utf-8", "replace"), finding.queue_id) == (state.topic, state.queue_id)


def _queue_line(state: QueueState, findings: tuple[Finding, ...]) -> str:
    wrong = sum(1 for each in findings if _is_about(each, state))
    verdict = "ready" if not wrong else f"{wrong} findings"
    return (
        f"{state.topic} queue {state.queue_id}: {verdict}, first {state.first}, next {state.next}, "
        f"next of the file queue {state.file_end}, {state.units} units"
    )


def _finding_line(finding: Finding) -> str:
    where = f"{finding.topic.decode('utf-8', 'replace')} queue {finding.queue_id}: " if finding.queue_id >= 0 else ""
    times = f" ({finding.count} units, from offset {finding.offset})" if finding.queue_id >= 0 else ""
    return f"{finding.kind} {where}{finding.text}{times}"
