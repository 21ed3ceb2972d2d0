"""The service's metrics, and the reasons that /readyz reports."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from streaming.beside import Beside, Work, logged
from streaming.in_use.cache import InUseCache
from streaming.prometheus import table
from streaming.prometheus.health import STARTING, Health
from streaming.prometheus.registry import Registry
from streaming.prometheus.table import Group
from streaming.reconcile.gaps import Reconciliation
from streaming.schemas import REQUESTS, RETRY
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.state.receipts import ChunkSummary
from streaming.sweep.measured import Measures
from udfs.phase_one.pip_186_metrics import counted_as

log = logging.getLogger("ledger-reaper")

_NAMED = 5  # held tenants that /readyz and messages to operators name
_EXPORT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """Why nothing, or nothing of some tenants, is deleted now."""

    paused: str = ""  # the pause; "": none
    paused_since_ms: int = 0
    limit: str = ""  # the limit that was reached; "": none
    limit_since_ms: int = 0
    migration: str = ""  # why the cluster's metadata can't be used; "": it can
    tenants_since_ms: int = 0  # when a tenant was last held or released; 0: none is held


def exporting(registry: Registry, health: Health, endpoint: str) -> Beside:
    """Return the thread that sends the metrics to an OpenTelemetry collector every minute."""
    from streaming.prometheus.otlp import OtlpExport  # loads OpenTelemetry

    export = OtlpExport(registry, health, endpoint)

    def run() -> None:
        if not export.send():
            log.warning("%s did not take the metrics; the next try is in a minute", endpoint)

    return Beside(Work(name="otlp", run=run, every_s=_EXPORT_S, on_failure=logged("sending metrics", _EXPORT_S)))


@dataclass(slots=True)
class Metrics:
    """One per process. Any thread may call it.

    Counters start at 0 with the process. Gauges of what ZooKeeper and state.dir hold show what was read there.
    """

    registry: Registry = field(default_factory=lambda: Registry(Group.SERVICE, Group.PIP_186))
    health: Health = field(default_factory=Health)
    _gaps: dict[str, int] = field(default_factory=dict)
    _cache: dict[table.Metric, int] = field(default_factory=dict)  # the cache's counts when it was last shown

    def starting(self, why: str) -> None:
        """Show why the service does not read requests yet; "": it reads them."""
        self.health.not_ready(STARTING, why and f"starting: {why}")

    def count(self, query: str, summary: ChunkSummary) -> None:
        """Count a committed chunk."""
        registry = self.registry
        registry.inc(table.CHUNKS_COMMITTED, 1, query)
        for (outcome, reason), n in summary.outcomes.items():
            registry.inc(table.REQUESTS, n, query, outcome, reason)
        for topic, n in summary.copies.items():
            registry.inc(table.COPIES_PUBLISHED, n, topic)
        registry.inc(table.DELETED_BYTES, summary.deleted_bytes)
        for (ledger_type, outcome, reason), n in summary.by_type.items():
            for metric in counted_as(ledger_type, outcome, reason):
                registry.inc(table.PIP_186[metric], n)

    def took(self, metric: table.Metric, query: str, seconds: float) -> None:
        """Show how long a batch or a chunk of a query took."""
        # max: the agreed clock may be set back
        self.registry.observe(metric, max(0.0, seconds), RETRY if query == RETRY else REQUESTS)

    def swept(self, measures: Measures) -> None:
        """Show what the tasks of a chunk's sweep measured."""
        for seconds in measures.delete_s:
            self.registry.observe(table.DELETE_SECONDS, seconds)
        self.registry.inc(table.RATE_WAITED, measures.waited_s)
        self.registry.inc(table.S3_THROTTLED, measures.throttled)
        if measures.tasks:
            self.registry.set(table.RATE, measures.deletes_per_second)

    def cache(self, cache: InUseCache) -> None:
        """Show the in-use cache as it is now."""
        counts = cache.counts
        for metric, n in (
            (table.CACHE_HITS, counts.hits),
            (table.CACHE_MISSES, counts.misses),
            (table.CACHE_REFRESHES, counts.refreshes),
            (table.CACHE_STALE, counts.stale),
        ):
            self.registry.inc(metric, n - self._cache.get(metric, 0))
            self._cache[metric] = n
        self.registry.set(table.CACHE_OWNERS, len(cache))
        self.registry.set(table.CACHE_BYTES, cache.size_bytes)

    def waiting(self, retries: int) -> None:
        """Show how many retries wait."""
        self.registry.set(table.RETRIES_WAITING, retries)

    def unaccounted(self, accounts: Reconciliation) -> None:
        """Show how many messages, ledgers and requests are unaccounted for."""
        gaps = {
            "messages": sum(len(partition.missing) for partition in accounts.partitions),
            "ledgers": sum(len(partition.trimmed) for partition in accounts.partitions),
            "requests": len(accounts.lost),
        }
        if accounts.unchecked:
            # an incomplete reconciliation never lowers a number
            gaps = {what: max(n, self._gaps.get(what, 0)) for what, n in gaps.items()}
        else:
            self.registry.set(table.ACCOUNTS_CHECKED, time.time())
        self._gaps = gaps
        for what, n in gaps.items():
            self.registry.set(table.UNACCOUNTED, n, what)
        lost = ", ".join(f"{n:,} {what}" for what, n in gaps.items() if n)
        self.health.alarm("accounts", lost and f"UNACCOUNTED: {lost}; see `ledger-reaper check`")

    def tripped(self, limit: str) -> None:
        """Show which limit holds the work until an operator decides; "": none."""
        self.registry.set(table.LIMIT_REACHED, int(bool(limit)))
        if not limit:
            self.registry.set(table.LIMIT_REACHED_SINCE, 0)
        self.health.not_ready("limit", limit and f"LIMIT REACHED: {limit}; see `ledger-reaper status`")

    def held_tenants(self, tenants: Collection[str]) -> None:
        """Show which tenants are held until an operator decides."""
        self.registry.set(table.TENANTS_HELD, len(tenants))
        self.registry.show(table.TENANT_HELD, dict.fromkeys(tenants, 1))
        named = ", ".join(sorted(tenants)[:_NAMED]) + (", …" if len(tenants) > _NAMED else "")
        self.health.not_ready("tenants", f"TENANT HELD: {named}; see `ledger-reaper status`" if tenants else "")

    def holds(self, holds: Holds, now_s: float) -> None:
        """Show all holds, as read at that time (in seconds since 1970)."""
        self.tripped(holds.limit)
        self.health.not_ready("paused", holds.paused and f"PAUSED: {holds.paused}")
        self.health.not_ready("migration", holds.migration)
        for metric, value in (
            (table.PAUSED, int(bool(holds.paused))),
            (table.PAUSED_SINCE, holds.paused_since_ms / 1000),
            (table.LIMIT_REACHED_SINCE, holds.limit_since_ms / 1000),
            (table.TENANTS_HELD_SINCE, holds.tenants_since_ms / 1000),
            (table.METADATA_MIGRATION, int(bool(holds.migration))),
            (table.HOLDS_READ, now_s),
        ):
            self.registry.set(metric, value)

    def parked(self, query: str, parked: ParkedQuery | None) -> None:
        """Show whether a query is parked; None: it is not."""
        self.registry.set(table.QUERY_PARKED, int(parked is not None), query)
        # the service does its job as long as the fallback processes the topic's requests
        waits = parked is not None and not parked.is_read
        why = f"PARKED: {parked.topic} is not read: {parked.why}" if parked is not None and waits else ""
        self.health.not_ready(f"query {query}", why)

    def outage(self) -> None:
        """Count a wait for a service."""
        self.registry.inc(table.OUTAGES_WAITED)

    def outages(self, steps: int) -> None:
        """Show how many steps wait for a service now."""
        self.registry.set(table.OUTAGES, steps)
