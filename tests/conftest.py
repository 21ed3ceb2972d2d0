"""What tests of every folder share: the embedded cluster, and a closed network where none is needed."""

import ipaddress
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from streaming.sandbox.cluster import Cluster, down, up

# pytest's folders too: nothing is written outside the project
if "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = str(Path(__file__).parents[1] / ".tmp")
    Path(os.environ["TMPDIR"]).mkdir(exist_ok=True)
    tempfile.tempdir = None

# What the tests start compiles our modules once, not at each start: half of what Python does until the service runs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

REUSED_HOME = "LEDGER_REAPER_TEST_HOME"
_WITHOUT_NETWORK = {"unit", "spark", "model"}

# A commit passes or fails by what is in it, not by luck; `make test-model` looks for new examples.
# Nor by how busy the machine is.
settings.register_profile(
    "repeatable",
    derandomize="LEDGER_REAPER_MODEL_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


# `make test` runs three processes beside each other: one for each group. Tests that need a cluster wait more than they
# work, and each cluster takes memory and half a minute to start, so there are two of them; all others need none.
# Contract tests without a cluster have servers of their own; they run where the second cluster is, which ended first.
# A cluster that is used again is one for all: tests kill its parts, and must not meet each other there.
# (test_rocketmq.py and test_rocketmq_follow.py use neither, and wait as they do.)
_ON_THE_SECOND_CLUSTER = {
    "test_faults.py",
    "test_ops.py",
    "test_retry.py",
    "test_rocketmq.py",
    "test_rocketmq_follow.py",
    "test_service.py",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test its group; pytest-xdist keeps a group in one process."""
    if item.get_closest_marker("cluster") is None:
        group = "second-cluster" if "contract" in item.path.parts else "no-cluster"
    else:
        is_second = item.path.name in _ON_THE_SECOND_CLUSTER and REUSED_HOME not in os.environ
        group = "second-cluster" if is_second else "first-cluster"
    item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real cluster, started once per run; LEDGER_REAPER_TEST_HOME=<home> uses (and leaves) one that is up."""
    reused = os.environ.get(REUSED_HOME)
    if reused:
        yield up(Path(reused))
        return
    home = tmp_path_factory.mktemp("cluster")
    made = up(home)
    try:
        yield made
    finally:
        down(home)


@pytest.fixture(autouse=True)
def _closed_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = request.node.path.relative_to(Path(__file__).parent).parts[0]
    if folder not in _WITHOUT_NETWORK:
        return
    connect = socket.socket.connect

    def loopback_only(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            raise AssertionError(f"a test in tests/{folder} opens a connection to {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", loopback_only)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
