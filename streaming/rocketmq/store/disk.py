"""How full a store's disk is. On a disk that is too full, a broker deletes messages early."""

import os
from typing import NamedTuple

from streaming.rocketmq.failures import refused
from streaming.rocketmq.store.store_paths import StorePaths
from udfs.rocketmq.refusals import Code, crowded_text, used_percent

_MARGIN_PERCENT = 2  # the broker writes while `follow` runs


class Disk(NamedTuple):
    """Bytes of a disk, without those reserved for root, as a broker counts them (UtilAll.java)."""

    total: int
    free: int


def disk_of(paths: StorePaths) -> Disk:
    """Return the size of the disk on which this program writes."""
    stats = os.statvfs(paths.consumequeue.parent)
    used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
    free = stats.f_bavail * stats.f_frsize
    return Disk(used + free, free)


def require_room(paths: StorePaths, more_bytes: int = 0) -> None:
    """Raise SafetyError if `more_bytes` would fill the disk, or make a running broker delete messages."""
    disk, limit = disk_of(paths), paths.conf.clean_forcibly_percent - _MARGIN_PERCENT
    percent = used_percent(disk.total, disk.free - more_bytes)
    if percent > limit:
        raise refused(Code.CROWDED_DISK, crowded_text(percent, limit))
