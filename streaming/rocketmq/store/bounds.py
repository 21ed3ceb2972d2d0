"""The first and last offset of each queue in the consume queues' database."""

from collections.abc import Iterator
from typing import NamedTuple

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database
from streaming.errors import SafetyError
from udfs.rocketmq import rows
from udfs.rocketmq.parts import QueueKey


class Bounds(NamedTuple):
    """The bounds of a queue in the database."""

    first: int = -1  # queue offset of the first row in `default`, -1 without rows
    last: int = -1  # of the last row
    max: tuple[int, int] | None = None  # the row `max`: start of the last message, its queue offset
    min: tuple[int, int] | None = None  # the row `min`, of the first message


def bounds_of(database: Database) -> dict[QueueKey, Bounds]:
    """Return the bounds of all queues, without reading every row. Raises SafetyError for damaged keys."""
    bounds = dict[QueueKey, Bounds]()
    if not database.has(rows.OFFSET_FAMILY):
        raise SafetyError("the consume queues' database has no column family `offset`, so no broker has created it")
    try:
        for key, value in database.rows(rows.OFFSET_FAMILY):
            topic, bound, queue_id = rows.decode_bound_key(key)
            if topic != rows.CHECKPOINT_TOPIC:
                earlier = bounds.get((topic, queue_id), Bounds())
                bounds[topic, queue_id] = earlier._replace(**{bound: rows.decode_bound(value)})  # type: ignore[arg-type]
        for first, last in _spans(database):
            if min(first.offset, last.offset) < 0:
                shown = first.topic.decode("utf-8", "replace")
                raise ValueError(f"{shown}, queue {first.queue_id}, has the queue offset {last.offset}")
            name = (first.topic, first.queue_id)
            bounds[name] = bounds.get(name, Bounds())._replace(first=first.offset, last=last.offset)
    except ValueError as error:
        raise SafetyError(f"the consume queues' database has a damaged row: {error}") from error
    return bounds


def _spans(database: Database) -> Iterator[tuple[rows.RowKey, rows.RowKey]]:
    """Yield the first and last row of each queue, by seeking from queue to queue."""
    key = b""
    while (first := next(database.rows(DEFAULT_FAMILY, key), None)) is not None:
        row = rows.decode_key(first[0])
        end = rows.queue_prefix(row.topic, row.queue_id) + b"\xff" * 8
        last = database.last_before(DEFAULT_FAMILY, end)
        yield row, rows.decode_key(last[0] if last else first[0])
        key = end
