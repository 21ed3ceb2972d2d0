"""Sends the metrics to an OpenTelemetry collector (OTLP over HTTP), with the names, labels and values of /metrics."""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from streaming.prometheus import table
from streaming.prometheus.health import Health
from streaming.prometheus.registry import Registry

if TYPE_CHECKING:  # an extra of this program's package
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

_TIMEOUT_S = 10.0
_SCOPE = "ledger-reaper"


class OtlpExport:
    """Sends the series of a registry to `<endpoint>/v1/metrics`."""

    def __init__(self, registry: Registry, health: Health, endpoint: str) -> None:
        """Take what /metrics and /readyz report, and the collector's URL."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._registry, self._health = registry, health
        self._exporter = OTLPMetricExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics", timeout=_TIMEOUT_S)
        self._started_ns = time.time_ns()

    def send(self) -> bool:
        """Send all series once, but nothing before the cluster's name is known.

        Return False if the collector did not take them.
        """
        from opentelemetry.sdk.metrics.export import MetricExportResult

        if not self._registry.is_identified:
            return True
        self._registry.set(table.READY, int(not self._health.waits_for))
        data = converted(self._registry.collect(), self._started_ns, time.time_ns())
        return self._exporter.export(data, timeout_millis=_TIMEOUT_S * 1000) is MetricExportResult.SUCCESS


def converted(families: Iterable[Family], started_ns: int, now_ns: int) -> "MetricsData":
    """Return the families as OpenTelemetry's records.

    Args:
        families: with the samples, as Registry.collect yields them.
        started_ns: when the counters were 0, in ns since 1970.
        now_ns: the time of the values, in ns since 1970.
    """
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [_metric(family, started_ns, now_ns) for family in families if family.samples]
    resource = Resource.create({"service.name": _SCOPE})
    scope = ScopeMetrics(scope=InstrumentationScope(_SCOPE), metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Family, started_ns: int, now_ns: int) -> "Metric":
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, Sum

    data: Any
    if family.type == "histogram":
        data = Histogram(_histograms(family.samples, started_ns, now_ns), AggregationTemporality.CUMULATIVE)
    else:
        points = [_number(sample, started_ns, now_ns) for sample in family.samples]
        is_counter = family.type == "counter"
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Metric(name=name, description=family.documentation, unit="", data=data)


def _number(sample: Sample, started_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    return NumberDataPoint(
        attributes=dict(sample.labels), start_time_unix_nano=started_ns, time_unix_nano=now_ns, value=sample.value
    )


def _histograms(samples: Iterable[Sample], started_ns: int, now_ns: int) -> list[Any]:
    """Return a point for each series; Prometheus' buckets are cumulative, OpenTelemetry's are not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    bounds: dict[tuple[tuple[str, str], ...], dict[float, float]] = defaultdict(dict)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            bounds[labels][float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    unknown: Any = None  # Prometheus' histograms have no extremes, and OTLP does not require them
    for labels, cumulative in bounds.items():
        ascending = sorted(cumulative)
        counts = [cumulative[bound] for bound in ascending]
        points.append(
            HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=started_ns,
                time_unix_nano=now_ns,
                count=int(counts[-1]),
                sum=sums[labels],
                bucket_counts=[int(n - before) for n, before in zip(counts, [0.0, *counts], strict=False)],
                explicit_bounds=ascending[:-1],
                min=unknown,
                max=unknown,
            )
        )
    return points
