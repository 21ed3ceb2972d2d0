"""What is told of an ensemble that can't be reached."""

import socket

from streaming.adapters.zookeeper.settings import ZooKeeperSettings, what_is_wrong


def test_of_an_ensemble_every_server_is_told_that_can_not_be_reached() -> None:
    told = what_is_wrong(ZooKeeperSettings("127.0.0.1:1,127.0.0.1:2/chroot"))

    assert "127.0.0.1:1: " in told
    assert "127.0.0.1:2: " in told


def test_an_ensemble_of_which_one_server_can_be_reached_is_not_what_is_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hosts = f"127.0.0.1:1,127.0.0.1:{listener.getsockname()[1]}"

        assert what_is_wrong(ZooKeeperSettings(hosts)) == ""
