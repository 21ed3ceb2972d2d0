"""Every metric of the service in one place, as PIP-186 lists them; served for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from streaming.in_use.cache import InUseCache
from streaming.reconcile.messages import Reconciliation
from streaming.state.receipts import ChunkSummary


class Metrics:
    """Counters since the start. One per process; has its own registry so that two can live side by side in tests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "ledger_deletion_requests",
            "Requests worked off, by what became of them",
            ["query", "outcome", "reason"],
            registry=self.registry,
        )
        self._bytes = Counter(
            "ledger_deletion_deleted_bytes", "Length of the ledgers that were deleted", registry=self.registry
        )
        self._copies = Counter(
            "ledger_deletion_copies_published", "Copies sent to RETRY and DLQ", ["topic"], registry=self.registry
        )
        self._chunks = Counter("ledger_deletion_chunks_committed", "Chunks of work", ["query"], registry=self.registry)
        self._outages = Counter(
            "ledger_deletion_outages_waited", "Times the work waited for a service", registry=self.registry
        )
        self._waiting = Gauge(
            "ledger_deletion_retries_waiting", "Retries that are not worked off yet", registry=self.registry
        )
        self._unaccounted = Gauge(
            "ledger_deletion_unaccounted",
            "ALARM unless 0: messages read without receipt, ledgers gone unread, requests put off that wait nowhere",
            ["what"],
            registry=self.registry,
        )
        self._gaps: dict[str, int] = {}
        self._looked = Gauge(
            "ledger_deletion_accounts_looked_at_seconds",
            "When all accounts were looked at last, in seconds since 1970; 0: never since the start",
            registry=self.registry,
        )
        self._tripped = Gauge(
            "ledger_deletion_limit_reached",
            "1 while a person has to look before more is deleted",
            registry=self.registry,
        )
        self._cache = Gauge(
            "ledger_deletion_in_use_cache",
            "In-use cache: hits, misses, refreshes, stale answers since the start; owners and bytes held",
            ["what"],
            registry=self.registry,
        )

    def serve(self, port: int) -> int:
        """Serve on 127.0.0.1; port 0 takes a free one. Returns the port."""
        server, _thread = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        return int(server.server_port)

    def count(self, query: str, summary: ChunkSummary) -> None:
        """Count one committed chunk."""
        self._chunks.labels(query).inc()
        for (outcome, reason), n in summary.outcomes.items():
            self._requests.labels(query, outcome, reason).inc(n)
        for topic, n in summary.copies.items():
            self._copies.labels(topic).inc(n)
        self._bytes.inc(summary.deleted_bytes)

    def cache(self, cache: InUseCache) -> None:
        """Show the in-use cache as it is now."""
        counts = cache.counts
        for name, value in (
            ("hits", counts.hits),
            ("misses", counts.misses),
            ("refreshes", counts.refreshes),
            ("stale", counts.stale),
            ("owners", len(cache)),
            ("bytes", cache.size_bytes),
        ):
            self._cache.labels(name).set(value)

    def waiting(self, retries: int) -> None:
        """Show how many retries wait."""
        self._waiting.set(retries)

    def unaccounted(self, accounts: Reconciliation) -> None:
        """Show the gaps in the accounts; a look that was not whole takes none away."""
        gaps = {
            "messages": sum(len(one.missing) for one in accounts.partitions),
            "ledgers": sum(len(one.trimmed) for one in accounts.partitions),
            "requests": len(accounts.lost),
        }
        if accounts.unseen:
            gaps = {what: max(n, self._gaps.get(what, 0)) for what, n in gaps.items()}
        else:
            self._looked.set_to_current_time()
        self._gaps = gaps
        for what, n in gaps.items():
            self._unaccounted.labels(what).set(n)

    def tripped(self, is_tripped: bool) -> None:
        """Show whether the blast radius holds the work."""
        self._tripped.set(int(is_tripped))

    def outage(self) -> None:
        """Count one wait for a service."""
        self._outages.inc()
