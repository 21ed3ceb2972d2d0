"""Series appear with their first value, carry the labels of the process, and stay within the bounds of their labels."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from streaming.prometheus import table
from streaming.prometheus.registry import Registry
from streaming.prometheus.table import TABLE, Group


@pytest.fixture
def registry() -> Registry:
    registry = Registry(Group.SERVICE, Group.PIP_186, Group.PROCESS)
    registry.identify("main", "standalone")
    registry.inc(table.REQUESTS, 2, "requests", "DELETED", "UNREFERENCED")
    registry.observe(table.CHUNK_SECONDS, 3.0, "requests")
    registry.set(table.OUTAGES, 1)
    return registry


def test_every_series_has_the_names_of_instance_and_cluster(registry: Registry) -> None:
    samples = [sample for family in parse(generate_latest(registry).decode()) for sample in family.samples]
    assert samples
    assert {(each.labels["instance_name"], each.labels["cluster"]) for each in samples} == {("main", "standalone")}


def test_both_formats_parse_and_match_the_table(registry: Registry) -> None:
    for families in (
        list(parse(generate_latest(registry).decode())),
        list(parse_openmetrics(generate_openmetrics(registry).decode())),  # type: ignore[no-untyped-call]
    ):
        assert {"ledger_reaper_requests", "process_cpu_seconds", "ledger_deletion_ledgers_deleted"} <= {
            family.name for family in families
        }
        for family in families:
            metric = TABLE[family.name]
            assert family.type == metric.kind
            assert family.documentation == metric.text if metric.is_own else family.documentation
            names = {label.name for label in metric.labels} | {"instance_name", "cluster"}
            assert all(set(sample.labels) - {"le"} == names for sample in family.samples)
            assert not [sample for sample in family.samples if sample.name.endswith("_created")]


def test_what_is_unknown_is_absent_and_a_counter_starts_at_0(registry: Registry) -> None:
    assert registry.get_sample_value("ledger_reaper_outages_waited_total") == 0
    assert registry.get_sample_value("ledger_reaper_accounts_checked_timestamp_seconds") is None
    assert registry.get_sample_value("ledger_reaper_watcher_scans_total") is None, "the watcher is off"
    registry.open(Group.WATCHER)
    assert registry.get_sample_value("ledger_reaper_watcher_scans_total") == 0
    assert registry.get_sample_value("ledger_reaper_watcher_znodes") is None


def test_a_label_takes_so_many_values_and_the_others_are_one() -> None:
    registry = Registry()
    for n in range(table.QUERY.at_most or 0):
        registry.inc(table.CHUNKS_COMMITTED, 1, f"requests-{n}")
    for n in range(1000, 1003):
        registry.inc(table.CHUNKS_COMMITTED, 1, f"requests-{n}")
    registry.inc(table.CHUNKS_COMMITTED, 1, "requests-0")
    assert registry.get_sample_value("ledger_reaper_chunks_committed_total", {"query": "(other)"}) == 3
    assert registry.get_sample_value("ledger_reaper_chunks_committed_total", {"query": "requests-0"}) == 2


def test_all_values_of_a_gauge_replace_those_before_and_the_least_are_added_up() -> None:
    registry, most = Registry(), table.TENANT.at_most or 0
    registry.show(table.TENANT_HELD, {"gone": 1})
    registry.show(table.TENANT_HELD, {f"t{n:04}": 1 for n in range(most + 7)})

    def shown(tenant: str) -> float | None:
        return registry.get_sample_value("ledger_reaper_tenant_held", {"tenant": tenant})

    assert [shown("gone"), shown("t0000"), shown("(other)")] == [None, 1, 7]


def test_a_gauge_can_vanish(registry: Registry) -> None:
    registry.forget(table.OUTAGES)
    registry.forget(table.OUTAGES)
    assert registry.get_sample_value("ledger_reaper_outages") is None
