"""The watcher's metrics."""

import time

from streaming.prometheus import table
from streaming.prometheus.health import Health
from streaming.prometheus.registry import Registry
from streaming.prometheus.table import Group, Metric
from streaming.state.notes.watcher_note import WatcherNote


class WatchMetrics:
    """Counts since the start, and what the watcher's state shows.

    Args:
        registry: of the process.
        health: of the watcher's own process; None: the watcher runs beside a service, whose health it does not decide.
    """

    def __init__(self, registry: Registry, health: Health | None = None) -> None:
        self.registry = registry
        self._health = health or Health()
        registry.open(Group.WATCHER)

    def count(self, metric: Metric, n: int = 1) -> None:
        """Increment one of the counters."""
        self.registry.inc(metric, n)

    def watching(self, *, is_watching: bool) -> None:
        """Show whether ZooKeeper's watches are set."""
        self.registry.set(table.WATCH_HINTS, int(is_watching))

    def not_watching(self, why: str) -> None:
        """Show why the watcher does not watch; "": it does."""
        self._health.not_ready("watcher", why)

    def beat(self) -> None:
        """Show that the watcher works."""
        self._health.beat()

    def compared(self, reads: int, changes: int, requests: int) -> None:
        """Count compared znodes, and the results."""
        self.registry.inc(table.WATCH_READS, reads)
        self.registry.inc(table.WATCH_CHANGES, changes)
        self.registry.inc(table.WATCH_NOTICED, requests)

    def scanned(self, reads: int, took_s: float) -> None:
        """Count a complete scan, which read so many znodes."""
        self.registry.inc(table.WATCH_SCANS)
        self.registry.inc(table.WATCH_READS, reads)
        self.registry.set(table.WATCH_SCAN_DURATION, took_s)
        self.registry.set(table.WATCH_SCANNED, time.time())

    def recall(self, note: WatcherNote | None) -> None:
        """At a start, show what the last scan before it found; None: there was none."""
        self.registry.set(table.WATCH_SCANNED, note.at_ms / 1000 if note else 0)
        if note:
            self.show(note)

    def show(self, note: WatcherNote) -> None:
        """Show the current counts."""
        self.registry.set(table.WATCH_ZNODES, note.znodes)
        self.registry.set(table.WATCH_WAITING, note.waiting)
        self.registry.set(table.WATCH_UNREADABLE, note.unreadable)
        self.registry.set(table.WATCH_UNWATCHED, note.unwatched)
