"""A port in use is detected before anything starts, and reported in one line."""

import importlib.util
import os
import socket
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from streaming import clients
from streaming.adapters.memory.store import MemoryStore
from streaming.cli.main import app
from streaming.config.listening import listen
from streaming.config.sections import MetricsSettings
from streaming.coordination.lock import WATCH, InstanceLock
from streaming.errors import ConfigError, SafetyError


@pytest.mark.parametrize(("command", "lock"), [("run", "main"), ("watch", f"main{WATCH}")])
def test_a_port_that_is_in_use_ends_the_start_in_one_line_that_names_the_instance_if_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, lock: str
) -> None:
    store = MemoryStore()
    monkeypatch.setattr(clients, "command_clients", lambda _settings: nullcontext(SimpleNamespace(store=store)))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "config.toml"
        config.write_text(f"[metrics]\nport = {port}\n")
        result = CliRunner().invoke(app, [command, "--config", str(config)])
        with InstanceLock(store, "/ledger-reaper", lock, on_lost=lambda: None):
            while_it_runs = CliRunner().invoke(app, [command, "--config", str(config)])
    assert isinstance(result.exception, ConfigError), result.output
    assert f"metrics can't be served on 127.0.0.1, port {port}: Address already in use" in str(result.exception)
    assert "\n" not in str(result.exception)
    assert isinstance(while_it_runs.exception, SafetyError), while_it_runs.output
    assert f"instance '{lock}' already runs: pid {os.getpid()} on" in str(while_it_runs.exception)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Cannot assign requested address\. .* an address of this machine"):
        listen(MetricsSettings(address="192.0.2.1", port=0, cluster="", otlp_endpoint=""))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_port_is_taken_from_here_on(address: str) -> None:
    taken = listen(MetricsSettings(address=address, port=0, cluster="", otlp_endpoint=""))
    assert taken is not None
    with taken, pytest.raises(ConfigError, match="Address already in use"):
        listen(MetricsSettings(address=address, port=taken.getsockname()[1], cluster="", otlp_endpoint=""))


def test_no_port_is_no_listener() -> None:
    assert listen(MetricsSettings(address="127.0.0.1", port=-1, cluster="", otlp_endpoint="")) is None


# other tests listen on 127.0.0.1, maybe at the same port
@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "127.0.0.3"), ("127.0.0.2", "127.0.0.3")])
def test_it_listens_on_one_address_only(address: str, other: str) -> None:
    listener = listen(MetricsSettings(address=address, port=0, cluster="", otlp_endpoint=""))
    assert listener is not None
    with listener:
        port = listener.getsockname()[1]
        socket.create_connection((address, port), 5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port), 5)


def test_an_endpoint_without_opentelemetry_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricsSettings(address="127.0.0.1", port=-1, cluster="", otlp_endpoint="http://127.0.0.1:4318")

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}")

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(ConfigError, match=r"install ledger-reaper\[otlp\]"):
        listen(metrics)
