from urllib.request import urlopen

from prometheus_client import CollectorRegistry, Gauge

from streaming.prometheus import serve


def test_a_registry_is_served_on_a_free_port() -> None:
    registry = CollectorRegistry()
    Gauge("things", "How many there are", registry=registry).set(3)
    with urlopen(f"http://127.0.0.1:{serve(registry, '127.0.0.1', 0)}/metrics", timeout=10) as answer:
        assert b"things 3.0" in answer.read()
