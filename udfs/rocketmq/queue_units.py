"""Units of RocketMQ's file consume queues: 20 bytes for each message of a queue (ConsumeQueue.java).

A unit holds its message's position in the commitlog (8 bytes), the message's size (4) and the hash of its tag (8), all
big-endian and signed. A file holds units from its first byte on. Files are created at full length, filled with zeros,
so the first unit without a size or with a negative offset ends the written part.

numpy keeps the byte order in the dtype, but new arrays (concatenate, arithmetic) have the machine's own order. So no
function here returns a big-endian array: writers convert to big-endian at the last moment.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES = 20
# The size in a unit that a broker writes to fill a queue that starts in the middle of a file.
BLANK_SIZE = 0x7FFFFFFF
# Tags codes up to this value are addresses in a ConsumeQueueExt file (ConsumeQueueExt.MAX_ADDR).
EXT_ADDRESS_MAX = -(2**31) - 1

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]

_ON_DISK = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags", ">i8")])


class Units(NamedTuple):
    """Columns of consecutive units of a queue, in native byte order."""

    phy: Longs
    size: Ints
    tags: Longs

    @property
    def rows(self) -> int:
        """Number of units."""
        return int(self.phy.shape[0])

    def between(self, start: int, end: int) -> "Units":
        """Return the units from the index `start` up to the index `end`."""
        return Units(self.phy[start:end], self.size[start:end], self.tags[start:end])


def decode(data: bytes | memoryview) -> Units:
    """Parse units; bytes after the last whole unit are ignored."""
    whole = len(data) // UNIT_BYTES
    raw = np.frombuffer(data, dtype=_ON_DISK, count=whole)
    return Units(raw["phy"].astype(np.int64), raw["size"].astype(np.int32), raw["tags"].astype(np.int64))


def encode(units: Units) -> bytes:
    """Return the bytes of units, as a broker writes them."""
    raw = np.empty(units.rows, dtype=_ON_DISK)
    raw["phy"], raw["size"], raw["tags"] = units.phy, units.size, units.tags
    return raw.tobytes()


def is_written(units: Units) -> NDArray[np.bool_]:
    """Mark the units that a broker would take for written."""
    return np.asarray((units.size > 0) & (units.phy >= 0))


def is_blank(units: Units) -> NDArray[np.bool_]:
    """Mark the units that only fill the queue up to its first message."""
    return np.asarray((units.phy == 0) & (units.size == BLANK_SIZE))


def is_live(units: Units, log_start: int) -> NDArray[np.bool_]:
    """Mark the units whose message is in a commitlog that starts at `log_start`."""
    return np.asarray((units.phy >= log_start) & ~is_blank(units))


def _are_sound(units: Units, log_start: int, log_end: int) -> bool:
    """Whether all units pass a quick test; False if `first_bad` has to check each."""
    if not units.rows:
        return True
    return bool(
        units.size.min() > 0
        and units.phy[0] >= max(log_start, 0)
        and (units.phy[1:] > units.phy[:-1]).all()
        and int(units.phy[-1]) + int(units.size.max()) <= log_end
        and units.tags.min() > EXT_ADDRESS_MAX
    )


def first_bad(units: Units, log_start: int, log_end: int) -> tuple[int, str] | None:
    """Return the index and the fault of the first unit that no healthy queue has; None if all are sound.

    The units are live, and in the order of their queue.
    """
    if _are_sound(units, log_start, log_end):
        return None
    faults = (
        (~is_written(units), "was not written"),
        (units.phy < log_start, f"points before the commitlog, which starts at {log_start}"),
        (units.phy > log_end - units.size, f"points after the end of the commitlog, {log_end}"),
        (units.tags <= EXT_ADDRESS_MAX, "has its tags in a ConsumeQueueExt file"),
        (np.diff(units.phy, prepend=np.int64(-1)) <= 0, "points before the unit that precedes it"),
    )
    first_of_each = [(int(np.argmax(bad)), text) for bad, text in faults if bool(bad.any())]
    return min(first_of_each, key=lambda fault: fault[0], default=None)
