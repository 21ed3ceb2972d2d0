"""Checks the rows about queues, `max` and `min`, and CHECKPOINT."""

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database, opened
from streaming.errors import SafetyError
from streaming.rocketmq.store.bounds import Bounds, bounds_of
from streaming.rocketmq.store.incarnations import of_this_incarnation
from streaming.rocketmq.store.inventory import Inventory, Queue, inventory_of
from streaming.rocketmq.store.log_files import CommitLog
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq import rows
from udfs.rocketmq.commitlog import RECORD_BYTES_MIN
from udfs.rocketmq.compare import Finding, FindingKind
from udfs.rocketmq.parts import QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContents:
    """What `check` reads of a store before it compares single units."""

    inventory: Inventory  # without the file queues of earlier incarnations
    earlier: int  # number of those file queues
    bounds: dict[QueueKey, Bounds]  # in the database
    checkpoint: int | None
    live: dict[QueueKey, tuple[int, int]]  # start and queue offset of the first message that the log still has
    last: dict[QueueKey, int]  # start of the last message


def contents_of(paths: StorePaths) -> StoreContents:
    """Read a store. Raises SafetyError at bytes that no healthy store has."""
    inventory = inventory_of(paths)
    with opened(paths.rocksdb, read_only=True) as database:
        bounds = bounds_of(database)
        _require_sane(bounds, inventory.log)
        checkpoint = checkpoint_of(database)
        inventory, earlier = of_this_incarnation(inventory, bounds, database)
        return StoreContents(
            inventory=inventory,
            earlier=earlier,
            bounds=bounds,
            checkpoint=checkpoint,
            live=_first_live(bounds, database, inventory.log.start),
            last={name: _row_from(database, *name, bound.last)[0] for name, bound in bounds.items() if bound.last >= 0},
        )


def checkpoint_of(database: Database) -> int | None:
    """Read CHECKPOINT; None without one. Raises SafetyError for a damaged row."""
    value = database.get(rows.OFFSET_FAMILY, rows.checkpoint_key())
    try:
        return None if value is None else rows.decode_checkpoint(value)
    except ValueError as error:
        raise SafetyError(f"the consume queues' database has a damaged row: {error}") from error


def _require_sane(bounds: Mapping[QueueKey, Bounds], log: CommitLog) -> None:
    """Raise SafetyError if a queue spans more offsets than the log can have had messages: they can't be compared."""
    for (topic, queue_id), bound in bounds.items():
        # no log with this end can ever have had more messages
        if bound.last - bound.first > log.end // RECORD_BYTES_MIN:
            raise SafetyError(
                f"the consume queues' database has a damaged key: {topic.decode('utf-8', 'replace')}, queue {queue_id} "
                f"has rows from queue offset {bound.first} to {bound.last}, more than the commitlog ever had messages"
            )


def _first_live(bounds: dict[QueueKey, Bounds], database: Database, log_start: int) -> dict[QueueKey, tuple[int, int]]:
    """Return start and queue offset of the first message that the commitlog still has, for queues that have a min."""
    first_live = dict[QueueKey, tuple[int, int]]()
    for name, bound in bounds.items():
        if bound.min is None or bound.first < 0:
            continue

        def row_from(offset: int, name: QueueKey = name) -> tuple[int, int]:
            return _row_from(database, *name, offset)

        offsets = range(bound.first, bound.last + 1)
        index = bisect.bisect_left(offsets, (log_start, -1), key=row_from)
        if index < len(offsets):
            first_live[name] = row_from(offsets[index])
    return first_live


def _row_from(database: Database, topic: bytes, queue_id: int, offset: int) -> tuple[int, int]:
    """Return (physical offset, queue offset) of the first row at or after `offset`; the row must exist."""
    key, value = next(database.rows(DEFAULT_FAMILY, rows.unit_key(topic, queue_id, offset)))
    try:
        return int(rows.decode_values([value])[0].phy[0]), rows.decode_key(key).offset
    except ValueError as error:
        shown = topic.decode("utf-8", "replace")
        raise SafetyError(f"the database has a damaged row of {shown}, queue {queue_id}: {error}") from error


def bound_findings(queues: Sequence[Queue], contents: StoreContents) -> Iterator[Finding]:
    """Yield the findings about the rows `max` and `min` of these queues."""
    bounds, live, last = contents.bounds, contents.live, contents.last
    ends = {queue.range.key: queue.range.end for queue in contents.inventory.queues}
    for queue in queues:
        name = queue.range.key
        bound = bounds.get(name, Bounds())
        expected, following = max(bound.last + 1, ends.get(name, 0)), bound.max[1] + 1 if bound.max else 0
        # Without rows, a higher offset is right, too: all messages of the queue have expired, and its file queue may
        # have ended long ago
        if following < expected or (bound.last >= 0 and following != expected):
            text = f"by the max row, the next message gets the offset {following}, and it has to be {expected}"
            yield Finding(*name, kind=FindingKind.MAX, count=1, offset=expected, text=text)
        elif bound.max is not None and name in last and bound.max[0] != last[name]:
            # a broker treats all messages of a queue as expired if its max row names a position before the log
            text = f"the max row gives {bound.max[0]} as the start of the last message, which starts at {last[name]}"
            yield Finding(*name, kind=FindingKind.MAX, count=1, offset=following - 1, text=text)
        if (
            bound.min is not None
            and name in live
            and _is_wrong_min(bound.min, live[name], contents.inventory.log.start)
        ):
            phy, offset = live[name]
            text = f"the min row gives {bound.min[1]} at {bound.min[0]}, and the first message is {offset} at {phy}"
            yield Finding(*name, kind=FindingKind.MIN, count=1, offset=offset, text=text)


def _is_wrong_min(bound: tuple[int, int], live: tuple[int, int], log_start: int) -> bool:
    # a broker trusts the offset as long as the log contains that position, and searches for another otherwise
    return bound[1] != live[1] if bound[0] >= log_start else bound[1] > live[1]


def checkpoint_findings(checkpoint: int | None, log_end: int) -> Iterator[Finding]:
    """Yield the finding about CHECKPOINT, if any."""
    if checkpoint is None:
        yield Finding(
            topic=b"",
            queue_id=-1,
            kind=FindingKind.CHECKPOINT,
            count=1,
            offset=-1,
            text="the database has no CHECKPOINT",
        )
    elif checkpoint > log_end:
        text = f"CHECKPOINT is {checkpoint}, after the end of the commitlog, {log_end}"
        yield Finding(topic=b"", queue_id=-1, kind=FindingKind.CHECKPOINT, count=1, offset=checkpoint, text=text)
