"""How full the disk of a store is. A broker deletes messages before their time where it is too full."""

import os
from typing import NamedTuple

from streaming.rocketmq.failures import refused
from streaming.rocketmq.place import Place
from udfs.rocketmq.refusals import Code, crowded_text, used_percent

# A broker that is followed writes meanwhile.
_MARGIN_PERCENT = 2


class Disk(NamedTuple):
    """Bytes of a disk, without those that only root may use, as a broker counts them (UtilAll.java)."""

    total: int
    free: int


def disk_of(place: Place) -> Disk:
    """Look at the disk on which this program writes."""
    found = os.statvfs(place.consumequeue.parent)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    free = found.f_bavail * found.f_frsize
    return Disk(used + free, free)


def require_room(place: Place, more_bytes: int = 0) -> None:
    """Raise SafetyError if so many bytes more would have a running broker delete messages, or leave no room at all."""
    disk, limit = disk_of(place), place.conf.clean_forcibly_percent - _MARGIN_PERCENT
    percent = used_percent(disk.total, disk.free - more_bytes)
    if percent > limit:
        raise refused(Code.CROWDED_DISK, crowded_text(percent, limit))
