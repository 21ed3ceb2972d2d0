"""The watcher's metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from streaming.state.watcher_note import WatcherNote

_NAME = "ledger_deletion_watch"


class WatchMetrics:
    """Since the start, in the registry that is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def counter(name: str, what: str) -> Counter:
            return Counter(f"{_NAME}_{name}", what, registry=registry)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"{_NAME}_{name}", what, registry=registry)

        self._events = counter("events", "Znodes that ZooKeeper's watches told of")
        self._reads = counter("reads", "Znodes that were read")
        self._changes = counter("changes", "Znodes that name something else than at the look before")
        self._noticed = counter("requests_noticed", "Requests for what is named no more, durable from then on")
        self._sent = counter("requests_sent", "Requests that the request topic has")
        self._dropped = counter(
            "requests_dropped", "Requests that were not sent, because a list names the ledger again"
        )
        self.put_off = counter(
            "requests_put_off",
            "Vanished names that a look left to the next one, since so many requests of a tenant wait",
        )
        self.unlisted_left = counter("unlisted_left", "Unlisted ledgers that are too many to wait for: the audit's")
        self.unlisted = counter("unlisted", "Requests for ledgers that were made and never listed")
        self.marks_set = counter("marks_set", "Ledgers and uploads marked because a broker is about to drop them")
        self.marks_worked_off = counter("marks_worked_off", "Marks taken away because what they mark is gone")
        self.marking_failures = counter("marking_failures", "How often a mark could not be set or worked off")
        self._looks = counter("looks", "Whole looks at all there is")
        self.folds = counter("folds", "How often the state was written anew")
        self.failures = counter("failures", "How often the watcher began anew after an error")
        self._took = gauge("look_seconds", "How long the last whole look took")
        self._looked = gauge("looked_at_seconds", "When the last whole look ended, in seconds since 1970; 0: none yet")
        self._znodes = gauge("znodes", "Topics, cursors and schemas that are known")
        self._waiting = gauge("requests_waiting", "Requests that are durable and not sent yet")
        self._unreadable = gauge("unreadable", "Znodes that could not be read, parsed or listed: what they named stays")
        self._unwatched = gauge(
            "unwatched", "Topics, cursors and schemas that no request could name; the log names them"
        )
        self.is_watching = gauge("hints", "1 while ZooKeeper's watches are set; else only whole looks see changes")

    def heard(self, events: int) -> None:
        """Count events."""
        self._events.inc(events)

    def saw(self, reads: int, changes: int, requests: int) -> None:
        """Count what was compared, and what came of it."""
        self._reads.inc(reads)
        self._changes.inc(changes)
        self._noticed.inc(requests)

    def looked(self, reads: int, took_s: float) -> None:
        """Count a whole look. reads: of znodes."""
        self._looks.inc()
        self._reads.inc(reads)
        self._took.set(took_s)
        self._looked.set_to_current_time()

    def show(self, note: WatcherNote) -> None:
        """Show how much there is."""
        self._znodes.set(note.znodes)
        self._waiting.set(note.waiting)
        self._unreadable.set(note.unreadable)
        self._unwatched.set(note.unwatched)

    def sent(self, sent: int, dropped: int) -> None:
        """Count requests that left."""
        self._sent.inc(sent)
        self._dropped.inc(dropped)
