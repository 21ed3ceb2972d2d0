"""Every metric of the service, including those that PIP-186 lists, served for Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from streaming.in_use.cache import InUseCache
from streaming.prometheus import serve
from streaming.reconcile.gaps import Reconciliation
from streaming.state.receipts import ChunkSummary
from udfs.phase_one.pip_186_metrics import HELP, SENT, Metric, counted_as


def pip_186_counters(registry: CollectorRegistry, metrics: Iterable[Metric]) -> dict[Metric, Counter]:
    """Create counters for some of PIP-186's metrics, `ledger_deletion_<name>_total`."""
    return {metric: Counter(f"ledger_deletion_{metric}", HELP[metric], registry=registry) for metric in metrics}


class Metrics:
    """Counts since the start. One per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()  # of its own, so that tests can have two
        self._requests = Counter(
            "ledger_deletion_requests",
            "Processed requests, by query, outcome and reason",
            ["query", "outcome", "reason"],
            registry=self.registry,
        )
        self._bytes = Counter("ledger_deletion_deleted_bytes", "Bytes of deleted ledgers", registry=self.registry)
        self._copies = Counter(
            "ledger_deletion_copies_published", "Copies sent to RETRY and DLQ", ["topic"], registry=self.registry
        )
        self._chunks = Counter(
            "ledger_deletion_chunks_committed",
            "Chunks of requests whose receipts are committed",
            ["query"],
            registry=self.registry,
        )
        self._outages = Counter(
            "ledger_deletion_outages_waited", "How often the work waited for a service", registry=self.registry
        )
        self._waiting = Gauge(
            "ledger_deletion_retries_waiting", "Requests that wait for their next try", registry=self.registry
        )
        self._unaccounted = Gauge(
            "ledger_deletion_unaccounted",
            "ALARM unless 0: messages that were read and have no receipt, ledgers of request topics that were deleted "
            "before we read them, requests that should be retried and wait nowhere",
            ["what"],
            registry=self.registry,
        )
        self._of_pip_186 = pip_186_counters(self.registry, [metric for metric in Metric if metric not in SENT])
        self._gaps: dict[str, int] = {}
        self._reconciled = Gauge(
            "ledger_deletion_accounts_looked_at_seconds",
            "When ledger_deletion_unaccounted was last counted in full, in seconds since 1970; 0: not since the start",
            registry=self.registry,
        )
        self._tripped = Gauge(
            "ledger_deletion_limit_reached",
            "1 while a limit is reached, and an operator must decide before more is deleted",
            registry=self.registry,
        )
        self._held_tenants = Gauge(
            "ledger_deletion_tenant_held",
            "1 while no ledger of this tenant is deleted, until an operator decides",
            ["tenant"],
            registry=self.registry,
        )
        self._parked = Gauge(
            "ledger_deletion_lane_parked",
            "1 while a query can't read its topic with the connector, by query; the log and `check` name the reason",
            ["query"],
            registry=self.registry,
        )
        self._cache = Gauge(
            "ledger_deletion_in_use_cache",
            "Cache of owners' references: hits, misses, refreshes and stale since the start; owners and bytes now",
            ["what"],
            registry=self.registry,
        )

    def serve(self, address: str, port: int) -> int:
        """Serve on this address of the machine, and return the port; 0 takes a free port."""
        return serve(self.registry, address, port)

    def count(self, query: str, summary: ChunkSummary) -> None:
        """Count a committed chunk."""
        self._chunks.labels(query).inc()
        for (outcome, reason), n in summary.outcomes.items():
            self._requests.labels(query, outcome, reason).inc(n)
        for topic, n in summary.copies.items():
            self._copies.labels(topic).inc(n)
        self._bytes.inc(summary.deleted_bytes)
        for (ledger_type, outcome, reason), n in summary.by_type.items():
            for metric in counted_as(ledger_type, outcome, reason):
                self._of_pip_186[metric].inc(n)

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
        """Show what is unaccounted for."""
        gaps = {
            "messages": sum(len(partition.missing) for partition in accounts.partitions),
            "ledgers": sum(len(partition.trimmed) for partition in accounts.partitions),
            "requests": len(accounts.lost),
        }
        if accounts.unchecked:
            # an incomplete reconciliation never lowers a number
            gaps = {what: max(n, self._gaps.get(what, 0)) for what, n in gaps.items()}
        else:
            self._reconciled.set_to_current_time()
        self._gaps = gaps
        for what, n in gaps.items():
            self._unaccounted.labels(what).set(n)

    def tripped(self, is_tripped: bool) -> None:
        """Show whether a limit holds the work until an operator decides."""
        self._tripped.set(int(is_tripped))

    def held_tenants(self, tenants: Iterable[str], *, no_more: Iterable[str] = ()) -> None:
        """Show which tenants are held until an operator decides, and which are held no longer."""
        for tenant in tenants:
            self._held_tenants.labels(tenant).set(1)
        for tenant in no_more:
            self._held_tenants.labels(tenant).set(0)

    def parked(self, query: str, *, is_parked: bool) -> None:
        """Show whether a query is parked."""
        self._parked.labels(query).set(int(is_parked))

    def outage(self) -> None:
        """Count a wait for a service."""
        self._outages.inc()
