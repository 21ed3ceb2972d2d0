"""Findings that do not count: those of deleted topics, and of queues that no broker in file mode creates."""

from collections.abc import Collection, Iterator, Sequence

from streaming.rocketmq.inspect.check_notes import shortened
from streaming.rocketmq.store.bounds import Bounds
from streaming.rocketmq.store.inventory import Inventory
from udfs.rocketmq.compare import Finding, FindingKind
from udfs.rocketmq.dispatch import LMQ_PREFIX, is_kept
from udfs.rocketmq.parts import QueueKey

_FOREIGN = (FindingKind.NO_MESSAGE, FindingKind.FILE_NO_MESSAGE)


def has_lmq(inventory: Inventory, bounds: Collection[QueueKey]) -> bool:
    """Whether the store has an LMQ queue."""
    files = (queue.range.key for queue in inventory.queues)
    return any(topic.startswith(LMQ_PREFIX) for topic, _queue_id in (*files, *bounds))


def is_left_out(finding: Finding, bounds: dict[QueueKey, Bounds]) -> bool:
    """Whether a finding is about messages of an LMQ queue whose name can't be a folder's, as file mode needs."""
    is_path = finding.topic.startswith(LMQ_PREFIX) and b"/" in finding.topic
    # a broker in RocksDB mode may have created the queue since, with a start after those messages
    first = bounds.get((finding.topic, finding.queue_id), Bounds()).first
    return is_path and finding.kind is FindingKind.NO_QUEUE and (first < 0 or finding.offset < first)


def without_deleted(findings: Sequence[Finding], topics: Collection[bytes]) -> tuple[list[Finding], list[bytes]]:
    """Remove the findings about deleted topics; return those topics as well.

    A broker in RocksDB mode deletes the rows of topics that are missing from its configuration, except LMQ queues and
    RocketMQ's own topics. If no topics are known, none counts as deleted. Neither does a topic whose units point to
    messages of other queues.
    """
    if not topics:
        return list(findings), []
    # the commitlog has no message of such a topic there, so its queues are damaged or copied
    foreign = {finding.topic for finding in findings if finding.kind in _FOREIGN}
    deleted = {
        finding.topic
        for finding in findings
        if finding.queue_id >= 0 and finding.topic not in foreign and not is_kept(finding.topic, topics)
    }
    return [finding for finding in findings if finding.topic not in deleted or finding.queue_id < 0], sorted(deleted)


def topic_notes(deleted: Sequence[bytes], bounds: Collection[QueueKey], topics: Collection[bytes]) -> Iterator[str]:
    """Yield notes about deleted topics, and about rows that a broker will delete.

    Args:
        deleted: topics that `without_deleted` has found.
        bounds: the queues of the database.
        topics: those in topics.json or in the database.
    """
    for name in deleted:
        yield (
            f"topic {name.decode('utf-8', 'replace')} is neither in topics.json nor in the database (deleted, "
            "perhaps), so faults of its queues are no findings"
        )
    unknown = sorted({name for name, _id in bounds if topics and not is_kept(name, topics)} - set(deleted))
    if unknown:
        yield (
            f"RocksDB has rows of topics that are neither in topics.json nor in the database: {shortened(unknown)}. A "
            "broker in RocksDB mode deletes these rows within the hour"
        )
