"""The table follows Prometheus' conventions."""

import re

from streaming.prometheus.table import PIP_186, TABLE, Group, Kind
from udfs.phase_one.pip_186_metrics import Metric as Pip186

UNITS = ("_seconds", "_bytes")


def test_names_have_one_prefix_but_for_pip_186s_nine_and_the_process() -> None:
    others = {name for name in TABLE if not name.startswith("ledger_reaper_")}
    ours = {metric.name for metric in PIP_186.values()}
    assert len(ours) == 9
    assert {f"{name}_total" for name in ours} == {f"ledger_deletion_{name}_total" for name in Pip186}
    assert {name for name in others if not name.startswith("process_")} == ours


def test_names_are_as_prometheus_wants_them() -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) and name == metric.name for name, metric in TABLE.items())
    assert not [name for name in TABLE if name.endswith(("_total", "_count", "_sum", "_bucket", "_created", "_ms"))]
    moments = [name for name in TABLE if "timestamp" in name]
    assert moments
    assert all(name.endswith("_timestamp_seconds") for name in moments)
    assert all(TABLE[name].kind is Kind.GAUGE for name in moments)


def test_histograms_have_ascending_buckets_and_a_unit() -> None:
    histograms = [metric for metric in TABLE.values() if metric.kind is Kind.HISTOGRAM]
    assert histograms
    for metric in histograms:
        assert metric.name.endswith(UNITS)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_a_label_that_a_tenant_can_fill_is_bounded() -> None:
    bounded = {"query", "topic", "tenant", "namespace"}
    free = {
        (metric.name, label.name)
        for metric in TABLE.values()
        for label in metric.labels
        if label.name in bounded and label.at_most is None
    }
    assert free == {("ledger_reaper_copies_published", "topic")}, "two topics that the configuration names"


def test_every_group_has_metrics_and_every_metric_a_text() -> None:
    assert {metric.group for metric in TABLE.values()} == set(Group)
    assert all(metric.text and not metric.text.endswith(".") for metric in TABLE.values())
