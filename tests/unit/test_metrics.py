"""Metrics as Prometheus scrapes them: counted by chunk, and an alarm that no half-done look ever lowers."""

from dataclasses import replace
from typing import cast

import pytest

from streaming.clock import ManualClock
from streaming.in_use.cache import InUseCache
from streaming.in_use.loader import InUseLoader
from streaming.metrics import Holds, Metrics
from streaming.prometheus import table
from streaming.reconcile.gaps import PartitionGaps, Reconciliation
from streaming.state.notes.parked_queries import ParkedQuery
from streaming.state.receipts import ChunkSummary
from streaming.sweep.measured import Measures


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"ledger_reaper_{name}", labels)


def test_a_chunk_counts_by_outcome_copy_and_bytes(metrics: Metrics) -> None:
    chunk = ChunkSummary(
        by_type={("LEDGER", "DELETED", "UNREFERENCED"): 2, ("LEDGER", "RETRY", "IN_USE"): 1},
        copies={"t-RETRY": 1},
        deleted_bytes=3_000,
        has_refreshed=False,
        epochs=frozenset(),
    )
    metrics.count("requests", chunk)
    metrics.count("requests", chunk)
    assert value(metrics, "requests_total", query="requests", outcome="DELETED", reason="UNREFERENCED") == 4
    assert value(metrics, "requests_total", query="requests", outcome="RETRY", reason="IN_USE") == 2
    assert value(metrics, "copies_published_total", topic="t-RETRY") == 2
    assert value(metrics, "deleted_bytes_total") == 6_000
    assert value(metrics, "chunks_committed_total", query="requests") == 2


def test_seven_of_pip_186s_metrics_are_counted_by_the_kind_of_ledger(metrics: Metrics) -> None:
    by_type: dict[tuple[str | None, str, str], int] = {
        ("LEDGER", "DELETED", "UNREFERENCED"): 2,
        ("OFFLOAD_LEDGER", "RETRY", "STORE_REFUSED"): 3,
        ("LEDGER", "DEAD_LETTER", "IN_USE"): 1,
        (None, "DEAD_LETTER", "NOT_JSON"): 4,
    }
    metrics.count(
        "requests", ChunkSummary(by_type=by_type, copies={}, deleted_bytes=0, has_refreshed=False, epochs=frozenset())
    )

    def value(metrics: Metrics, name: str) -> float | None:
        return metrics.registry.get_sample_value(f"ledger_deletion_{name}")

    assert value(metrics, "messages_received_total") == value(metrics, "messages_acked_total") == 10
    assert (value(metrics, "ledgers_deleted_total"), value(metrics, "offload_ledgers_deleted_total")) == (2, 0)
    assert value(metrics, "ledgers_delete_failed_total") == 0
    assert value(metrics, "offload_ledgers_delete_failed_total") == 3
    assert value(metrics, "messages_at_max_retry_total") == 1
    assert value(metrics, "ledgers_sent_total") is None, "the client counts what it sends"


def test_what_is_unaccounted_for_is_lowered_by_a_look_that_read_everything_only(metrics: Metrics) -> None:
    gaps = PartitionGaps(partition="t-partition-0", read=9, unread=0, missing=((1, 2), (1, 3)), trimmed=(7,))
    metrics.unaccounted(Reconciliation(partitions=(gaps,), delayed=1, lost=("request",)))
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0, unchecked={"t-partition-0": "no answer"}))
    assert [value(metrics, "unaccounted", what=what) for what in ("messages", "ledgers", "requests")] == [2, 1, 1]
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0))
    assert [value(metrics, "unaccounted", what=what) for what in ("messages", "ledgers", "requests")] == [0, 0, 0]


def test_when_everything_was_last_read_is_shown(metrics: Metrics) -> None:
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0, unchecked={"t": "no answer"}))
    assert value(metrics, "accounts_checked_timestamp_seconds") is None
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0))
    read_s = value(metrics, "accounts_checked_timestamp_seconds") or 0
    assert read_s > 0
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0, unchecked={"t": "no answer"}))
    assert value(metrics, "accounts_checked_timestamp_seconds") == read_s


def test_a_held_tenant_shows_by_name_until_an_operator_has_looked(metrics: Metrics) -> None:
    metrics.held_tenants(["shop", "bank"])
    assert metrics.health.waits_for.startswith("TENANT HELD: bank, shop;")
    metrics.held_tenants(["bank"])
    assert [value(metrics, "tenant_held", tenant=tenant) for tenant in ("shop", "bank", "calm")] == [None, 1, None]
    assert value(metrics, "tenants_held") == 1
    metrics.held_tenants([])
    assert value(metrics, "tenants_held") == 0
    assert not metrics.health.waits_for


def test_a_limit_that_is_reached_shows_until_an_operator_has_looked(metrics: Metrics) -> None:
    metrics.tripped("60 deletes")
    assert value(metrics, "limit_reached") == 1
    assert metrics.health.waits_for.startswith("LIMIT REACHED: 60 deletes;")
    metrics.registry.set(table.LIMIT_REACHED_SINCE, 5)
    metrics.tripped("")
    assert (value(metrics, "limit_reached"), value(metrics, "limit_reached_since_timestamp_seconds")) == (0, 0)
    assert not metrics.health.waits_for


def test_holds_are_shown_with_the_time_since_when(metrics: Metrics) -> None:
    assert value(metrics, "paused") is None, "it was not read yet"
    metrics.holds(Holds(paused="maintenance", paused_since_ms=5_000, migration="to Oxia"), 9.0)
    names = ("paused", "paused_since_timestamp_seconds", "limit_reached", "limit_reached_since_timestamp_seconds")
    assert [value(metrics, name) for name in names] == [1, 5, 0, 0]
    assert (value(metrics, "metadata_migration"), value(metrics, "holds_read_timestamp_seconds")) == (1, 9)
    assert metrics.health.waits_for == "PAUSED: maintenance\nto Oxia"
    metrics.holds(Holds(limit="60 deletes", limit_since_ms=7_000, tenants_since_ms=8_000), 10.0)
    assert [value(metrics, name) for name in names] == [0, 0, 1, 7]
    assert value(metrics, "tenants_held_since_timestamp_seconds") == 8


def test_a_parked_topic_is_not_ready_unless_its_requests_are_processed_without_the_connector(metrics: Metrics) -> None:
    parked = ParkedQuery(topic="t", why="overflow", since_ms=5)
    metrics.parked("requests", parked)
    assert metrics.health.waits_for == "PARKED: t is not read: overflow"
    metrics.parked("requests", replace(parked, is_read=True))
    assert value(metrics, "query_parked", query="requests") == 1
    assert not metrics.health.waits_for
    metrics.parked("requests", None)
    assert value(metrics, "query_parked", query="requests") == 0


def test_a_start_is_not_ready(metrics: Metrics) -> None:
    metrics.starting("Spark starts")
    assert metrics.health.waits_for == "starting: Spark starts"
    metrics.starting("")
    assert not metrics.health.waits_for


def test_outages_and_waiting_retries_are_shown(metrics: Metrics) -> None:
    metrics.outage()
    metrics.outages(2)
    metrics.waiting(5)
    assert (value(metrics, "outages_waited_total"), value(metrics, "outages")) == (1, 2)
    assert value(metrics, "retries_waiting") == 5


def test_the_cache_counts_what_it_has_not_counted_yet(metrics: Metrics) -> None:
    cache = InUseCache(loader=cast("InUseLoader", None), clock=ManualClock(), refresh_ms=0, max_bytes=0)
    cache.counts.hits, cache.counts.stale = 3, 1
    metrics.cache(cache)
    cache.counts.hits = 5
    metrics.cache(cache)
    names = ("hits_total", "misses_total", "refreshes_total", "stale_total", "owners", "bytes")
    assert [value(metrics, f"in_use_cache_{name}") for name in names] == [5, 0, 0, 1, 0, 0]


def test_the_duration_of_a_chunk_is_seen_by_the_kind_of_its_query(metrics: Metrics) -> None:
    for query in ("requests", "requests-0123", "retry"):
        metrics.took(table.CHUNK_SECONDS, query, 4.0)
    metrics.took(table.CHUNK_SECONDS, "retry", -0.1)  # the clock was set back
    shown = [value(metrics, f"chunk_seconds_{name}", source="requests") for name in ("count", "sum")]
    assert shown == [2, 8]
    assert value(metrics, "chunk_seconds_sum", source="retry") == 4


def test_what_tasks_measured_is_shown_and_a_sweep_that_failed_shows_no_rate(metrics: Metrics) -> None:
    metrics.swept(Measures())
    assert value(metrics, "deletes_per_second") is None
    metrics.swept(Measures((0.2, 0.4), 3.0, 250.0, 2, tasks=4))
    metrics.swept(Measures())
    assert value(metrics, "deletes_per_second") == 250
    assert (value(metrics, "delete_seconds_count"), value(metrics, "deletes_waited_seconds_total")) == (2, 3)
    assert value(metrics, "delete_seconds_sum") == pytest.approx(0.6)
    assert value(metrics, "s3_throttled_total") == 2
