"""Builds the consume queues' database from finished files and the rows about the queues."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, opened
from streaming.errors import SafetyError
from streaming.rocketmq.store.inventory import Inventory
from udfs.rocketmq import rows


def join(folder: Path, parts: Iterable[Path], inventory: Inventory, checkpoint: int | None) -> None:
    """Build the database in a new folder, durably. checkpoint: the value of CHECKPOINT; None for none.

    Raises SafetyError if its first or last row is missing afterwards.
    """
    folder.mkdir(parents=True)
    linked = []
    # RocksDB moves the files that it takes in, and an interrupted run needs them again
    for part in parts:
        link = folder / f"{part.name}.link"
        link.hardlink_to(part)
        linked.append(str(link))
    with opened(folder, (rows.OFFSET_FAMILY,), compressed=True) as database:
        if linked:
            database.take_in(linked)
        database.put_all(rows.OFFSET_FAMILY, offset_rows(inventory, checkpoint))
        database.flush()
        first, last = _ends(inventory)
        if first is not None and (
            database.get(DEFAULT_FAMILY, first) is None or database.get(DEFAULT_FAMILY, last) is None
        ):
            raise SafetyError("the first or last row of the database is missing")


def offset_rows(inventory: Inventory, checkpoint: int | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the column family `offset`."""
    for queue in inventory.queues:
        live = queue.range
        # also for a queue without rows: `max` alone determines the offset of the next message
        if live.end > 0:
            yield rows.max_key(live.topic, live.queue_id), rows.bound_value(max(queue.last_phy, 0), live.end - 1)
        if live.first < live.end:
            first = queue.files.read(live.first, live.first + 1)
            yield rows.min_key(live.topic, live.queue_id), rows.bound_value(int(first.phy[0]), live.first)
    if checkpoint is not None:
        yield rows.checkpoint_key(), rows.checkpoint_value(checkpoint)


def _ends(inventory: Inventory) -> tuple[bytes | None, bytes]:
    live = [queue.range for queue in inventory.queues if queue.range.first < queue.range.end]
    if not live:
        return None, b""
    first, last = live[0], live[-1]
    return (
        rows.unit_key(first.topic, first.queue_id, first.first),
        rows.unit_key(last.topic, last.queue_id, last.end - 1),
    )
