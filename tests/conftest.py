"""Fixtures of all tests: the embedded cluster, and a closed network for tests that need none."""

import gc
import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

from streaming.sandbox.cluster import Cluster, down, up
from tests import json_outputs

# including pytest's folders: tests write nothing outside the project
if "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = str(Path(__file__).parents[1] / ".tmp")
    Path(os.environ["TMPDIR"]).mkdir(exist_ok=True)
    tempfile.tempdir = None

# Processes that tests start share the compiled modules: compilation is half of Python's work at a start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# So do the processes of pytest-xdist: half of the collection is the compilation of modules with tests.
sys.dont_write_bytecode = False

json_outputs.watch()

# The collection of tests leaves no garbage, and searching for garbage takes a quarter of its time.
gc.disable()

REUSED_HOME = "LEDGER_REAPER_TEST_HOME"
_WITHOUT_NETWORK = {"unit", "spark", "model"}
_WITH_ONE_AUTHORITY = {"unit", "contract"}  # their servers have certificates of the tests' own authorities
_END = "-----END CERTIFICATE-----\n"

# The tests of one commit have the same result in every run, regardless of chance and of the machine's load;
# `make test-model` searches for new examples.
settings.register_profile(
    "repeatable",
    derandomize="LEDGER_REAPER_MODEL_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


# `make test` runs three processes in parallel; each takes the next group when it has finished one. All tests with a
# cluster are a group, because each cluster takes memory and half a minute of work to start; so are the tests of Spark,
# which share a session. These two groups start first, because they last longest. Every other file is a group.
_LONGEST = ("cluster", "spark")


def _group(item: pytest.Item) -> str:
    if item.get_closest_marker("cluster") is not None:
        return "cluster"
    return "spark" if "spark" in item.path.relative_to(Path(__file__).parent).parts else item.path.stem


def pytest_collection_finish() -> None:
    """Search for garbage again, but never among the collected tests."""
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Assign each test to a group; pytest-xdist runs a group in one process."""
    item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest groups start first, in a process of pytest-xdist."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: [_group(item) != group for group in _LONGEST])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real cluster, started once per run; LEDGER_REAPER_TEST_HOME=<home> uses a running cluster, and leaves it up."""
    reused = os.environ.get(REUSED_HOME)
    if reused:
        yield up(Path(reused))
        return
    home = tmp_path_factory.mktemp("cluster")
    started = up(home)
    try:
        yield started
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


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with one certificate, in place of all of the system's, which take each client a twentieth of a second."""
    file = tmp_path_factory.mktemp("authority") / "one.pem"
    file.write_text(Path(certifi.where()).read_text().partition(_END)[0] + _END)
    return file


@pytest.fixture(autouse=True)
def _few_authorities(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, one_authority: Path) -> None:
    if request.node.path.relative_to(Path(__file__).parent).parts[0] in _WITH_ONE_AUTHORITY:
        monkeypatch.setenv("SSL_CERT_FILE", str(one_authority))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
