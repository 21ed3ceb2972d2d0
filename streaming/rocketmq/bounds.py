"""Where each queue begins and ends in the consume queues' database."""

from collections.abc import Iterator
from typing import NamedTuple

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, Database
from streaming.errors import SafetyError
from streaming.rocketmq.index_job import QueueKey
from udfs.rocketmq import rows


class Bounds(NamedTuple):
    """What the database says of one queue: its first and last row in `default`, -1 without one, and its bounds."""

    first: int = -1
    last: int = -1
    max: tuple[int, int] | None = None
    min: tuple[int, int] | None = None


def bounds_of(database: Database) -> dict[QueueKey, Bounds]:
    """Find all queues that the database knows, without reading their rows. Raises SafetyError for damaged keys."""
    found = dict[QueueKey, Bounds]()
    if not database.has(rows.OFFSET_FAMILY):
        raise SafetyError("the consume queues' database lacks the column family `offset`, so no broker has made it")
    try:
        for key, value in database.rows(rows.OFFSET_FAMILY):
            topic, word, queue_id = rows.decode_bound_key(key)
            if topic != rows.CHECKPOINT_TOPIC:
                known = found.get((topic, queue_id), Bounds())
                found[topic, queue_id] = known._replace(**{word: rows.decode_bound(value)})  # type: ignore[arg-type]
        for first, last in _spans(database):
            if min(first.offset, last.offset) < 0:
                shown = first.topic.decode("utf-8", "replace")
                raise ValueError(f"{shown}, queue {first.queue_id}, has the queue offset {last.offset}")
            name = (first.topic, first.queue_id)
            found[name] = found.get(name, Bounds())._replace(first=first.offset, last=last.offset)
    except ValueError as error:
        raise SafetyError(f"the consume queues' database has a damaged row: {error}") from error
    return found


def _spans(database: Database) -> Iterator[tuple[rows.RowKey, rows.RowKey]]:
    """First and last row of each queue, by leaping from queue to queue."""
    key = b""
    while (first := next(database.rows(DEFAULT_FAMILY, key), None)) is not None:
        row = rows.decode_key(first[0])
        end = rows.queue_prefix(row.topic, row.queue_id) + b"\xff" * 8
        last = database.last_before(DEFAULT_FAMILY, end)
        yield row, rows.decode_key(last[0] if last else first[0])
        key = end
