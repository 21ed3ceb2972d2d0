"""A port that is in use is found out before anything starts, and told in one line."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming.cli.main import app
from streaming.config.listening import require_free_port
from streaming.config.sections import MetricsSettings
from streaming.errors import ConfigError


@pytest.mark.parametrize("command", ["run", "watch"])
def test_a_port_that_is_in_use_ends_the_start_in_one_line(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "config.toml"
        config.write_text(f'[metrics]\nport = {port}\n[zookeeper]\nhosts = "127.0.0.1:1"\n')
        result = CliRunner().invoke(app, [command, "--config", str(config)])
    assert isinstance(result.exception, ConfigError), result.output
    assert f"metrics can't be served on 127.0.0.1, port {port}: Address already in use" in str(result.exception)
    assert "\n" not in str(result.exception)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="an address of this machine"):
        require_free_port(MetricsSettings(address="192.0.2.1", port=0))


@pytest.mark.parametrize("port", [-1, 0])
def test_no_port_and_any_port_are_free(port: int) -> None:
    require_free_port(MetricsSettings(address="127.0.0.1", port=port))
