"""The values of the metrics that a process serves, created as table.py declares them."""

import threading
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from streaming.prometheus.table import CLUSTER, INSTANCE, OTHER, TABLE, Group, Kind, Label, Metric

_CREATED_SUFFIX = "_created"


class Registry(Collector):
    """The metrics of one process. Any thread may call it.

    A counter or histogram without labels appears with its group, and starts at 0. A gauge, and a series with labels,
    appears with its first value; so a value that is not known yet is absent.
    """

    def __init__(self, *groups: Group) -> None:
        self._inner = CollectorRegistry()
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}
        self._seen: dict[tuple[str, str], set[str]] = {}
        self._groups: set[Group] = set()
        self._labels: dict[str, str] = {}
        self._lock = threading.RLock()
        self.open(*groups)

    def open(self, *groups: Group) -> None:
        """Let the metrics of these groups appear."""
        with self._lock:
            new = set(groups) - self._groups
            self._groups |= new
            if Group.PROCESS in new:
                ProcessCollector(registry=self._inner)
            for metric in TABLE.values():
                if metric.group in new and metric.is_own and metric.kind is not Kind.GAUGE:
                    self._of(metric)

    def identify(self, instance_name: str, cluster: str) -> None:
        """Give every series these labels."""
        with self._lock:
            self._labels = {INSTANCE: instance_name, CLUSTER: cluster}

    def labels(self) -> Mapping[str, str]:
        """Return the labels of identify()."""
        return self._labels

    @property
    def is_identified(self) -> bool:
        """Whether identify() was called."""
        return bool(self._labels)

    def inc(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Increment a counter's series."""
        with self._lock:
            self._series(metric, labels).inc(amount)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge's series."""
        with self._lock:
            self._series(metric, labels).set(value)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram's series."""
        with self._lock:
            self._series(metric, labels).observe(value)

    def show(self, metric: Metric, values: Mapping[str, float], *, is_sum: bool = True) -> None:
        """Set the series of a gauge with one label: one for each value of the label. All its other series vanish.

        Of more than the label's `at_most`, the largest have series; the others are added up as OTHER, or left out
        unless is_sum (a sum of times, for example, has no meaning).
        """
        (label,) = metric.labels
        largest = sorted(values, key=lambda name: (-values[name], name))
        shown = {name: values[name] for name in largest[: label.at_most]}
        if is_sum and (others := largest[len(shown) :]):
            shown[OTHER] = sum(values[name] for name in others)
        with self._lock:
            gauge = self._of(metric)
            gauge.clear()
            for name, value in shown.items():
                gauge.labels(name).set(value)

    def forget(self, metric: Metric) -> None:
        """Let a gauge vanish until it is set again."""
        with self._lock:
            if gauge := self._metrics.pop(metric.name, None):
                self._inner.unregister(gauge)

    def collect(self) -> Iterator[Family]:
        """Yield all families with their series, as prometheus_client's exposition takes them."""
        with self._lock:
            families, labels = list(self._inner.collect()), self._labels
        for family in families:
            # Prometheus needs no `_created` series, and they would double the page
            family.samples = [
                sample._replace(labels={**labels, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith(_CREATED_SUFFIX)
            ]
            yield family

    def get_sample_value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        """Return the value of the series with these labels and those of identify(); None: there is no such series."""
        wanted = {**self._labels, **(labels or {})}
        samples = (sample for family in self.collect() for sample in family.samples)
        return next((sample.value for sample in samples if sample.name == name and sample.labels == wanted), None)

    def _series(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        if not labels:
            return self._of(metric)
        return self._of(metric).labels(*map(self._bounded, repeat(metric.name), metric.labels, labels))

    def _bounded(self, metric: str, label: Label, value: str) -> str:
        """Return the value; OTHER if it is new and the label has had its `at_most` values."""
        if label.at_most is None:
            return value
        seen = self._seen.setdefault((metric, label.name), set())
        if len(seen) < label.at_most:
            seen.add(value)
        return value if value in seen else OTHER

    def _of(self, metric: Metric) -> Any:
        """Return prometheus_client's object for the metric. The first call creates it."""
        if metric.name not in self._metrics:
            self._metrics[metric.name] = _created(metric, self._inner)
        return self._metrics[metric.name]


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """Create a counter of the table in an application's registry."""
    return Counter(metric.name, metric.text, [label.name for label in metric.labels], registry=registry)


def _created(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    labels = [label.name for label in metric.labels]
    match metric.kind:
        case Kind.COUNTER:
            return counter(metric, registry)
        case Kind.GAUGE:
            return Gauge(metric.name, metric.text, labels, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(metric.name, metric.text, labels, buckets=metric.buckets, registry=registry)
