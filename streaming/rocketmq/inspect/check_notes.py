"""Notes of a check: information for the operator that is no fault."""

from collections.abc import Iterator, Sequence

from streaming.errors import SafetyError
from streaming.rocketmq.store.inventory import Inventory, Queue
from streaming.rocketmq.store.log_files import CommitLog
from streaming.rocketmq.store.store_paths import StorePaths
from streaming.rocketmq.workspace.rollback_plan import unfinished_rollback
from streaming.terminal import some_of
from udfs.rocketmq.compare import Finding
from udfs.rocketmq.dispatch import SCHEDULE_TOPIC


def shortened(names: Sequence[bytes]) -> str:
    """Join names for a message: the first three, and the number of the others."""
    return some_of([name.decode("utf-8", "replace") for name in names], 3)


def store_notes(paths: StorePaths, findings: Sequence[Finding], *, earlier: int) -> Iterator[str]:
    """Yield notes about the state of the store.

    earlier: how many file queues are of topics that were deleted and created again since.
    """
    if (paths.store / "abort").exists():
        yield (
            "the file `abort` exists: the broker did not stop cleanly. At its next start in RocksDB mode it "
            "indexes the messages that start after CHECKPOINT, so check again after that"
        )
    unfinished = unfinished_rollback(paths)
    if unfinished:
        yield unfinished
    if not paths.conf.delay_levels and any(finding.topic == SCHEDULE_TOPIC for finding in findings):
        yield (
            "a unit of the schedule topic contains when its message is due: if the broker has its own "
            "messageDelayLevel, name its configuration with --broker-conf, and check again"
        )
    if earlier:
        yield f"{earlier} file queues are of topics deleted and created again since: `rollback` replaces them"


def progress_notes(queues: Sequence[Queue], inventory: Inventory, checkpoint: int | None) -> Iterator[str]:
    """Yield notes about file queues that end before the database, and about messages that are not indexed."""
    ends = {queue.range.key: queue.range.end for queue in inventory.queues}
    shorter = sum(1 for queue in queues if ends.get(queue.range.key, 0) < queue.range.end)
    if shorter:
        yield f"{shorter} file queues end before the database: a broker in RocksDB mode does not write them"
    unindexed = _unindexed_bytes(checkpoint, inventory.log)
    if unindexed:
        yield f"CHECKPOINT is {checkpoint}: the broker will index the last {unindexed} bytes of the log at its start"


def _unindexed_bytes(checkpoint: int | None, log: CommitLog) -> int:
    """Return the bytes of the log after CHECKPOINT, without the message that starts there, which is indexed."""
    if checkpoint is None:
        return 0
    try:
        record = log.record_at(checkpoint)
    except SafetyError:
        record = None
    return max(log.end - checkpoint - (record.size if record else 0), 0)
