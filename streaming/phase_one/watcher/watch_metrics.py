"""The watcher's metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from streaming.state.notes.watcher_note import WatcherNote

_NAME = "ledger_deletion_watch"


class WatchMetrics:
    """Counts since the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def counter(name: str, text: str) -> Counter:
            return Counter(f"{_NAME}_{name}", text, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", text, registry=registry)

        self._events = counter("events", "Znodes that ZooKeeper's watches reported")
        self._reads = counter("reads", "Znodes that were read")
        self._changes = counter("changes", "Znodes whose names changed since the scan before")
        self._noticed = counter("requests_noticed", "Requests for vanished names, counted when they become durable")
        self._sent = counter("requests_sent", "Requests that are stored in the request topic")
        self._dropped = counter(
            "requests_dropped", "Requests that were not sent, because a list names the ledger again"
        )
        self.put_off = counter(
            "requests_put_off",
            "Vanished names that a scan left to the next scan, because too many requests of a tenant wait",
        )
        self.unlisted_left = counter("unlisted_left", "Unlisted ledgers above the limit, which are left to the audit")
        self.unlisted = counter("unlisted", "Requests for ledgers that were created and never listed")
        self.marks_set = counter("marks_set", "Ledgers and uploads marked because a broker is about to drop them")
        self.marks_worked_off = counter("marks_worked_off", "Marks removed because what they mark is gone")
        self.marking_failures = counter("marking_failures", "Failures to set or remove a mark")
        self._scans = counter("looks", "Complete scans")
        self.folds = counter("folds", "How often the state was rewritten")
        self.failures = counter("failures", "How often the watcher started again after an error")
        self._took = gauge("look_seconds", "Duration of the last complete scan")
        self._scanned = gauge(
            "looked_at_seconds", "When the last complete scan ended, in seconds since 1970; 0: none yet"
        )
        self._znodes = gauge("znodes", "Topics, cursors and schemas that the watcher knows")
        self._waiting = gauge("requests_waiting", "Requests that are durable and not sent yet")
        self._unreadable = gauge(
            "unreadable", "Znodes that could not be read, parsed or listed; the names in them count as present"
        )
        self._unwatched = gauge(
            "unwatched", "Topics, cursors and schemas that no request could name; the log names them"
        )
        self.is_watching = gauge("hints", "1 while ZooKeeper's watches are set; otherwise only scans find changes")

    def notified(self, events: int) -> None:
        """Count events of ZooKeeper's watches."""
        self._events.inc(events)

    def compared(self, reads: int, changes: int, requests: int) -> None:
        """Count compared znodes, and the results."""
        self._reads.inc(reads)
        self._changes.inc(changes)
        self._noticed.inc(requests)

    def scanned(self, reads: int, took_s: float) -> None:
        """Count a complete scan, which read so many znodes."""
        self._scans.inc()
        self._reads.inc(reads)
        self._took.set(took_s)
        self._scanned.set_to_current_time()

    def show(self, note: WatcherNote) -> None:
        """Show the current counts."""
        self._znodes.set(note.znodes)
        self._waiting.set(note.waiting)
        self._unreadable.set(note.unreadable)
        self._unwatched.set(note.unwatched)

    def sent(self, sent: int, dropped: int) -> None:
        """Count requests that were sent or dropped."""
        self._sent.inc(sent)
        self._dropped.inc(dropped)
