"""Adds what a bookie reports about itself to what ensembles say about it."""

from dataclasses import replace

from udfs.formats.bookie_disk import BookieDisk
from udfs.space.space_report import BookieSpace


def with_reported(space: BookieSpace, disk: BookieDisk) -> BookieSpace:
    """Return the bookie with its own answers; those that it did not give stay None, with the reason in `faults`."""
    return replace(
        space,
        reported_live=disk.live_bytes,
        reported_ledgers=disk.ledgers,
        entry_logs=disk.entry_logs,
        write_cache=disk.write_cache_bytes,
        disk_total=disk.disk_total_bytes,
        disk_free=disk.disk_free_bytes,
        reclaimed=disk.reclaimed_bytes,
        gc_wait_seconds=disk.gc_wait_seconds or None,
        # 0 is an answer: this bookie never compacts
        minor_threshold=disk.minor_threshold,
        major_threshold=disk.major_threshold,
        last_minor_ms=disk.last_minor_ms,
        last_major_ms=disk.last_major_ms,
        is_collecting=disk.is_collecting,
        faults=(*space.faults, *disk.faults),
    )
