"""Makes the consume queues' database of finished files and of what is known about the queues."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from streaming.adapters.rocksdb.database import DEFAULT_FAMILY, opened
from streaming.errors import SafetyError
from streaming.rocketmq.inventory import Inventory
from udfs.rocketmq import rows


def join(folder: Path, parts: Iterable[Path], inventory: Inventory, checkpoint: int | None) -> None:
    """Make the database in a new folder, durably. checkpoint: what CHECKPOINT says, None without one.

    Raises SafetyError if it lacks its first or last row afterwards.
    """
    folder.mkdir(parents=True)
    linked = []
    for part in parts:  # taking in moves a file, and a run that is cut short here needs it again
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
            raise SafetyError("the database lacks its first or last row")


def offset_rows(inventory: Inventory, checkpoint: int | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the column family `offset`.

    Every queue that ever had a message gets its `max`, for that alone says which offset the next message gets.
    """
    for queue in inventory.queues:
        each = queue.range
        if each.end > 0:
            yield rows.max_key(each.topic, each.queue_id), rows.bound_value(max(queue.last_phy, 0), each.end - 1)
        if each.first < each.end:
            first = queue.files.read(each.first, each.first + 1)
            yield rows.min_key(each.topic, each.queue_id), rows.bound_value(int(first.phy[0]), each.first)
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
