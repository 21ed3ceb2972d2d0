"""Metrics as Prometheus scrapes them: counted by chunk, and an alarm that no half-done look ever lowers."""

import socket
from urllib.request import urlopen

import pytest

from streaming.metrics import Metrics
from streaming.reconcile.gaps import PartitionGaps, Reconciliation
from streaming.state.receipts import ChunkSummary


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"ledger_deletion_{name}", labels)


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
    assert value(metrics, "accounts_looked_at_seconds") == 0
    metrics.unaccounted(Reconciliation(partitions=(), delayed=0))
    assert (value(metrics, "accounts_looked_at_seconds") or 0) > 0


def test_a_held_tenant_shows_by_name_until_a_person_has_looked(metrics: Metrics) -> None:
    metrics.held_tenants(["shop", "bank"])
    metrics.held_tenants(["bank"], no_more=["shop"])
    assert [value(metrics, "tenant_held", tenant=tenant) for tenant in ("shop", "bank", "calm")] == [0, 1, None]


def test_a_limit_that_is_reached_shows_until_a_person_has_looked(metrics: Metrics) -> None:
    metrics.tripped(True)
    assert value(metrics, "limit_reached") == 1
    metrics.tripped(False)
    assert value(metrics, "limit_reached") == 0


def test_outages_and_waiting_retries_are_shown(metrics: Metrics) -> None:
    metrics.outage()
    metrics.waiting(5)
    assert (value(metrics, "outages_waited_total"), value(metrics, "retries_waiting")) == (1, 5)


# other tests listen on 127.0.0.1, maybe at the same port
@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "127.0.0.3"), ("127.0.0.2", "127.0.0.3")])
def test_they_are_served_on_a_free_port_of_one_address(metrics: Metrics, address: str, other: str) -> None:
    port = metrics.serve(address, 0)
    with urlopen(f"http://{address}:{port}/metrics", timeout=5) as answer:
        assert b"ledger_deletion_limit_reached" in answer.read()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, port), 5)
