"""The description of an ensemble that can't be reached."""

import socket

from streaming.adapters.zookeeper.zookeeper_client import ZooKeeperClientSettings, connection_fault


def test_every_unreachable_server_of_an_ensemble_is_named() -> None:
    fault = connection_fault(ZooKeeperClientSettings(hosts="127.0.0.1:1,127.0.0.1:2/chroot"))

    assert "127.0.0.1:1: " in fault
    assert "127.0.0.1:2: " in fault


def test_an_ensemble_with_a_reachable_server_has_no_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hosts = f"127.0.0.1:1,127.0.0.1:{listener.getsockname()[1]}"

        assert connection_fault(ZooKeeperClientSettings(hosts=hosts)) == ""
