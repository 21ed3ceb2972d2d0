"""Publishers use a broker that answers, whichever host of service_url hangs."""

import socket
from collections.abc import Iterator

import pytest

from streaming.adapters.pulsar import publish
from streaming.adapters.pulsar.publish import answering_host
from tests.pulsar_settings import pulsar_settings
from tests.unit.adapters.pulsar.frame_broker import Partition, serving


@pytest.fixture
def hanging() -> Iterator[str]:
    """A broker that is stopped: the kernel accepts connections, and nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def answers() -> Iterator[str]:
    with serving(Partition({}, None)) as broker:
        yield broker.url.removeprefix("pulsar://")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_host_that_hangs_is_passed_over(
    hanging: str, answers: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "_PROBE_SECONDS", 1)
    hosts = [hanging, answers] if is_first else [answers, hanging]
    settings = pulsar_settings(service_url=f"pulsar://{','.join(hosts)}")
    for _ in range(3):
        assert answering_host(settings) == f"pulsar://{answers}"


def test_if_no_host_answers_one_of_them_is_used(hanging: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_PROBE_SECONDS", 1)
    urls = (f"pulsar://{hanging}", "pulsar://127.0.0.1:1")
    assert answering_host(pulsar_settings(service_url=f"{urls[0]},127.0.0.1:1")) in urls


def test_a_single_host_is_not_asked() -> None:
    assert answering_host(pulsar_settings(service_url="pulsar://127.0.0.1:1")) == "pulsar://127.0.0.1:1"
