"""The server answers Prometheus and probes, whoever else connects."""

import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families as parse

from streaming.prometheus import server as module
from streaming.prometheus import table
from streaming.prometheus.health import Health
from streaming.prometheus.registry import Registry
from streaming.prometheus.server import MetricsServer, serving


class Answered(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]


class World:
    """A server on a free port of 127.0.0.1."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry, self.health = registry or Registry(), Health()
        self.registry.identify("main", "standalone")
        self.registry.set(table.OUTAGES, 3)
        self.server = MetricsServer(self.registry, self.health, socket.create_server(("127.0.0.1", 0)))

    def ask(self, path: str, method: str = "GET", accept: str = "*/*") -> Answered:
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.request(method, path, headers={"Accept": accept})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        text = answer.read().decode()
        connection.close()
        return Answered(answer.status, text, headers)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.server:
        yield world


def test_prometheus_gets_the_registry_in_the_format_that_it_asks_for(world: World) -> None:
    plain = world.ask("/metrics")
    values = {sample.name: sample.value for family in parse(plain.text) for sample in family.samples}
    assert (values["ledger_reaper_outages"], values["ledger_reaper_ready"]) == (3, 1)
    assert plain.headers["content-type"].startswith("text/plain")
    open_metrics = world.ask("/metrics?x=1", accept="application/openmetrics-text;version=1.0.0")
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


def test_nothing_is_shown_before_the_cluster_is_known(world: World) -> None:
    world.server._registry = Registry()
    assert world.ask("/metrics").status == 503


def test_probes_name_what_is_wrong(world: World) -> None:
    assert (world.ask("/healthz").status, world.ask("/readyz").status) == (200, 200)
    world.health.not_ready("paused", "PAUSED: maintenance")
    assert world.ask("/healthz").status == 200
    assert world.ask("/readyz")[:2] == (503, "PAUSED: maintenance\n")
    assert 'ledger_reaper_ready{cluster="standalone",instance_name="main"} 0.0' in world.ask("/metrics").text
    world.health.end("stopping")
    assert world.ask("/healthz")[:2] == (503, "stopping\n")


@pytest.mark.parametrize("path", ["/", "/foo", "/metrics/", "/healthz/x", "/metrics%2f", "*"])
def test_other_paths_are_not_found(world: World, path: str) -> None:
    assert world.ask(path).status == 404


def test_only_get_and_head_are_answered(world: World) -> None:
    head = world.ask("/healthz", "HEAD")
    assert (head.status, head.text, head.headers["content-length"]) == (200, "", "3")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "X<script>"):
        answer = world.ask("/metrics", method)
        assert (answer.status, answer.headers["allow"], answer.text) == (405, "GET, HEAD", "Method Not Allowed\n")


def test_an_error_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Registry):
        def collect(self) -> Iterator[Family]:
            raise KeyError("a bug")

    world = World(Broken())
    with world.server, pytest.raises(RemoteDisconnected):
        world.ask("/metrics")
    assert "KeyError: 'a bug'" in caplog.text


def test_slow_clients_keep_nobody_out_and_the_oldest_goes_first(world: World) -> None:
    slow = [socket.create_connection(("127.0.0.1", world.server.port), 10) for _ in range(3 * module._CONNECTIONS)]
    for each in slow:
        each.sendall(b"GET /metr")
    assert world.ask("/healthz").status == 200
    assert slow[0].recv(1) == b"", "it was closed"
    for each in slow:
        each.close()


def test_a_client_that_sends_a_byte_now_and_then_is_closed_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", world.server.port), 10) as slow:
        started_s = time.monotonic()
        slow.settimeout(0.1)
        closed = False
        while not closed and time.monotonic() - started_s < 10:
            try:
                slow.sendall(b"G")
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed


class _Ui(BaseHTTPRequestHandler):
    """Spark's UI. size: of what it answers."""

    size = 10

    def do_GET(self) -> None:
        body = b"a" * self.size if self.path == "/metrics/prometheus/" else b""
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ui() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Ui) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_sparks_metrics_come_through(world: World, ui: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = world.ask("/metrics/spark")
    assert (absent.status, "Spark has no UI" in absent.text) == (404, True)
    world.server.spark_ui = ui
    assert world.ask("/metrics/spark")[:2] == (200, "a" * 10)
    monkeypatch.setattr(_Ui, "size", 100)
    monkeypatch.setattr(module, "_SPARK_BYTES", 99)
    assert world.ask("/metrics/spark").status == 502, "it is larger than a scrape should be"


def test_a_ui_that_does_not_answer_is_a_fault_of_the_gateway(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        world.server.spark_ui = f"http://127.0.0.1:{silent.getsockname()[1]}"
        silent.close()
        answer = world.ask("/metrics/spark")
    assert (answer.status, answer.text) == (502, "Spark's UI does not answer: [Errno 111] Connection refused\n")


def test_the_port_is_free_again_at_the_end_and_without_a_listener_nothing_is_served() -> None:
    with serving(Registry(), Health(), None) as nothing:
        assert nothing is None
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with serving(Registry(), Health(), listener) as server:
        assert server is not None
        assert server.port == port
    socket.create_server(("127.0.0.1", port)).close()
