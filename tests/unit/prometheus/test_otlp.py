"""An OTLP receiver gets what /metrics shows."""

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otlp] is not installed")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from streaming.metrics import exporting
from streaming.prometheus import otlp, table
from streaming.prometheus.health import Health
from streaming.prometheus.registry import Registry
from streaming.prometheus.table import Group


class Receiver(BaseHTTPRequestHandler):
    """A collector. status: of its answers."""

    requests: list[tuple[str, Any]] = []  # noqa: RUF012  emptied by the fixture
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.requests.append((self.path, ExportMetricsServiceRequest.FromString(body)))
        self.send_response(self.status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    Receiver.requests.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def registry() -> Registry:
    registry = Registry(Group.PROCESS)
    registry.identify("main", "standalone")
    registry.inc(table.REQUESTS, 3, "requests", "DELETED", "UNREFERENCED")
    registry.set(table.BACKLOG, 7, "t")
    for seconds in (0.2, 0.7, 4_000.0):
        registry.observe(table.CHUNK_SECONDS, seconds, "requests")
    return registry


def test_a_collector_gets_names_labels_and_values(collector: str, registry: Registry) -> None:
    assert otlp.OtlpExport(registry, Health(), collector).send()
    ((path, request),) = Receiver.requests
    assert path == "/v1/metrics"
    metrics = {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    counted = metrics["ledger_reaper_requests_total"].sum
    assert counted.is_monotonic
    (point,) = counted.data_points
    labels = {each.key: each.value.string_value for each in point.attributes}
    assert labels == {
        "instance_name": "main",
        "cluster": "standalone",
        "query": "requests",
        "outcome": "DELETED",
        "reason": "UNREFERENCED",
    }
    assert point.as_double == 3
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    assert metrics["ledger_reaper_backlog_requests"].gauge.data_points[0].as_double == 7
    assert metrics["ledger_reaper_backlog_requests"].description == table.BACKLOG.text
    (histogram,) = metrics["ledger_reaper_chunk_seconds"].histogram.data_points
    assert (histogram.count, histogram.sum) == (3, pytest.approx(4_000.9))
    assert list(histogram.explicit_bounds) == list(table.CHUNK_SECONDS.buckets)
    assert list(histogram.bucket_counts) == [1, 1, *[0] * 10, 1]
    assert not histogram.HasField("min")
    assert not histogram.HasField("max")
    assert "process_cpu_seconds_total" in metrics


def test_a_collector_gets_whether_the_process_is_ready_although_nothing_scrapes_it(
    collector: str, registry: Registry
) -> None:
    health = Health()
    export = otlp.OtlpExport(registry, health, collector)
    assert export.send()
    health.not_ready("paused", "PAUSED: upgrade")
    assert export.send()
    sent = [request.resource_metrics[0].scope_metrics[0].metrics for _path, request in Receiver.requests]
    ready = [metric for metrics in sent for metric in metrics if metric.name == table.READY.name]
    assert [metric.gauge.data_points[0].as_double for metric in ready] == [1, 0]


def test_a_collector_that_refuses_is_named_in_the_log(
    collector: str, registry: Registry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Receiver, "status", 400)
    assert not otlp.OtlpExport(registry, Health(), collector).send()
    exporting(registry, Health(), collector)._work.run()
    assert f"{collector} did not take the metrics; the next try is in a minute" in caplog.text


def test_nothing_is_sent_before_the_cluster_is_known(collector: str) -> None:
    assert otlp.OtlpExport(Registry(Group.PROCESS), Health(), collector).send()
    assert not Receiver.requests


def test_the_thread_sends_and_at_once(collector: str, registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    with exporting(registry, Health(), collector):
        deadline = time.monotonic() + 10
        while not Receiver.requests and time.monotonic() < deadline:
            time.sleep(0.05)
    assert Receiver.requests
    assert not caplog.messages
