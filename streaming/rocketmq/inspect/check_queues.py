"""Joins the queues of the file queues and of the database, with ranges that cover the units of both."""

from collections.abc import Mapping

from streaming.errors import SafetyError
from streaming.rocketmq.store.bounds import Bounds
from streaming.rocketmq.store.inventory import Inventory, Queue
from streaming.rocketmq.store.log_files import CommitLog
from streaming.rocketmq.store.queue_files import QueueFiles
from udfs.rocketmq.dispatch import Dispatch, DispatchRules, properties_of, units_of
from udfs.rocketmq.parts import QueueKey, QueueRange, in_key_order


def joined_queues(inventory: Inventory, bounds: dict[QueueKey, Bounds], only: bytes = b"") -> list[Queue]:
    """Return the queues, or those of a topic, in files or database, with a range that covers the units of both."""
    file_queues = {queue.range.key: queue for queue in inventory.queues}
    ranges = list[QueueRange]()
    for topic, queue_id in file_queues.keys() | bounds.keys():
        if only and topic != only:
            continue
        first, end = _span(bounds.get((topic, queue_id), Bounds()), file_queues.get((topic, queue_id)))
        ranges.append(QueueRange(number=0, topic=topic, queue_id=queue_id, first=first, end=end))
    return [
        _joined_queue(joined._replace(number=number), file_queues, bounds)
        for number, joined in enumerate(in_key_order(ranges))
    ]


def _joined_queue(joined: QueueRange, files: Mapping[QueueKey, Queue], bounds: Mapping[QueueKey, Bounds]) -> Queue:
    name = (joined.topic, joined.queue_id)
    queue, bound = files.get(name), bounds.get(name, Bounds())
    last_phy = max(queue.last_phy if queue else -1, bound.max[0] if bound.max else -1)
    return Queue(joined, queue.files if queue else QueueFiles(()), last_phy)


def _span(bound: Bounds, queue: Queue | None) -> tuple[int, int]:
    """Return the first and the end offset of the queue's rows, its live units, and the units up to max.

    If it has neither rows nor live units, both are the next offset.
    """
    live = (queue.range.first, queue.range.end) if queue else (0, 0)
    following = bound.max[1] + 1 if bound.max else 0
    spans = [span for span in ((bound.first, bound.last + 1), live) if 0 <= span[0] < span[1]]
    if not spans:
        end = max(following, live[1])
        return end, end
    return min(span[0] for span in spans), max(following, *(span[1] for span in spans))


def without_wild_max(inventory: Inventory, bounds: dict[QueueKey, Bounds]) -> dict[QueueKey, Bounds]:
    """Remove each max that is after all rows and units of its queue, and whose message is not in the log."""
    ranges = {queue.range.key: queue.range for queue in inventory.queues}
    sane = dict(bounds)
    for name, bound in bounds.items():
        live_range = ranges.get(name)
        live = [bound.last + 1, *([live_range.end] if live_range and live_range.first < live_range.end else [])]
        is_bare = max(live) == 0  # nothing else determines the queue's end
        if bound.max is None or bound.max[1] < max(live) or is_bare:
            continue
        if not _is_in_log(inventory.log, name, bound.max):
            # it may be damaged, and promise more units than a disk can hold; `bound_findings` judges it separately
            sane[name] = bound._replace(max=None)
    return sane


def _is_in_log(log: CommitLog, name: QueueKey, bound: tuple[int, int]) -> bool:
    phy, offset = bound
    try:
        record = log.record_at(phy)
    except SafetyError:
        return False
    if record is None:
        return False
    units = units_of(record, properties_of(record.properties), DispatchRules((), is_multi=True))
    return Dispatch(*name, offset) in units
